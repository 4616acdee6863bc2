package operations_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// replies hooks a provider so that its n-th lever fails with the n-th of these errors, and the
// later ones with the last. Nil is a success.
func replies(herd *shepherdtest.Herd, at shepherdtest.Point, errs ...error) {
	herd.Fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
		if point != at {
			return nil
		}
		err := errs[0]
		if len(errs) > 1 {
			errs = errs[1:]
		}
		return err
	}
}

// TestUnclearReplies: where nobody knows whether the provider has heard a restart, it is asked for
// once more, and not before the first had its time. The end says what is known.
func TestUnclearReplies(t *testing.T) {
	t.Parallel()
	broken := fleet.Errorf(fleet.KindTemporary, "the provider answered Bad Gateway")
	slowly := fleet.Errorf(fleet.KindThrottled, "slowly")
	unsent := provider.BeforeSending(fleet.Errorf(fleet.KindTimeout, "the next call may start too late"))
	for name, c := range map[string]struct {
		ask        fleet.Operation
		installed  bool
		quarantine bool
		// lag is that of the restart; negative: it never comes.
		lag     time.Duration
		at      shepherdtest.Point
		replies []error
		levers  string
		ended   []string
	}{
		"an installed system, and every reply is lost": {
			ask: fleet.OperationReboot, installed: true, at: shepherdtest.Pulled, replies: []error{broken}, levers: "reboot reboot",
			ended: []string{
				"operation failed: reboot (operation 1): metal may have done it", "Bad Gateway", "is not called again", "the provider says that the machine is active",
			},
		},
		"an installed system, and the first reply is lost": {
			ask: fleet.OperationReboot, installed: true, at: shepherdtest.Pulled, replies: []error{broken, nil}, levers: "reboot reboot",
			ended: []string{"operation done: reboot (operation 1): the provider has accepted it"},
		},
		"a machine in quarantine, where no agent shows anything": {
			ask: fleet.OperationReboot, quarantine: true, at: shepherdtest.Pulled, replies: []error{broken}, levers: "reboot reboot",
			ended: []string{"operation failed: reboot (operation 1): metal may have done it", "is not called again"},
		},
		"a machine that shows that it was restarted": {
			ask: fleet.OperationReboot, at: shepherdtest.Pulled, replies: []error{broken}, levers: "reboot",
			ended: []string{"operation done: reboot (operation 1): an agent was started under another boot ID"},
		},
		"a machine that is never restarted": {
			ask: fleet.OperationReboot, lag: -1, at: shepherdtest.Pulled, replies: []error{broken}, levers: "reboot reboot",
			ended: []string{"operation failed: reboot (operation 1): metal has not done it in its time", "the machine was not restarted: its agent is heard"},
		},
		"no call is heard": {
			ask: fleet.OperationReboot, at: shepherdtest.Pulling, replies: []error{broken}, levers: "",
			ended: []string{"operation failed: reboot (operation 1): metal has not done it in its time", "the machine was not restarted: its agent is heard"},
		},
		"the second call is refused": {
			ask: fleet.OperationReboot, installed: true, at: shepherdtest.Pulling, replies: []error{broken, fleet.Errorf(fleet.KindConflict, "it is locked")},
			ended: []string{"operation failed: reboot (operation 1): it is locked; metal may have done it all the same"},
		},
		"the second call is throttled until the operation is given up": {
			ask: fleet.OperationReboot, installed: true, at: shepherdtest.Pulling, replies: []error{broken, slowly},
			ended: []string{"operation failed: reboot (operation 1): metal may have done it", "slowly"},
		},
		"refusals before anything was done are no calls": {
			ask: fleet.OperationReboot, installed: true, at: shepherdtest.Pulling,
			replies: []error{slowly, unsent, slowly, unsent, nil}, levers: "reboot",
			ended: []string{"operation done: reboot (operation 1): the provider has accepted it"},
		},
		"a power cycle that has left the machine off is finished": {
			ask: fleet.OperationPowerCycle, installed: true, at: shepherdtest.Pulled, replies: []error{broken, broken, nil},
			levers: "power-cycle power-on", ended: []string{"operation failed: power-cycle (operation 1): metal may have done it"},
		},
		"a power cycle of a machine with an agent that was left off is finished": {
			ask: fleet.OperationPowerCycle, at: shepherdtest.Pulled, replies: []error{broken, nil},
			levers: "power-cycle power-on", ended: []string{"operation done: power-cycle (operation 1): an agent was started under another boot ID"},
		},
		"a power cycle that is never heard": {
			ask: fleet.OperationPowerCycle, installed: true, at: shepherdtest.Pulling, replies: []error{broken},
			ended: []string{"operation failed: power-cycle (operation 1): metal may have done it"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := bench(t, 2, operations.Options{}, nil, nil)
				id := herd.Machines()[0]
				defer herd.Start(handler)()
				time.Sleep(5 * time.Minute)
				if c.installed {
					herd.Install(id)()
				}
				if c.quarantine {
					check(t, bmdbtest.Quarantine(t.Context(), herd.DB, "ada", id, "look at it first"))
				}
				herd.Fake.RestartLag = c.lag
				replies(herd, c.at, c.replies...)
				_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, c.ask, "new firmware")
				check(t, err)
				time.Sleep(80 * time.Minute)
				if got := levers(herd); got != c.levers {
					t.Errorf("pulled %q, want %q", got, c.levers)
				}
				got := ended(t, herd, id)
				for _, want := range c.ended {
					if !strings.Contains(got, want) {
						t.Errorf("it ended so: %q, want %q", got, want)
					}
				}
				var last time.Time
				for _, p := range herd.Fake.Pulls() {
					if p.Lever != "power-on" && p.At.Sub(last) < fleet.DefaultPolicy().OperationTimeout {
						t.Errorf("called again after %s", p.At.Sub(last))
					}
					last = p.At
				}
				if d, err := herd.Fake.Get(t.Context(), herd.Host(id).ID); err != nil || d.Status != fleet.ProviderStatusActive {
					t.Errorf("the machine is %s, %v", d.Status, err)
				}
			})
		})
	}
}

