package recoverer_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/recoverer"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newHerd returns machines whose agents speak, under a policy, with a recoverer that is not
// running.
func newHerd(t *testing.T, n int, policy func(*fleet.Policy)) (*shepherdtest.Herd, shepherd.Handler) {
	t.Helper()
	return newHerdWith(t, n, policy, bmdb.Options{})
}

func newHerdWith(t *testing.T, n int, policy func(*fleet.Policy), options bmdb.Options) (*shepherdtest.Herd, shepherd.Handler) {
	t.Helper()
	db := shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), options)
	p := fleet.DefaultPolicy()
	if policy != nil {
		policy(&p)
	}
	_, err := db.SetPolicy(t.Context(), p)
	check(t, err)
	herd := shepherdtest.NewHerd(t, db, n)
	handler, err := recoverer.New(db, []recoverer.Source{{Name: herd.Name, Provider: herd.Fake}}, recoverer.DefaultConfig(), recoverer.Options{})
	check(t, err)
	return herd, handler
}

func updaterOf(t *testing.T, herd *shepherdtest.Herd) shepherd.Handler {
	t.Helper()
	h, err := updater.New(herd.DB, []updater.Source{{Name: herd.Name, Provider: herd.Fake, Config: updater.DefaultConfig()}}, updater.Options{})
	check(t, err)
	return h
}

// levers returns what was pulled at a machine, in order.
func levers(herd *shepherdtest.Herd, id fleet.MachineID) string {
	var names []string
	for _, p := range herd.Fake.Pulls() {
		if p.ID == herd.Host(id).ID {
			names = append(names, p.Lever)
		}
	}
	return strings.Join(names, " ")
}

// events returns the history's details of one event, oldest first.
func events(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID, event fleet.Event) []string {
	t.Helper()
	rows, err := herd.DB.History(context.WithoutCancel(t.Context()), id, 1000)
	check(t, err)
	var details []string
	for _, row := range slices.Backward(rows) {
		if row.Event == event {
			details = append(details, row.Detail)
		}
	}
	return details
}

// TestRungs: each rung brings the machine back that it can bring back, and the evidence is in
// history.
func TestRungs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		breaks func(*shepherdtest.Host)
		policy func(*fleet.Policy)
		fault  func(shepherdtest.Point, fleet.CapacityID) error
		// levers that are pulled, the state in the end, and what history says of the evidence.
		levers   string
		state    fleet.State
		evidence string
	}{
		"the agent dies: it is started again": {
			breaks: func(h *shepherdtest.Host) { h.Agent = false }, state: fleet.StateAvailable,
			evidence: "after the step agent-start, with the same boot ID",
		},
		"the host hangs: it is rebooted": {
			breaks: func(h *shepherdtest.Host) { h.Hangs = true }, levers: "reboot", state: fleet.StateAvailable,
			evidence: "after the step agent-start, with another boot ID",
		},
		"the disk is lost, and the policy allows a reinstall": {
			breaks: func(h *shepherdtest.Host) { h.Corrupt = true }, levers: "reboot reboot power-cycle reinstall",
			policy: func(p *fleet.Policy) { p.RecoveryReinstalls = 1 },
			state:  fleet.StateAvailable, evidence: "with another boot ID",
		},
		"the disk is lost, and no policy allows it": {
			breaks: func(h *shepherdtest.Host) { h.Corrupt = true }, levers: "reboot reboot power-cycle", state: fleet.StateQuarantined,
		},
		"the host is dead: a person looks at it": {
			breaks: func(h *shepherdtest.Host) { h.Dead = true }, levers: "reboot reboot power-cycle", state: fleet.StateQuarantined,
		},
		"the policy allows nothing: an agent is tried for ever": {
			breaks: func(h *shepherdtest.Host) { h.Dead = true }, levers: "",
			policy: func(p *fleet.Policy) { p.RecoveryReboots, p.RecoveryPowerCycles = 0, 0 }, state: fleet.StateSilent,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := newHerd(t, 3, c.policy)
				herd.Fake.Provisioning = time.Minute
				id := herd.Machines()[0]
				defer herd.Start(handler, updaterOf(t, herd))()
				time.Sleep(5 * time.Minute)
				herd.Change(id, c.breaks)
				time.Sleep(100 * time.Minute)
				if got := levers(herd, id); got != c.levers {
					t.Errorf("pulled %q, want %q", got, c.levers)
				}
				if state, reason := herd.State(id); state != c.state {
					t.Errorf("the machine is %s (%s), want %s", state, reason, c.state)
				}
				if got := events(t, herd, id, fleet.EventRepaired); c.evidence != "" && (len(got) == 0 || !strings.HasSuffix(got[len(got)-1], c.evidence)) {
					t.Errorf("evidence %q, want %q", got, c.evidence)
				}
				if q := herd.Record(id).Quarantine; c.levers == "reboot reboot power-cycle" && q != nil && !strings.Contains(q.Reason, "2 reboots, 1 power cycle") {
					t.Errorf("the quarantine does not say which steps failed: %q", q.Reason)
				}
				if q := herd.Record(id).Quarantine; c.state == fleet.StateQuarantined && (q == nil || !strings.Contains(q.Reason, "quarantined")) {
					t.Errorf("the quarantine is %+v", q)
				}
				for _, other := range herd.Machines()[1:] {
					if state, _ := herd.State(other); state != fleet.StateAvailable || levers(herd, other) != "" {
						t.Errorf("another machine is %s, and %q was done to it", state, levers(herd, other))
					}
				}
			})
		})
	}
}

