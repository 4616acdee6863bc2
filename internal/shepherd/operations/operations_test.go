package operations_test

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bench is a herd, and what carries operations out at its provider, which is p.
func bench(t *testing.T, n int, options operations.Options, policy func(*fleet.Policy), wrap func(*shepherdtest.FakeProvider) provider.Provider,
) (*shepherdtest.Herd, shepherd.Handler) {
	t.Helper()
	db := shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})
	p := fleet.DefaultPolicy()
	p.SilentAfter += 10 * time.Second // an agent is not started at the very instant of a heartbeat
	if policy != nil {
		policy(&p)
	}
	_, err := db.SetPolicy(t.Context(), p)
	check(t, err)
	herd := shepherdtest.NewHerd(t, db, n)
	var at provider.Provider = herd.Fake
	if wrap != nil {
		at = wrap(herd.Fake)
	}
	sources := []operations.Source{{Name: herd.Name, Provider: at, Config: operations.ProviderConfig{Penalty: time.Hour}}}
	handler, err := operations.New(db, sources, operations.DefaultConfig(), options)
	check(t, err)
	return herd, handler
}

func levers(herd *shepherdtest.Herd) string {
	var names []string
	for _, p := range herd.Fake.Pulls() {
		names = append(names, p.Lever)
	}
	return strings.Join(names, " ")
}

// ended returns how the operation of a machine ended, from its history: also of one that is gone.
func ended(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID) string {
	t.Helper()
	rows, err := herd.DB.History(context.WithoutCancel(t.Context()), id, 1000)
	check(t, err)
	for _, row := range rows {
		if row.Event == fleet.EventOperationDone || row.Event == fleet.EventOperationFailed {
			return string(row.Event) + ": " + row.Detail
		}
	}
	return "not ended"
}

