package provisioner_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// release ends a release of the bench's machine on a capacity, as the loop of operations does.
func (b *bench) release(capacity fleet.CapacityID) provider.Entry {
	b.t.Helper()
	device, _ := b.fake.On(capacity)
	check := func(err error) {
		b.t.Helper()
		if err != nil {
			b.t.Fatal(err)
		}
	}
	check(b.db.SetLevers(b.t.Context(), source, []fleet.Lever{fleet.LeverRelease}))
	var id fleet.MachineID
	for _, m := range b.view().Machines {
		if m.ProviderID == device.ID {
			id = m.ID
		}
	}
	number, err := bmdbtest.Operate(b.t.Context(), b.db, "ada", id, fleet.OperationRelease, "sold")
	check(err)
	s, err := b.db.StartSession(b.t.Context(), bmdb.SessionOptions{Component: "operations", Host: "test", Lease: 5 * time.Second})
	check(err)
	claim, err := s.Claim(b.t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessOperation, Providers: []fleet.ProviderName{source}, Limit: 1})
	check(err)
	check(claim.Works[0].Finish(b.t.Context(), bmdb.BeginOperation(number, ""), bmdb.AcceptOperation(number),
		bmdb.EndOperation(number, true, "the provider does not have it", 0)))
	check(s.Close(b.t.Context(), "done"))
	return device
}

// TestAReleasedMachineStaysReleased: a list that lags does not bring it back. A provider that has
// it still is a discrepancy, and an operator can have it adopted.
func TestAReleasedMachineStaysReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.passes(2)
		device := b.release("capacity-000")

		// The list has the machine still, and the direct answer has not.
		lagging := &lagging{Provider: b.fake, gone: device.ID}
		b.provider = lagging
		b.restart()
		b.passes(3)
		if v := b.view(); len(v.Machines) != 1 || b.kinds() != "" {
			t.Fatalf("machines %v, discrepancies %q", v.Machines, b.kinds())
		}

		// The provider has it still.
		lagging.gone = ""
		b.passes(2)
		if v := b.view(); len(v.Machines) != 1 || b.kinds() != string(fleet.DiscrepancyUnknownMachine) ||
			!strings.Contains(v.Discrepancies[0].Evidence, "given back") {
			t.Fatalf("machines %v, discrepancies %+v", v.Machines, v.Discrepancies)
		}
		// An answer that does not come takes nothing back.
		b.fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Asking {
				return errReplyLost
			}
			return nil
		}
		b.passes(2)
		b.fake.Hook = nil
		if v := b.view(); b.kinds() != string(fleet.DiscrepancyUnknownMachine) {
			t.Fatalf("without an answer, discrepancies %+v", v.Discrepancies)
		}
		if err := b.db.RequestAdoption(t.Context(), "ada", source, device.ID, false, "it is needed"); err != nil {
			t.Fatal(err)
		}
		b.passes(2)
		if v := b.view(); len(v.Machines) != 2 || b.kinds() != "" || len(v.Adoptions) != 0 {
			t.Fatalf("machines %v, discrepancies %q, adoptions %v", v.Machines, b.kinds(), v.Adoptions)
		}
	})
}

// TestAForgottenMachineComesBack: one that was gone was not given back, and the discrepancy does
// not say that it was.
func TestAForgottenMachineComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.passes(2)
		machine := b.view().Machines[0].ID
		away := b.fake.Devices()[0]
		b.provider = &lagging{Provider: b.fake, gone: away.ID}
		b.fake.Hide = func(provider.Entry) bool { return true }
		time.Sleep(b.config.SettlingTime)
		b.restart()
		b.passes(2)
		if err := bmdbtest.Forget(t.Context(), b.db, "ada", machine, "it is gone"); err != nil {
			t.Fatal(err)
		}
		b.fake.Hide, b.provider = nil, b.fake
		b.restart()
		b.passes(1)
		want := fmt.Sprintf("%s was machine %s, which was given back, or was gone and then forgotten; asked for it by its ID, the provider has it",
			away.ID, machine)
		if v := b.view(); b.kinds() != string(fleet.DiscrepancyUnknownMachine) || v.Discrepancies[0].Evidence != want {
			t.Errorf("discrepancies %+v", v.Discrepancies)
		}
	})
}