// TestAnswers: what the provider's answers mean for the ladder.
func TestAnswers(t *testing.T) {
	t.Parallel()
	first := func(n int, point shepherdtest.Point, err error) func() func(shepherdtest.Point, fleet.CapacityID) error {
		return func() func(shepherdtest.Point, fleet.CapacityID) error {
			left := n
			return func(at shepherdtest.Point, _ fleet.CapacityID) error {
				if at != point || left == 0 {
					return nil
				}
				left--
				return err
			}
		}
	}
	for name, c := range map[string]struct {
		hook   func() func(shepherdtest.Point, fleet.CapacityID) error
		breaks func(*shepherdtest.Host)
		levers string
		state  fleet.State
		steps  string // as counted in the end
		// erases: the policy allows a reinstall. updated: what the provider lists is recorded, too. off:
		// the machine is found off.
		erases, updated, off bool
	}{
		"a provider that does not answer costs no step": {
			hook:   first(5, shepherdtest.Asking, fleet.Errorf(fleet.KindTemporary, "out of order")),
			breaks: func(h *shepherdtest.Host) { h.Hangs = true }, levers: "reboot", state: fleet.StateAvailable, steps: "reboot 1",
		},
		"nor does one that is throttled": {
			hook:   first(5, shepherdtest.Pulling, &fleet.Error{Kind: fleet.KindThrottled, Message: "slowly", RetryAfter: time.Minute}),
			breaks: func(h *shepherdtest.Host) { h.Hangs = true }, levers: "reboot", state: fleet.StateAvailable, steps: "reboot 1",
		},
		"a step that is refused for good is followed by the next": {
			hook:   first(2, shepherdtest.Pulling, fleet.Errorf(fleet.KindUnsupported, "not on this plan")),
			breaks: func(h *shepherdtest.Host) { h.Hangs = true }, levers: "power-cycle", state: fleet.StateAvailable, steps: "power-cycle 1, reboot 2",
		},
		"a machine that is off is switched on, and not rebooted": {
			hook: first(0, shepherdtest.Pulling, nil), off: true, breaks: func(h *shepherdtest.Host) { h.Hangs = true },
			levers: "power-off power-cycle", state: fleet.StateAvailable, steps: "power-cycle 1",
		},
		"all are refused: no endless loop": {
			hook:   first(-1, shepherdtest.Pulling, fleet.Errorf(fleet.KindUnsupported, "not on this plan")),
			breaks: func(h *shepherdtest.Host) { h.Hangs = true }, levers: "", state: fleet.StateQuarantined, steps: "power-cycle 1, reboot 2",
		},
		"the reply is lost: no second reboot": {
			hook:   first(1, shepherdtest.Pulled, fleet.Errorf(fleet.KindTimeout, "no answer")),
			breaks: func(h *shepherdtest.Host) { h.Hangs = true }, levers: "reboot", state: fleet.StateAvailable, steps: "reboot 1",
		},
		"a power cycle that ends half-way is finished": {
			hook: func() func(shepherdtest.Point, fleet.CapacityID) error {
				n := 0
				return func(at shepherdtest.Point, _ fleet.CapacityID) error {
					if at == shepherdtest.Pulled {
						if n++; n == 3 { // after two reboots
							return fleet.Errorf(fleet.KindTimeout, "no answer")
						}
					}
					return nil
				}
			},
			breaks: func(h *shepherdtest.Host) { h.Dead = true }, levers: "reboot reboot power-cycle power-on", state: fleet.StateQuarantined,
			steps: "power-cycle 1, reboot 2",
		},
		"a power cycle that ends half-way is finished after an outage of the provider, too": {
			hook: func() func(shepherdtest.Point, fleet.CapacityID) error {
				n, back := 0, time.Time{}
				return func(at shepherdtest.Point, _ fleet.CapacityID) error {
					if at == shepherdtest.Pulled {
						if n++; n == 3 { // after two reboots
							back = time.Now().Add(time.Hour)
							return fleet.Errorf(fleet.KindTimeout, "no answer")
						}
					}
					if (at == shepherdtest.Asking || at == shepherdtest.Listing) && time.Now().Before(back) {
						return fleet.Errorf(fleet.KindTemporary, "no answer")
					}
					return nil
				}
			},
			breaks: func(h *shepherdtest.Host) { h.Dead = true }, levers: "reboot reboot power-cycle power-on reinstall", state: fleet.StateQuarantined,
			steps: "power-cycle 1, reboot 2, reinstall 1", erases: true, updated: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := newHerd(t, 3, func(p *fleet.Policy) {
					if c.erases {
						p.RecoveryReinstalls = 1
					}
				})
				id := herd.Machines()[0]
				handlers := []shepherd.Handler{handler}
				if c.updated {
					handlers = append(handlers, updaterOf(t, herd))
				}
				defer herd.Start(handlers...)()
				time.Sleep(5 * time.Minute)
				herd.Fake.Hook = c.hook()
				herd.Change(id, c.breaks)
				if c.off {
					check(t, herd.Fake.PowerOff(t.Context(), herd.Host(id).ID))
				}
				time.Sleep(3 * time.Hour)
				if got := levers(herd, id); got != c.levers {
					t.Errorf("pulled %q, want %q", got, c.levers)
				}
				if state, reason := herd.State(id); state != c.state {
					t.Errorf("the machine is %s (%s), want %s", state, reason, c.state)
				}
				if got := steps(herd.Record(id).Repair); got != c.steps {
					t.Errorf("steps are counted as %q, want %q", got, c.steps)
				}
			})
		})
	}
}