// TestOperations: each operation, its one call, and its evidence.
func TestOperations(t *testing.T) {
	t.Parallel()
	lost := func(point shepherdtest.Point, times int, err error) func(shepherdtest.Point, fleet.CapacityID) error {
		return func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at != point || times == 0 {
				return nil
			}
			times--
			return err
		}
	}
	timeout := fleet.Errorf(fleet.KindTimeout, "no answer")
	// away is a provider that does not answer questions for a while, from the first call on; reply is
	// the answer to that call.
	away := func(lasts time.Duration, reply error) func(shepherdtest.Point, fleet.CapacityID) error {
		var since time.Time
		return func(at shepherdtest.Point, _ fleet.CapacityID) error {
			switch {
			case at == shepherdtest.Pulled && since.IsZero():
				since = time.Now()
				return reply
			case at == shepherdtest.Asking && !since.IsZero() && time.Since(since) < lasts:
				return fleet.Errorf(fleet.KindTemporary, "out of order")
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		ask    []fleet.Operation
		hook   func(shepherdtest.Point, fleet.CapacityID) error
		before func(*shepherdtest.Herd, fleet.MachineID)
		// deleting is how long the provider takes to delete a machine; zero: three minutes.
		deleting time.Duration
		// within is when it is looked at; zero: after 80 minutes.
		within time.Duration
		levers string
		ended  string
		state  fleet.State // "": it is gone
	}{
		"reboot": {
			ask: []fleet.Operation{fleet.OperationReboot}, levers: "reboot",
			ended: "operation done: reboot (operation 1): an agent was started under another boot ID", state: fleet.StateAvailable,
		},
		"power cycle": {
			ask: []fleet.Operation{fleet.OperationPowerCycle}, levers: "power-cycle", ended: "done: power-cycle", state: fleet.StateAvailable,
		},
		"power off": {
			ask: []fleet.Operation{fleet.OperationPowerOff}, levers: "power-off", ended: "the provider says that it is off", state: fleet.StateOff,
		},
		"power off and on": {
			ask:    []fleet.Operation{fleet.OperationPowerOff, fleet.OperationPowerOn},
			levers: "power-off power-on", ended: "the provider says that it is on", state: fleet.StateAvailable,
		},
		"power on while the machine is on its way off": {
			ask: []fleet.Operation{fleet.OperationPowerOff, fleet.OperationPowerOn},
			hook: func() func(shepherdtest.Point, fleet.CapacityID) error {
				pulls := 0
				return func(at shepherdtest.Point, _ fleet.CapacityID) error {
					if at == shepherdtest.Pulling {
						pulls++
					}
					if at == shepherdtest.Pulling && pulls > 1 && pulls < 4 {
						return fleet.Errorf(fleet.KindConflict, "the device is powering off")
					}
					return nil
				}
			}(),
			levers: "power-off power-on", ended: "the provider says that it is on", state: fleet.StateAvailable,
		},
		"power on of what is on": {
			ask: []fleet.Operation{fleet.OperationPowerOn}, levers: "", ended: "it is on already", state: fleet.StateAvailable,
		},
		"power off twice": {
			ask:    []fleet.Operation{fleet.OperationPowerOff, fleet.OperationPowerOff},
			levers: "power-off", ended: "it is off already", state: fleet.StateOff,
		},
		"power off what somebody else has switched off": {
			ask: []fleet.Operation{fleet.OperationPowerOff},
			before: func(h *shepherdtest.Herd, id fleet.MachineID) {
				if err := h.Fake.PowerOff(context.Background(), h.Record(id).ProviderID); err != nil {
					panic(err)
				}
			},
			levers: "power-off", ended: "it is off already", state: fleet.StateOff,
		},
		"release": {
			ask: []fleet.Operation{fleet.OperationRelease}, levers: "release", ended: "the provider does not have it any more",
		},
		"the reply of a release is lost": {
			ask: []fleet.Operation{fleet.OperationRelease}, hook: lost(shepherdtest.Pulled, 1, timeout),
			levers: "release", ended: "the provider does not have it any more",
		},
		"the provider is away after it has accepted a release": {
			ask: []fleet.Operation{fleet.OperationRelease}, hook: away(40*time.Minute, nil),
			levers: "release", ended: "the provider does not have it any more",
		},
		"the provider is away after the reply of a release was lost, for longer than an operation is tried": {
			ask: []fleet.Operation{fleet.OperationRelease}, hook: away(70*time.Minute, timeout),
			levers: "release", ended: "the provider does not have it any more",
		},
		"the provider is away after it has accepted a release, and deletes the machine when it is back": {
			ask: []fleet.Operation{fleet.OperationRelease}, hook: away(40*time.Minute, nil), deleting: 50 * time.Minute,
			levers: "release", ended: "the provider does not have it any more",
		},
		"the provider is away after it has accepted a reboot of a machine that does not come back": {
			ask: []fleet.Operation{fleet.OperationReboot}, hook: away(40*time.Minute, nil),
			before: func(h *shepherdtest.Herd, id fleet.MachineID) {
				h.Change(id, func(h *shepherdtest.Host) { h.Dead = true })
			},
			levers: "reboot", ended: "a sign of life with another boot ID was not seen within 15m0s; the provider says that the machine is active",
			state: fleet.StateSilent,
		},
		"a release that is never heard is given up, by what the provider says of the machine": {
			ask: []fleet.Operation{fleet.OperationRelease}, hook: lost(shepherdtest.Pulling, -1, timeout),
			levers: "", ended: "operation failed: release (operation 1): it was not accepted until", state: fleet.StateAvailable,
		},
		"the reply of a reboot is lost": {
			ask: []fleet.Operation{fleet.OperationReboot}, hook: lost(shepherdtest.Pulled, 1, timeout),
			levers: "reboot", ended: "operation done: reboot", state: fleet.StateAvailable,
		},
		"a provider that is throttled is asked again": {
			ask: []fleet.Operation{fleet.OperationReboot}, hook: lost(shepherdtest.Pulling, 4, fleet.Errorf(fleet.KindThrottled, "slowly")),
			levers: "reboot", ended: "operation done: reboot", state: fleet.StateAvailable,
		},
		"a provider that stays away is given up": {
			ask: []fleet.Operation{fleet.OperationReboot}, hook: lost(shepherdtest.Asking, -1, fleet.Errorf(fleet.KindTemporary, "out of order")),
			levers: "", ended: "operation failed: reboot (operation 1): it was not accepted until", state: fleet.StateAvailable,
		},
		"a database that takes nothing for longer than an operation is tried": {
			ask: []fleet.Operation{fleet.OperationReboot},
			hook: func() func(shepherdtest.Point, fleet.CapacityID) error {
				var since time.Time
				return func(at shepherdtest.Point, _ fleet.CapacityID) error {
					switch {
					case at == shepherdtest.Asking && since.IsZero():
						since = time.Now()
						return timeout
					case at == shepherdtest.Asking && time.Since(since) < 65*time.Minute:
						return bmdb.Unavailable("its disk is full")
					}
					return nil
				}
			}(),
			levers: "reboot", ended: "operation done: reboot", state: fleet.StateAvailable,
		},
		"a definite refusal ends it, in the provider's words": {
			ask: []fleet.Operation{fleet.OperationReboot}, hook: lost(shepherdtest.Pulling, -1, fleet.Errorf(fleet.KindConflict, "the device is locked")),
			levers: "", ended: "operation failed: reboot (operation 1): the device is locked", state: fleet.StateAvailable,
		},
		"a reboot that comes after the agent was heard again": {
			ask:    []fleet.Operation{fleet.OperationReboot},
			before: func(h *shepherdtest.Herd, _ fleet.MachineID) { h.Fake.RestartLag = 50 * time.Second },
			within: 5 * time.Minute, levers: "reboot",
			ended: "operation done: reboot (operation 1): an agent was started under another boot ID", state: fleet.StateAvailable,
		},
		"a reboot that comes after another agent was started": {
			ask: []fleet.Operation{fleet.OperationReboot},
			before: func(h *shepherdtest.Herd, id fleet.MachineID) {
				h.Fake.RestartLag = 3 * time.Minute
				h.Change(id, func(h *shepherdtest.Host) { h.Agent = false })
			},
			within: 8 * time.Minute, levers: "reboot",
			ended: "operation done: reboot (operation 1): an agent was started under another boot ID", state: fleet.StateAvailable,
		},
		"a reboot that never comes": {
			ask:    []fleet.Operation{fleet.OperationReboot},
			before: func(h *shepherdtest.Herd, _ fleet.MachineID) { h.Fake.RestartLag = -1 },
			levers: "reboot", ended: "within 15m0s the machine was not restarted: its agent is heard", state: fleet.StateAvailable,
		},
		"no evidence in its time": {
			ask: []fleet.Operation{fleet.OperationReboot},
			before: func(h *shepherdtest.Herd, id fleet.MachineID) {
				h.Change(id, func(h *shepherdtest.Host) { h.Dead = true })
			},
			levers: "reboot", ended: "a sign of life with another boot ID was not seen within 15m0s; the provider says that the machine is active",
			state: fleet.StateSilent,
		},
		"a machine that went by itself": {
			ask: []fleet.Operation{fleet.OperationReboot},
			before: func(h *shepherdtest.Herd, id fleet.MachineID) {
				h.Fake.Change(h.Host(id).ID, func(*provider.Entry) bool { return false })
			},
			levers: "", ended: "`ironherd machine forget ID --reason WHY`", state: fleet.StateMissing,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := bench(t, 2, operations.Options{}, nil, nil)
				herd.Fake.Deleting = cmp.Or(c.deleting, 3*time.Minute)
				id := herd.Machines()[0]
				defer herd.Start(handler)()
				time.Sleep(5 * time.Minute)
				if c.before != nil {
					c.before(herd, id)
				}
				herd.Fake.Hook = c.hook
				for i, o := range c.ask {
					_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, o, "new firmware")
					check(t, err)
					if i < len(c.ask)-1 {
						time.Sleep(10 * time.Minute)
					}
				}
				time.Sleep(cmp.Or(c.within, 80*time.Minute))
				if got := levers(herd); got != c.levers {
					t.Errorf("pulled %q, want %q", got, c.levers)
				}
				if got := strings.ReplaceAll(ended(t, herd, id), string(id), "ID"); !strings.Contains(got, c.ended) {
					t.Errorf("it ended so: %q, want %q", got, c.ended)
				}
				if state, reason := herd.State(id); state != c.state {
					t.Errorf("the machine is %q (%s), want %q", state, reason, c.state)
				}
				if findings, err := herd.DB.Check(t.Context()); err != nil || len(findings) > 0 {
					t.Errorf("findings %v, %v", findings, err)
				}
			})
		})
	}
}

