package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/kexec"
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

// Without root certificates there is no jump from which the agent could not connect.
func TestPublicRoots(t *testing.T) {
	t.Parallel()
	own := newAuthority(t).pem
	for name, test := range map[string]struct {
		path, content string // on the host
		authority     []byte // that the control plane names
		found         bool
		warning, err  string
	}{
		"Debian":                        {rootFiles[0], string(own), nil, true, "", ""},
		"Fedora":                        {rootFiles[4], string(own), nil, true, "", ""},
		"none":                          {"etc/hosts", "", nil, false, "", "install ca-certificates, or set initializer.endpoint_ca"},
		"an empty file":                 {rootFiles[0], "", nil, false, "", "has no root certificates"},
		"none, but a CA of the plane's": {"etc/hosts", "", own, false, "images from servers with a public certificate", ""},
	} {
		h := newHost(t)
		h.write(t, test.path, test.content)
		roots, warning, err := publicRoots(h.root, &agentv1.TakeoverInit{CaCertificate: test.authority})
		if test.found != (len(roots) > 0) || (warning != "") != (test.warning != "") || (err != nil) != (test.err != "") {
			t.Errorf("%s: %d bytes, warning %q, %v", name, len(roots), warning, err)
		}
		if !strings.Contains(warning, test.warning) || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: warning %q, %v", name, warning, err)
		}
	}
}

// A jump that fails restarts the machine when its disks are read-only, whoever jumped, and not
// otherwise: a root file system may have been read-only before.
func TestFailedJump(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for name, test := range map[string]struct {
		jump     error
		restarts int
	}{
		"the disks were left alone": {refused, 0},
		"the disks are read-only":   {fmt.Errorf("start the loaded kernel: %w; %w", refused, kexec.ErrReadOnly), 1},
	} {
		restarts := 0
		err := restartReadOnly(test.jump, func(string) error { restarts++; return errors.New("it goes on") })
		if restarts != test.restarts || !errors.Is(err, refused) {
			t.Errorf("%s: restarted %d times, %v", name, restarts, err)
		}
	}
}