// TestReleasedCapacityIsKeptOut: it is not used again, and the result of the pass says by whom,
// until an operator names it as one to be used. Trying the pass again does not do that.
func TestReleasedCapacityIsKeptOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.passes(2)
		device := b.release("capacity-000")
		b.fake.Change(device.ID, func(*provider.Entry) bool { return false })
		b.passes(3)
		if len(b.fake.Devices()) != 0 || !strings.Contains(b.result(), "capacity-000 by release, asked for by ada: sold") {
			t.Fatalf("devices %v, result %q", b.fake.Devices(), b.result())
		}
		if _, _, kept, err := b.db.RetryProvider(t.Context(), "ada", source, ""); err != nil || kept != 1 {
			t.Fatal(kept, err)
		}
		b.passes(2)
		if len(b.fake.Devices()) != 0 {
			t.Fatalf("a retry of the pass used it: devices %v, result %q", b.fake.Devices(), b.result())
		}
		if err := b.db.RetryCapacity(t.Context(), "ada", source, []fleet.CapacityID{"capacity-000"}, "it is ours again"); err != nil {
			t.Fatal(err)
		}
		b.passes(2)
		if len(b.fake.Devices()) != 1 {
			t.Fatalf("devices %v, result %q", b.fake.Devices(), b.result())
		}
	})
}

// TestAMachineWithoutATokenStaysReleased: it was adopted, and the list alone does not make it
// unknown either.
func TestAMachineWithoutATokenStaysReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		device, err := b.fake.Land("capacity-000")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(b.config.SettlingTime)
		b.restart()
		b.pass()
		if err := b.db.RequestAdoption(t.Context(), "ada", source, device.ID, true, "it is ours"); err != nil {
			t.Fatal(err)
		}
		b.passes(2)
		b.release("capacity-000")

		lagging := &lagging{Provider: b.fake, gone: device.ID}
		b.provider = lagging
		b.restart()
		b.passes(3)
		if v := b.view(); len(v.Machines) != 1 || b.kinds() != "" {
			t.Fatalf("machines %v, discrepancies %+v", v.Machines, v.Discrepancies)
		}

		// The provider does not say: the list counts.
		b.fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Asking {
				return errReplyLost
			}
			return nil
		}
		lagging.gone = ""
		b.pass()
		if b.kinds() != string(fleet.DiscrepancyUnknownMachine) {
			t.Fatalf("without an answer, discrepancies %+v", b.view().Discrepancies)
		}
		// The provider has it still.
		b.fake.Hook = nil
		b.passes(2)
		if b.kinds() != string(fleet.DiscrepancyUnknownMachine) {
			t.Fatalf("it is there, and the discrepancies are %+v", b.view().Discrepancies)
		}
	})
}

// lagging is a provider whose list has a machine that it does not have.
type lagging struct {
	provider.Provider
	gone fleet.ProviderID
}

func (l *lagging) Get(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	if id == l.gone {
		return provider.Entry{}, fleet.Errorf(fleet.KindNotFound, "no device %s", id)
	}
	return l.Provider.Get(ctx, id)
}

// TestAnAdoptionOutlivesAListThatLags: what an operator was promised is kept until the provider
// says that it does not have the machine, and then the history tells.
func TestAnAdoptionOutlivesAListThatLags(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		asked         error
		lost, adopted bool
	}{
		"the list lags":             {nil, false, true},
		"the provider does not say": {fleet.Errorf(fleet.KindUnknown, "a strange answer"), false, true},
		"the machine is gone":       {nil, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				device, err := b.fake.Land("capacity-000")
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(b.config.SettlingTime)
				b.restart()
				b.pass()
				if err := b.db.RequestAdoption(t.Context(), "ada", source, device.ID, false, "it is needed"); err != nil {
					t.Fatal(err)
				}
				b.fake.Hide = func(e provider.Entry) bool { return e.ID == device.ID }
				b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
					if point == shepherdtest.Asking {
						return test.asked
					}
					return nil
				}
				if test.lost {
					b.lose([]provider.Entry{device})
					b.fake.RemoveCapacity("capacity-000")
				}
				b.pass()
				if kept := len(b.view().Adoptions) == 1; kept != test.adopted {
					t.Errorf("after a list without it: %v", b.view().Adoptions)
				}
				b.fake.Hide, b.fake.Hook = nil, nil
				b.pass()
				v := b.view()
				if adopted := len(v.Machines) == 1 && v.Machines[0].ProviderID == device.ID; adopted != test.adopted || len(v.Adoptions) != 0 || b.kinds() != "" {
					t.Errorf("machines %+v, adoptions %v, discrepancies %q", v.Machines, v.Adoptions, b.kinds())
				}
				history, err := b.db.ProviderHistory(t.Context(), source, 100, false)
				if err != nil {
					t.Fatal(err)
				}
				told := slices.ContainsFunc(history, func(h bmdb.HistoryRow) bool {
					return strings.Contains(h.Detail, string(device.ID)+" is not adopted, as ada") && strings.Contains(h.Detail, "the provider does not have it")
				})
				if told == test.adopted {
					t.Errorf("history %+v", history)
				}
			})
		})
	}
}

