package agent

import (
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

// The dead man: who was never admitted gives up after the limit, who was only when it is refused.
func TestContact(t *testing.T) {
	t.Parallel()
	refused, down := errors.New("not admitted"), errors.New("no route to host")
	for name, test := range map[string]struct {
		story func(c *contact)
		want  string // of what is said just after the limit, since the story
	}{
		"silence":         {func(*contact) {}, "no contact with the control plane within 10m0s: no heartbeat was answered"},
		"no network":      {func(c *contact) { c.failed(down) }, "within 10m0s: no route to host"},
		"unreachable":     {func(c *contact) { c.heard(down, false) }, "within 10m0s: no route to host"},
		"never admitted":  {func(c *contact) { c.heard(refused, true) }, "within 10m0s: not admitted"},
		"admitted":        {func(c *contact) { c.heard(nil, false) }, ""},
		"plane goes down": {func(c *contact) { c.heard(nil, false); c.heard(down, false) }, ""},
		"refused later":   {func(c *contact) { c.heard(nil, false); c.heard(refused, true) }, "has refused the agent in memory for 10m0s: not admitted"},
		"refused once":    {func(c *contact) { c.heard(nil, false); c.heard(refused, true); c.heard(nil, false) }, ""},
		"down in between": {func(c *contact) { c.heard(nil, false); c.heard(refused, true); c.heard(down, false) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var c contact
				c.begin(10 * time.Minute)
				test.story(&c)
				time.Sleep(10*time.Minute - time.Second)
				if got := c.lost(); got != "" {
					t.Errorf("before the limit: %q", got)
				}
				time.Sleep(2 * time.Second)
				if got := c.lost(); test.want == "" && got != "" || !strings.Contains(got, test.want) {
					t.Errorf("after the limit: %q, want %q", got, test.want)
				}
			})
		})
	}
}

// The dead man watches also while the machine is made ready, because a driver may hang.
func TestDriverThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		forever := make(chan struct{})
		m := &memory{
			log: slog.New(slog.DiscardHandler), store: takeover.NewStore(t.TempDir()),
			// It never goes on to the network of the host that runs the test.
			prepare: func(*agentv1.MemorySystem) { <-forever; runtime.Goexit() },
		}
		start := time.Now()
		cause := m.supervise(t.Context(), new(agentv1.MemorySystem), "plane.example", 10*time.Minute)
		if took := time.Since(start); took > 11*time.Minute || !strings.Contains(cause, "no contact with the control plane within 10m0s") {
			t.Errorf("after %s: %q", took, cause)
		}
		close(forever)
	})
}