// TestAReleaseMeanwhile: a machine that cannot be given back while it is being made is tried again.
// Any other refusal is final.
func TestAReleaseMeanwhile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status fleet.ProviderStatus
		lasts  time.Duration
		levers string
		ended  string
	}{
		"it is reinstalled": {fleet.ProviderStatusCreating, 20 * time.Minute, "release", "operation done: release (operation 1): the provider does not have it any more"},
		"for ever": {
			fleet.ProviderStatusCreating, 5 * time.Hour, "", "operation failed: release (operation 1): it was not accepted until",
		},
		"it is locked": {fleet.ProviderStatusActive, 20 * time.Minute, "", "operation failed: release (operation 1): not now"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := bench(t, 2, operations.Options{}, nil, nil)
				id := herd.Machines()[0]
				herd.Fake.Provisioning = c.lasts
				defer herd.Start(handler)()
				time.Sleep(5 * time.Minute)
				until := time.Now().Add(c.lasts)
				herd.Fake.Change(herd.Host(id).ID, func(e *provider.Entry) bool {
					e.Status, e.CreatedAt = c.status, time.Now()
					return true
				})
				herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
					if at == shepherdtest.Pulling && time.Now().Before(until) {
						return fleet.Errorf(fleet.KindConflict, "not now")
					}
					return nil
				}
				_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationRelease, "sold")
				check(t, err)
				time.Sleep(80 * time.Minute)
				if got := levers(herd); got != c.levers {
					t.Errorf("pulled %q, want %q", got, c.levers)
				}
				if got := ended(t, herd, id); !strings.Contains(got, c.ended) {
					t.Errorf("it ended so: %q, want %q", got, c.ended)
				}
			})
		})
	}
}

// TestADeadProcessHasCalled: a process that dies after it has committed an attempt, or one of the
// previous release that did so again and again, may have called. It is called once more at most.
func TestADeadProcessHasCalled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		attempts int
		levers   string
		ended    string
	}{
		"one attempt":   {1, "reboot", "operation done: reboot (operation 1): the provider has accepted it"},
		"many attempts": {5, "", "operation failed: reboot (operation 1): metal may have done it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := bench(t, 2, operations.Options{}, nil, nil)
				id := herd.Machines()[0]
				stop := herd.Start()
				time.Sleep(5 * time.Minute)
				herd.Install(id)()
				_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationReboot, "new firmware")
				check(t, err)
				loop, err := shepherd.New(herd.DB, handler, shepherd.DefaultConfig(), shepherd.Options{Host: "dies"})
				check(t, err)
				holder, err := loop.Open(t.Context())
				check(t, err)
				tasks, _, err := holder.Claim(t.Context(), 1)
				check(t, err)
				for range c.attempts {
					check(t, tasks[0].Work.Note(t.Context(), bmdb.BeginOperation(1, "")))
				}
				stop()
				begun := time.Now()
				defer herd.Start(handler)()
				time.Sleep(40 * time.Minute)
				if got := levers(herd); got != c.levers {
					t.Errorf("pulled %q, want %q", got, c.levers)
				}
				if p := herd.Fake.Pulls(); len(p) > 0 && p[0].At.Sub(begun) < fleet.DefaultPolicy().OperationTimeout-time.Minute {
					t.Errorf("called after %s", p[0].At.Sub(begun))
				}
				if got := ended(t, herd, id); !strings.Contains(got, c.ended) {
					t.Errorf("it ended so: %q, want %q", got, c.ended)
				}
			})
		})
	}
}