// TestCrashes: the process dies at each step of a repair, and another one goes on. No step has its
// effect twice, and none is forgotten.
func TestCrashes(t *testing.T) {
	t.Parallel()
	for point, want := range map[shepherdtest.Point]string{
		shepherdtest.Asking:  "reboot", // nothing was committed
		shepherdtest.Pulling: "reboot", // the step was committed: the second one reboots
		shepherdtest.Pulled:  "reboot", // the step had its effect
	} {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := newHerd(t, 3, nil)
				id := herd.Machines()[0]
				stop := herd.Start()
				time.Sleep(5 * time.Minute)
				herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
				task := claim(t, herd, handler)
				herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
					if at == point {
						return fleet.ErrLeaseLost // what a process does that is killed here: nothing more
					}
					return nil
				}
				task.Act(t.Context())
				stop() // nothing is committed, and nobody extends its session
				herd.Fake.Hook = nil
				defer herd.Start(handler)()
				time.Sleep(time.Hour)
				if state, reason := herd.State(id); state != fleet.StateAvailable {
					t.Errorf("the machine is %s (%s)", state, reason)
				}
				if got := levers(herd, id); got != want {
					t.Errorf("pulled %q, want %q", got, want)
				}
			})
		})
	}
}

// claim returns the first piece of work of a handler, through a session that nobody extends later.
func claim(t *testing.T, herd *shepherdtest.Herd, handler shepherd.Handler) *shepherd.Task {
	t.Helper()
	loop, err := shepherd.New(herd.DB, handler, shepherd.DefaultConfig(), shepherd.Options{Host: "dies"})
	check(t, err)
	holder, err := loop.Open(t.Context())
	check(t, err)
	for range 10000 {
		time.Sleep(2 * time.Second)
		check(t, holder.Extend(t.Context()))
		tasks, _, err := holder.Claim(t.Context(), 1)
		check(t, err)
		if len(tasks) > 0 {
			return tasks[0]
		}
	}
	t.Fatal("nothing became due")
	return nil
}