// TestCrashes: the process dies at each step of an operation, and another one goes on. Nothing is
// forgotten, and nothing is done twice: a machine that was restarted shows it.
func TestCrashes(t *testing.T) {
	t.Parallel()
	for o, at := range map[fleet.Operation]map[shepherdtest.Point]string{
		fleet.OperationReboot: {
			shepherdtest.Asking: "reboot", shepherdtest.Pulling: "reboot", shepherdtest.Pulled: "reboot",
		},
		fleet.OperationRelease: {
			shepherdtest.Asking: "release", shepherdtest.Pulling: "release", shepherdtest.Pulled: "release",
		},
		fleet.OperationReplace: {shepherdtest.Pulled: "release"},
		fleet.OperationPowerOff: {
			shepherdtest.Asking: "power-off", shepherdtest.Pulling: "power-off", shepherdtest.Pulled: "power-off",
		},
	} {
		for point, want := range at {
			t.Run(string(o)+"/"+string(point), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					herd, handler := bench(t, 2, operations.Options{}, nil, nil)
					herd.Fake.Deleting = time.Minute
					id := herd.Machines()[0]
					stop := herd.Start()
					time.Sleep(5 * time.Minute)
					_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, o, "new firmware")
					check(t, err)
					loop, err := shepherd.New(herd.DB, handler, shepherd.DefaultConfig(), shepherd.Options{Host: "dies"})
					check(t, err)
					holder, err := loop.Open(t.Context())
					check(t, err)
					tasks, _, err := holder.Claim(t.Context(), 1)
					check(t, err)
					if len(tasks) != 1 {
						t.Fatalf("claimed %d", len(tasks))
					}
					herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
						if at == point {
							return fleet.ErrLeaseLost // what a process does that is killed here: nothing more
						}
						return nil
					}
					tasks[0].Act(t.Context())
					stop() // nothing is committed, and nobody extends its session
					herd.Fake.Hook = nil
					defer herd.Start(handler)()
					time.Sleep(40 * time.Minute)
					if got := levers(herd); got != want {
						t.Errorf("pulled %q, want %q", got, want)
					}
					if got := ended(t, herd, id); !strings.HasPrefix(got, "operation done: "+string(o)) {
						t.Errorf("it ended so: %q", got)
					}
				})
			})
		}
	}
}

