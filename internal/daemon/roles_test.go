package daemon_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestAJanitorThatNobodyHears: a start says that what a janitor finds reaches its log alone where
// the same process has no operator API.
func TestAJanitorThatNobodyHears(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		roles  []fleet.Role
		warned int
	}{
		"alone":                     {[]fleet.Role{fleet.RoleJanitor}, 1},
		"beside a loop":             {[]fleet.Role{fleet.RoleJanitor, fleet.RoleUpdater}, 1},
		"beside the operator API":   {[]fleet.Role{fleet.RoleJanitor, fleet.RoleOperatorAPI}, 0},
		"the operator API alone":    {[]fleet.Role{fleet.RoleOperatorAPI}, 0},
		"a loop, which finds none":  {[]fleet.Role{fleet.RoleUpdater}, 0},
		"all, which is the default": {fleet.Roles(), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := settings(t)
			c.Roles = test.roles
			var log bytes.Buffer
			d, err := daemon.Open(t.Context(), c, daemon.Options{Version: "v1", Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			told := log.String() // nothing runs yet
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			if n := strings.Count(told, "give the process that has the role janitor the role operator-api, too"); n != test.warned {
				t.Errorf("warned %d times, want %d: %s", n, test.warned, told)
			}
		})
	}
}