// TestAllSilentAtOnce: our listener is down, and then it answers and still hears nobody. First
// nothing is repaired at all, then recovery is stopped, and then it goes on within its limits.
func TestAllSilentAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const machines = 24
		herd, handler := newHerd(t, machines, func(p *fleet.Policy) { p.RecoveryAtOnce = 4 })
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)

		herd.SetDeaf(true)
		time.Sleep(2 * time.Hour)
		if pulls := herd.Fake.Pulls(); len(pulls) != 0 {
			t.Fatalf("while nobody could be heard: %v", pulls)
		}
		herd.SetDeaf(false)
		time.Sleep(30 * time.Minute)
		if pulls := herd.Fake.Pulls(); len(pulls) != 0 {
			t.Fatalf("they are heard again: %v", pulls)
		}

		all := herd.Machines()
		for _, id := range all[2:] { // two report as before
			herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
		}
		lost := time.Now()
		time.Sleep(50 * time.Minute)
		hold, err := bmdbtest.RecoveryHold(t.Context(), herd.DB)
		check(t, err)
		if hold == nil || !strings.Contains(hold.Reason, "probably ours") {
			t.Errorf("recovery is held by %+v", hold)
		}
		if pulls := herd.Fake.Pulls(); len(pulls) != 0 {
			t.Fatalf("recovery is stopped, and %d machines were touched", len(pulls))
		}
		time.Sleep(2 * time.Hour)
		pulls := herd.Fake.Pulls()
		for _, id := range all {
			if state, reason := herd.State(id); state != fleet.StateAvailable {
				t.Errorf("machine %s is %s (%s)", id, state, reason)
			}
		}
		if levers(herd, all[0])+levers(herd, all[1]) != "" || len(pulls) != machines-2 {
			t.Errorf("%d machines were rebooted, of which 2 report", len(pulls))
		}
		// A machine is under recovery until it is heard of again: two minutes or so.
		for i := range pulls {
			within := 0
			for _, p := range pulls[i:] {
				if p.At.Sub(pulls[i].At) < time.Minute {
					within++
				}
			}
			if within > 4 {
				t.Fatalf("%d machines were rebooted within a minute, with at most 4 under recovery at once", within)
			}
		}
		t.Logf("the first reboot came %s after the loss, the last %s", pulls[0].At.Sub(lost), pulls[len(pulls)-1].At.Sub(lost))
	})
}

// TestPeopleWin: somebody asks for something else after a piece of work was claimed. What it was to
// do to the machine is not done any more, also before its holder learns that its lease is void
// (rules 7 and 8).
func TestPeopleWin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		breaks func(*shepherdtest.Host)
		// interferes reports whether it is time for that: after a transaction of that kind.
		interferes func(herd *shepherdtest.Herd, id fleet.MachineID, kind string) bool
		levers     string
	}{
		"when the step was committed": {
			breaks: func(h *shepherdtest.Host) { h.Hangs = true },
			interferes: func(herd *shepherdtest.Herd, id fleet.MachineID, kind string) bool {
				r := herd.Record(id)
				return kind == "note" && r.Repair != nil && r.Repair.Rung == fleet.RungReboot
			},
		},
		"when a power cycle is about to be finished": {
			breaks: func(h *shepherdtest.Host) { h.Dead = true }, levers: "reboot reboot power-cycle",
			interferes: func(herd *shepherdtest.Herd, id fleet.MachineID, kind string) bool {
				p := herd.Record(id).Provided
				return kind == "claim" && p != nil && p.Status == fleet.ProviderStatusOff && herd.Record(id).Holds[fleet.LaneHost].Process == fleet.ProcessRecovery
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				person := &interfering{}
				herd, handler := newHerdWith(t, 3, nil, bmdb.Options{Observer: person})
				id := herd.Machines()[0]
				defer herd.Start(handler)()
				time.Sleep(5 * time.Minute)
				pulled := 0
				herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
					if at == shepherdtest.Pulled {
						if pulled++; pulled == 3 {
							return fleet.Errorf(fleet.KindTimeout, "no answer")
						}
					}
					return nil
				}
				person.act(func(kind string) bool {
					if !c.interferes(herd, id, kind) {
						return false
					}
					check(t, bmdbtest.BeginMaintenance(t.Context(), herd.DB, "someone", id, nil, "a new board"))
					return true
				})
				herd.Change(id, c.breaks)
				time.Sleep(2 * time.Hour)
				if person.acts() {
					t.Fatal("nobody interfered: the test tests nothing")
				}
				if got := levers(herd, id); got != c.levers {
					t.Errorf("pulled %q, want %q", got, c.levers)
				}
			})
		})
	}
}

// interfering is told of every transaction, and does something once, when it is time.
type interfering struct {
	mu    sync.Mutex
	doing func(kind string) (done bool)
}

func (i *interfering) act(doing func(kind string) (done bool)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.doing = doing
}

// acts reports whether it is to do something still.
func (i *interfering) acts() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.doing != nil
}

// Transaction implements bmdb.Observer.
func (i *interfering) Transaction(kind string, _ time.Duration, _ int, err error) {
	if err != nil || kind != "note" && kind != "claim" {
		return
	}
	i.mu.Lock()
	doing := i.doing
	i.mu.Unlock()
	if doing != nil && doing(kind) {
		i.act(nil)
	}
}

// Outcome implements bmdb.Observer.
func (*interfering) Outcome(fleet.Process, string, time.Duration) {}

// Happened implements bmdb.Observer.
func (*interfering) Happened(bmdb.Happening, string) {}