// TestAnAdoptionOfWhatFails ends, and the history tells. When the machine works again, it is a
// discrepancy again.
func TestAnAdoptionOfWhatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		device, err := b.fake.Land("capacity-000")
		if err != nil {
			t.Fatal(err)
		}
		becomes := func(status fleet.ProviderStatus) {
			b.fake.Change(device.ID, func(e *provider.Entry) bool { e.Status = status; return true })
		}
		time.Sleep(b.config.SettlingTime)
		b.restart()
		b.pass()
		if err := b.db.RequestAdoption(t.Context(), "ada", source, device.ID, false, "it is needed"); err != nil {
			t.Fatal(err)
		}
		becomes(fleet.ProviderStatusFailed)
		b.passes(2)
		history, err := b.db.ProviderHistory(t.Context(), source, 100, false)
		if err != nil {
			t.Fatal(err)
		}
		told := slices.ContainsFunc(history, func(h bmdb.HistoryRow) bool {
			return strings.HasSuffix(h.Detail, string(device.ID)+" is not adopted, as ada wanted: asked for by its ID, the provider says that it is failed")
		})
		if v := b.view(); len(v.Adoptions) != 0 || !told {
			t.Errorf("adoptions %v, history %+v", v.Adoptions, history)
		}
		becomes(fleet.ProviderStatusActive)
		b.passes(2)
		if v := b.view(); len(v.Machines) != 0 || b.kinds() != string(fleet.DiscrepancyUnknownMachine) {
			t.Errorf("machines %+v, discrepancies %q", v.Machines, b.kinds())
		}
	})
}

// TestAnAdoptionOfWhatIsManaged ends: the machine carries a token that explains it.
func TestAnAdoptionOfWhatIsManaged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		device, err := b.fake.Land("capacity-000")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(b.config.SettlingTime)
		b.restart()
		b.pass()
		if err := b.db.RequestAdoption(t.Context(), "ada", source, device.ID, false, "it is needed"); err != nil {
			t.Fatal(err)
		}
		b.fake.Hide = func(e provider.Entry) bool { return e.ID == device.ID }
		b.fake.Hook = once(shepherdtest.Sending, 1, func(fleet.CapacityID) error { return errReplyLost })
		b.pass()
		intents := b.view().Intents
		if len(intents) != 1 || len(b.view().Adoptions) != 1 {
			t.Fatalf("intents %+v, adoptions %v", intents, b.view().Adoptions)
		}
		b.fake.Change(device.ID, func(e *provider.Entry) bool { e.Tokens = []fleet.Token{intents[0].Token}; return true })
		b.fake.Hide, b.fake.Hook = nil, nil
		b.passes(2)
		if v := b.view(); len(v.Adoptions) != 0 || !slices.ContainsFunc(v.Machines, func(m bmdb.ProviderMachine) bool { return m.ProviderID == device.ID }) {
			t.Errorf("machines %+v, adoptions %v", v.Machines, v.Adoptions)
		}
	})
}

// TestAMachineThatSurfaces after its creation had come to nothing, as far as anybody knew, is to
// run what is configured now, and not what was configured then.
func TestAMachineThatSurfaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, install := range map[string]*fleet.InstallRequest{
			"another image": {Actor: fleet.ConfigurationOf(source), Image: fleet.Image{URL: "http://images.example/new.zst", Digest: "sha256:" + strings.Repeat("cd", 32)}},
			"none":          nil,
		} {
			b := newBench(t, 1)
			b.config.Install = &fleet.InstallRequest{
				Actor: fleet.ConfigurationOf(source), Image: fleet.Image{URL: "http://images.example/old.zst", Digest: "sha256:" + strings.Repeat("ab", 32)},
			}
			b.restart()
			b.fake.Hook = once(shepherdtest.Sending, 1, func(fleet.CapacityID) error { return errReplyLost })
			b.pass()
			intents := b.view().Intents
			if len(intents) != 1 {
				t.Fatalf("%s: intents %+v", name, intents)
			}
			device, err := b.fake.Land("capacity-000") // another owner was faster
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(b.config.SettlingTime)
			b.restart()
			b.passes(3)
			if v := b.view(); len(v.Intents) != 0 || len(v.Machines) != 0 {
				t.Fatalf("%s: intents %+v, machines %+v", name, v.Intents, v.Machines)
			}
			b.fake.Change(device.ID, func(e *provider.Entry) bool { e.Tokens = []fleet.Token{intents[0].Token}; return true })
			b.config.Install = install
			b.restart()
			b.passes(2)
			record, err := b.db.Machine(t.Context(), intents[0].Machine)
			if err != nil {
				t.Fatal(err)
			}
			if got := record.InstallRequest; (got == nil) != (install == nil) || got != nil && got.Image != install.Image {
				t.Errorf("%s: got %+v", name, got)
			}
		}
	})
}