// TestAPersonReplaces: the capacity of a machine that its provider gave up waits, although the
// provider says in between that it deletes the machine; that of another machine does not.
func TestAPersonReplaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 2, operations.Options{}, nil, nil)
		herd.Fake.Deleting = 3 * time.Minute
		all := herd.Machines()
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		gaveUp := func(p *provider.Entry) bool {
			p.Status, p.Detail = fleet.ProviderStatusFailed, "broken"
			return true
		}
		herd.Fake.Change(herd.Host(all[0]).ID, gaveUp)
		fact := *herd.Record(all[0]).Provided
		fact.Status, fact.Detail = fleet.ProviderStatusFailed, "broken"
		set(t, herd, bmdb.SetProvided(all[0], herd.Host(all[0]).ID, fact))
		for _, id := range all {
			_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationReplace, "the outage of rack 4")
			check(t, err)
		}
		time.Sleep(10 * time.Minute)
		penalties, err := herd.DB.Penalties(t.Context(), herd.Name)
		check(t, err)
		if p := penalties[fact.Capacity]; len(penalties) != 1 || p.ForEver() || time.Until(p.Until) < 50*time.Minute {
			t.Errorf("penalties %v of %v", penalties, fact.Capacity)
		}
		if len(herd.Fake.Devices()) != 0 {
			t.Errorf("there are %v", herd.Fake.Devices())
		}
	})
}

// set writes facts as a pass over the provider does.
func set(t *testing.T, herd *shepherdtest.Herd, changes ...bmdb.Change) {
	t.Helper()
	session, err := herd.DB.StartSession(t.Context(), bmdb.SessionOptions{Component: "test", Host: "test", Lease: 5 * time.Second})
	check(t, err)
	claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessUpdate, Providers: []fleet.ProviderName{herd.Name}, Limit: 1})
	check(t, err)
	if len(claim.Works) != 1 {
		t.Fatal("no pass is due")
	}
	check(t, claim.Works[0].Finish(t.Context(), changes...))
	check(t, session.Close(t.Context(), "done"))
}
