package operations_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

func replacing(p *fleet.Policy) { p.ReplaceFailed, p.SuspectShare = true, 0 }

// silent is a host of which nothing is heard any more.
func silent(h *shepherdtest.Host) { h.Hangs = true }

// says has the provider say that of machines, also to the database.
func says(t *testing.T, herd *shepherdtest.Herd, status fleet.ProviderStatus, machines ...fleet.MachineID) {
	t.Helper()
	var changes []bmdb.Change
	for _, id := range machines {
		herd.Fake.Change(herd.Host(id).ID, func(e *provider.Entry) bool { e.Status = status; return true })
		fact := *herd.Record(id).Provided
		fact.Status = status
		changes = append(changes, bmdb.SetProvided(id, herd.Host(id).ID, fact))
	}
	set(t, herd, changes...)
}

// decided is what is decided about the operations of a machine.
func decided(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID) lifecycle.Decision {
	t.Helper()
	d, err := herd.DB.MachineDetails(t.Context(), id)
	check(t, err)
	return lifecycle.Decide(d.Record, d.Environment, d.Now).For(fleet.ProcessOperation)
}

// TestAMachineThatIsHeardIsNotReplaced: the provider gives it up, and its agent speaks. The policy
// has it replaced once it is silent.
func TestAMachineThatIsHeardIsNotReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 4, operations.Options{}, replacing, nil)
		id := herd.Machines()[0]
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		says(t, herd, fleet.ProviderStatusFailed, id)
		time.Sleep(3 * time.Hour)
		if got := levers(herd); got != "" || herd.Record(id).Operation != nil {
			t.Fatalf("its agent speaks: pulled %q, operation %+v", got, herd.Record(id).Operation)
		}
		if state, why := herd.State(id); state != fleet.StateFailed || !strings.Contains(why, "its agent is heard, so the policy does not have it replaced now") {
			t.Errorf("the machine is %s: %s", state, why)
		}
		herd.Change(id, silent)
		time.Sleep(5 * time.Minute)
		if got := levers(herd); got != "" {
			t.Errorf("silent for five minutes: pulled %q", got)
		}
		time.Sleep(10 * time.Minute)
		if got := levers(herd); got != "release" {
			t.Errorf("silent for 15 minutes: pulled %q", got)
		}
	})
}

// TestManyThatAreGivenUpTogether are none that the policy replaces: the provider may be wrong.
func TestManyThatAreGivenUpTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 5, operations.Options{}, replacing, nil)
		broken := herd.Machines()[:3]
		says(t, herd, fleet.ProviderStatusFailed, broken...)
		defer herd.Start(handler)()
		time.Sleep(2 * time.Hour)
		if got := levers(herd); got != "" {
			t.Fatalf("pulled %q", got)
		}
		for _, id := range broken {
			if d := decided(t, herd, id); !strings.Contains(d.Reason, "metal has given up 3 of its 5 machines (those in quarantine, and those that are given back, count), and may be wrong") {
				t.Errorf("it is told: %s", d.Reason)
			}
		}
		if err := bmdbtest.Quarantine(t.Context(), herd.DB, "ada", broken[0], "it is to be kept"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		if got := levers(herd); got != "" {
			t.Fatalf("one of the three is in quarantine: pulled %q", got)
		}
		if err := bmdbtest.Unquarantine(t.Context(), herd.DB, "ada", broken[0], "it is well"); err != nil {
			t.Fatal(err)
		}
		says(t, herd, fleet.ProviderStatusActive, broken[0])
		time.Sleep(20 * time.Minute)
		if got := levers(herd); got != "release release" {
			t.Errorf("two of five are given up: pulled %q", got)
		}
	})
}

// flipping is a provider at whose calls something happens before they wait for their turn.
type flipping struct {
	paced
	flip func()
}

func (f flipping) Release(ctx context.Context, id fleet.ProviderID) error {
	f.flip()
	if err := f.wait(ctx, http.MethodDelete); err != nil {
		return err
	}
	return f.FakeProvider.Release(ctx, id)
}