// TestWhatABackupLacks: a database that went back to before machines were created is at the maximum
// by no count of its own. It finds their tokens, and creates none in their place.
func TestWhatABackupLacks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lost := newBench(t, 10)
		lost.config.MaxMachines = 5
		lost.restart()
		lost.pass()
		lost.agree(5)

		b := newBench(t, 0) // the database as it was before
		b.fake, b.provider, b.config = lost.fake, lost.fake, lost.config
		b.restart()
		b.pass()
		kinds := strings.Fields(b.kinds())
		if devices := len(b.fake.Devices()); devices != 5 || len(kinds) != 5 || kinds[0] != string(fleet.DiscrepancyUnknownMachine) {
			t.Fatalf("%d devices, discrepancies %v: %s", devices, kinds, b.result())
		}
		for _, device := range b.fake.Devices() {
			if err := b.db.RequestAdoption(t.Context(), "ada", source, device.ID, true, "created after the backup"); err != nil {
				t.Fatal(err)
			}
		}
		b.passes(2)
		if view := b.view(); len(view.Machines) != 5 || b.kinds() != "" || len(b.fake.Devices()) != 5 {
			t.Errorf("%d machines, %d devices, discrepancies %q: %s", len(view.Machines), len(b.fake.Devices()), b.kinds(), b.result())
		}
	})
}

// notes is told of transactions, and keeps the most statements that one in the middle of work had.
type notes struct{ most atomic.Int64 }

func (n *notes) Transaction(kind string, _ time.Duration, statements int, _ error) {
	if kind == "note" {
		n.most.Store(max(n.most.Load(), int64(statements)))
	}
}

func (*notes) Outcome(fleet.Process, string, time.Duration) {}

func (*notes) Happened(bmdb.Happening, string) {}

// TestManyAdoptionsAreTakenInByParts: others write in between, however many there are
// (rule 12).
func TestManyAdoptionsAreTakenInByParts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many, fewStatements = 250, 2000 // a hundred machines take 1,600
		told := new(notes)
		b := newBenchWith(t, many, told)
		for i := range many {
			if _, err := b.fake.Land(fleet.CapacityID(fmt.Sprintf("capacity-%03d", i))); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(b.config.SettlingTime)
		b.restart()
		b.pass()
		for _, device := range b.fake.Devices() {
			if err := b.db.RequestAdoption(t.Context(), "ada", source, device.ID, false, "it is ours"); err != nil {
				t.Fatal(err)
			}
		}
		b.pass()
		if v := b.view(); len(v.Machines) != many || len(v.Adoptions) != 0 || b.kinds() != "" {
			t.Errorf("%d machines, %d adoptions, discrepancies %q", len(v.Machines), len(v.Adoptions), b.kinds())
		}
		if n := told.most.Load(); n > fewStatements {
			t.Errorf("one transaction had %d statements", n)
		}
	})
}

// TestAPauseHoldsAdoptionsBack: `provider pause` keeps the pass under way from taking machines in,
// and the pass after `provider resume` does.
func TestAPauseHoldsAdoptionsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		device, err := b.fake.Land("capacity-000")
		time.Sleep(b.config.SettlingTime)
		b.restart()
		b.pass()
		if err := cmp.Or(err, b.db.RequestAdoption(t.Context(), "ada", source, device.ID, false, "it is ours")); err != nil {
			t.Fatal(err)
		}
		b.fake.Hook = once(shepherdtest.Listing, 1, func(fleet.CapacityID) error {
			return b.db.PauseProvider(t.Context(), "ada", source, "not yet")
		})
		b.pass()
		if v := b.view(); len(v.Machines) != 0 || len(v.Adoptions) != 1 {
			t.Errorf("paused: %d machines, %d adoptions", len(v.Machines), len(v.Adoptions))
		}
		if strings.Contains(b.result(), "adopted") || !strings.Contains(b.result(), "the provider was paused meanwhile") {
			t.Errorf("it says %q", b.result())
		}
		if err := b.db.ResumeProvider(t.Context(), "ada", source, "now"); err != nil {
			t.Fatal(err)
		}
		b.pass()
		if v := b.view(); len(v.Machines) != 1 || len(v.Adoptions) != 0 {
			t.Errorf("resumed: %d machines, %d adoptions", len(v.Machines), len(v.Adoptions))
		}
	})
}
