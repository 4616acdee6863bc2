package operations_test

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// keeper is a provider whose machines stay: it has no levers.
type keeper struct{ provider.Provider }

func (keeper) KeepsMachines() bool { return true }

// cleaner answers with its errors in turn, and the last of them from then on.
type cleaner struct {
	errs  []error
	did   string
	calls int
}

func (c *cleaner) Clean(context.Context, *bmdb.Work, provider.Entry) (string, error) {
	c.calls++
	did := cmp.Or(c.did, "the agent was stopped, and its files were removed")
	if len(c.errs) == 0 {
		return did, nil
	}
	err := c.errs[0]
	if len(c.errs) > 1 {
		c.errs = c.errs[1:]
	}
	return did, err
}

// reinstallAsked installs a host, and asks for a reinstall. Somebody who is to start an agent for
// that may try.
func reinstallAsked(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID, try func(*bmdb.Work)) {
	t.Helper()
	herd.Install(id)()
	time.Sleep(time.Second) // what is of the instant at which the system came up tells nothing
	image := herd.Record(id).InstallRequest.Image
	_, err := herd.DB.RequestInstall(t.Context(), "ada", id, fleet.InstallRequest{Image: image}, true)
	check(t, err)
	if try != nil {
		session, err := herd.DB.StartSession(t.Context(), bmdb.SessionOptions{Component: "test", Host: "test", Lease: 5 * time.Second})
		check(t, err)
		claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1})
		check(t, err)
		if len(claim.Works) != 1 {
			t.Fatal("no agent is to be started")
		}
		try(claim.Works[0])
		check(t, session.Close(t.Context(), "done"))
	}
}

// calledOff is reinstallAsked for a reinstall that is called off then.
func calledOff(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID, try func(*bmdb.Work)) {
	t.Helper()
	reinstallAsked(t, herd, id, try)
	_, err := bmdbtest.CancelInstall(t.Context(), herd.DB, "ada", id, "the wrong image")
	check(t, err)
}

// begins is the begin of a start of an agent.
func begins(t *testing.T, work *bmdb.Work) (generation fleet.TakeoverGeneration) {
	t.Helper()
	check(t, work.Note(t.Context(), bmdb.MintTakeover(0, &generation)))
	return generation
}

// TestHostsOfAList: a host is left clean, and one that cannot be reached blocks nobody for ever.
func TestHostsOfAList(t *testing.T) {
	t.Parallel()
	away := fleet.Errorf(fleet.KindTimeout, "the host did not accept a connection")
	for name, c := range map[string]struct {
		errs    []error
		did     string
		prepare func(*testing.T, *shepherdtest.Herd, fleet.MachineID)
		ended   string
		gone    bool
	}{
		"clean":                         {ended: "the agent was stopped, and its files were removed", gone: true},
		"away for a while":              {errs: []error{away, away, nil}, ended: "the agent was stopped", gone: true},
		"it belongs to another machine": {did: "the host was left as it is", ended: "(operation 1): the host was left as it is", gone: true},
		"installed": {
			prepare: func(_ *testing.T, herd *shepherdtest.Herd, id fleet.MachineID) { herd.Install(id)() },
			errs:    []error{away}, ended: "the host runs an installed system, on which no agent of ours is", gone: true,
		},
		"its reinstall was called off before an agent was started": {
			prepare: func(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID) {
				t.Helper()
				calledOff(t, herd, id, nil)
			},
			errs: []error{away}, ended: "the host runs an installed system, on which no agent of ours is", gone: true,
		},
		"its reinstall has not reached it": {
			prepare: func(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID) {
				t.Helper()
				reinstallAsked(t, herd, id, nil)
			},
			errs: []error{away}, ended: "the host runs an installed system, on which no agent of ours is", gone: true,
		},
		"an agent may have been started for its reinstall": {
			prepare: func(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID) {
				t.Helper()
				reinstallAsked(t, herd, id, func(work *bmdb.Work) { begins(t, work) })
			},
			errs: []error{away}, ended: "take it off the list, and then `ironherd machine forget ID --reason WHY`",
		},
		"an agent was started for its reinstall": {
			prepare: func(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID) {
				t.Helper()
				reinstallAsked(t, herd, id, func(work *bmdb.Work) {
					started := fleet.AgentStarted{TakeoverGeneration: begins(t, work), PublicKey: []byte("key"), BootID: "b"}
					check(t, work.Finish(t.Context(), bmdb.SetAgentStarted(started)))
				})
			},
			errs: []error{away}, ended: "take it off the list, and then `ironherd machine forget ID --reason WHY`",
		},
		"its reinstall was called off, and an agent may have been started": {
			prepare: func(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID) {
				t.Helper()
				calledOff(t, herd, id, func(work *bmdb.Work) { begins(t, work) })
			},
			ended: "the agent was stopped, and its files were removed", gone: true,
		},
		"it is marked as installed": {
			prepare: func(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID) {
				t.Helper()
				check(t, herd.DB.ListenerAlive(t.Context(), time.Hour, 30*time.Second))
				time.Sleep(time.Hour)
				_, err := bmdbtest.Act(t.Context(), herd.DB, "ada", id, bmdb.PlanRequest{Verb: fleet.VerbMarkInstalled, Reason: "installed by hand"})
				check(t, err)
			},
			ended: "the agent was stopped, and its files were removed", gone: true,
		},
		"it does not answer": {errs: []error{away}, ended: "take it off the list, and then `ironherd machine forget ID --reason WHY`"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				clean := &cleaner{errs: slices.Clone(c.errs), did: c.did}
				herd, handler := bench(t, 2, operations.Options{Cleaner: clean}, nil,
					func(f *shepherdtest.FakeProvider) provider.Provider { return keeper{f} })
				id := herd.Machines()[0]
				capacity := herd.Record(id).Provided.Capacity
				stop := herd.Start(handler)
				time.Sleep(5 * time.Minute)
				if stop(); c.prepare != nil {
					c.prepare(t, herd, id)
				}
				_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationRelease, "sold")
				check(t, err)
				defer herd.Start(handler)()
				time.Sleep(70 * time.Minute)
				if got := strings.ReplaceAll(ended(t, herd, id), string(id), "ID"); !strings.Contains(got, c.ended) {
					t.Errorf("it ended so: %q, want %q", got, c.ended)
				}
				if state, _ := herd.State(id); (state == "") != c.gone {
					t.Errorf("the machine is %q", state)
				}
				penalties, err := herd.DB.Penalties(t.Context(), herd.Name)
				check(t, err)
				if p := penalties[capacity]; c.gone && (!p.ForEver() || !strings.Contains(p.Cause, "ada: sold")) {
					t.Errorf("the capacity is kept out by %+v", p)
				}
			})
		})
	}
}