// TestWhatThePolicyDoesNotWantAnyMore is not sent, however far it has come (rule 8).
func TestWhatThePolicyDoesNotWantAnyMore(t *testing.T) {
	t.Parallel()
	const unwanted = "operation failed: replace (operation 1): the policy does not want it any more"
	for name, c := range map[string]struct {
		// ask is at which question to the provider the policy is changed; 0: when the call waits.
		ask   int
		ended string
	}{
		"before it is asked for":           {1, "not ended"},
		"before its attempt is committed":  {2, unwanted},
		"while its call waits for a turn":  {0, unwanted},
		"before its attempt is made again": {-1, unwanted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var herd *shepherdtest.Herd
				var results []operations.Result
				flips := 0
				flip := func() {
					if flips++; flips > 1 {
						return
					}
					p := fleet.DefaultPolicy()
					_, err := herd.DB.SetPolicy(t.Context(), p)
					check(t, err)
				}
				atCall := func() {}
				if c.ask == 0 {
					atCall = flip
				}
				db := shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})
				p := fleet.DefaultPolicy()
				replacing(&p)
				_, err := db.SetPolicy(t.Context(), p)
				check(t, err)
				herd = shepherdtest.NewHerd(t, db, 4)
				id := herd.Machines()[0]
				sources := []operations.Source{{Name: herd.Name, Provider: flipping{newPaced(db, herd.Fake), atCall}, Config: operations.ProviderConfig{Penalty: time.Hour}}}
				handler, err := operations.New(db, sources, operations.DefaultConfig(), operations.Options{
					Observed: func(_ fleet.Operation, result operations.Result) { results = append(results, result) },
				})
				check(t, err)
				says(t, herd, fleet.ProviderStatusFailed, id)
				asked := 0
				herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
					if at == shepherdtest.Asking {
						if asked++; asked == c.ask {
							flip()
						}
					}
					if at == shepherdtest.Pulling && c.ask < 0 { // refused for now, and certainly not done
						flip()
						return fleet.Errorf(fleet.KindThrottled, "slowly")
					}
					return nil
				}
				stop := herd.Start(handler)
				time.Sleep(3 * time.Hour)
				stop()
				want := operations.ResultUnwanted
				if c.ask < 0 { // the provider may do it all the same
					want = operations.ResultFailed
				}
				if c.ended == unwanted && (len(results) == 0 || results[len(results)-1] != want) {
					t.Errorf("observed %q", results)
				}
				if flips == 0 {
					t.Fatal("the policy was not changed: the test tests nothing")
				}
				if got := ended(t, herd, id); levers(herd) != "" || !strings.HasPrefix(got, c.ended) {
					t.Errorf("pulled %q; %q", levers(herd), got)
				}
				if r := herd.Record(id); r.OpenOperation() != nil || c.ask == 1 && r.Operation != nil {
					t.Errorf("operation %+v", r.Operation)
				}
			})
		})
	}
}

// TestWhatThePolicyAsksForWaitsForRecovery: it is stopped after the policy has asked for that, and
// before the call. Nothing has failed, and it goes on when recovery does.
func TestWhatThePolicyAsksForWaitsForRecovery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 4, operations.Options{}, replacing, nil)
		id := herd.Machines()[0]
		says(t, herd, fleet.ProviderStatusFailed, id)
		asked := 0
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Asking {
				if asked++; asked == 2 {
					check(t, herd.DB.HoldRecovery(t.Context(), "alice", nil, "the provider is odd"))
				}
			}
			return nil
		}
		defer herd.Start(handler)()
		time.Sleep(3 * time.Hour)
		r := herd.Record(id)
		if got := levers(herd); got != "" || r.OperationAttempt != nil || r.OpenOperation() == nil || !r.Backoffs[fleet.ProcessOperation].Since.IsZero() {
			t.Errorf("recovery is stopped: pulled %q, attempt %+v, operation %+v, backoffs %+v", got, r.OperationAttempt, r.OpenOperation(), r.Backoffs)
		}
		if d := decided(t, herd, id); d.Verdict != lifecycle.Waiting || !strings.Contains(d.Reason, "which is stopped by alice (the provider is odd)") {
			t.Errorf("it is told: %s", d.Reason)
		}
		check(t, herd.DB.ResumeRecovery(t.Context(), "alice", "it was a fault of theirs"))
		time.Sleep(5 * time.Minute)
		if got := levers(herd); got != "release" {
			t.Errorf("recovery goes on: pulled %q", got)
		}
	})
}
