package provisioner_test

import (
	"errors"
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
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
)

// settled is a bench with so many machines, which the provider's list must have.
func settled(t *testing.T, machines int) *bench {
	t.Helper()
	b := newBench(t, machines)
	b.passes(2)
	b.agree(machines)
	time.Sleep(b.config.SettlingTime)
	b.restart() // the first session ended in its sleep
	return b
}

// lose takes devices away at the provider.
func (b *bench) lose(devices []provider.Entry) {
	for _, device := range devices {
		b.fake.Change(device.ID, func(*provider.Entry) bool { return false })
	}
}

// status is what the BMDB knows of the machine of a device.
func (b *bench) status(device provider.Entry) (fleet.MachineID, fleet.ProviderStatus) {
	b.t.Helper()
	for _, m := range b.view().Machines {
		if m.ProviderID == device.ID {
			return m.ID, m.Provided.Status
		}
	}
	return "", ""
}

// TestTheRemedyOfAMissingMachine: whoever reads the discrepancy can have the machine forgotten.
func TestTheRemedyOfAMissingMachine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := settled(t, 4)
		lost := b.fake.Devices()[:1]
		b.lose(lost)
		b.pass()
		if found := b.view().Discrepancies; b.kinds() != string(fleet.DiscrepancyMissingMachine) ||
			!strings.Contains(found[0].Remedy, "`ironherd discrepancy forget "+string(source)+" "+string(lost[0].ID)+" --reason WHY`") {
			t.Fatalf("discrepancies %+v", found)
		}
		id, _ := b.status(lost[0])
		if err := bmdbtest.Forget(t.Context(), b.db, "ada", id, "sold"); err != nil {
			t.Fatal(err)
		}
		b.passes(2)
		b.agree(4)
	})
}

// TestAMachineThatIsForgottenWhileAPassLists is no discrepancy again: that pass knew it still, and
// the remedy would fail.
func TestAMachineThatIsForgottenWhileAPassLists(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := settled(t, 4)
		lost := b.fake.Devices()[:1]
		b.lose(lost)
		b.pass()
		id, _ := b.status(lost[0])
		b.fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at != shepherdtest.Listing {
				return nil
			}
			b.fake.Hook = nil
			return bmdbtest.Forget(t.Context(), b.db, "ada", id, "sold")
		}
		b.pass()
		rows, err := b.db.History(t.Context(), id, 1)
		if err != nil || len(rows) != 1 || rows[0].Event != fleet.EventForgotten || b.kinds() != "" {
			t.Errorf("discrepancies %+v, history %+v, %v", b.view().Discrepancies, rows, err)
		}
		b.pass()
		b.agree(4)
	})
}

// TestTheRemedyOfAHostThatItsListHasNot: it may be on another list, and whoever has its machine
// forgotten has it taken in anew there. So to put it back comes first.
func TestTheRemedyOfAHostThatItsListHasNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, db: shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})}
		b.manage(2, b.listed("rack", "{id: n1, address: 192.0.2.1}", "{id: n2, address: 192.0.2.2}"))
		time.Sleep(provisioner.ListConfig().SettlingTime)
		b.manage(2, b.listed("rack", "{id: n2, address: 192.0.2.2}"))
		_, found := b.machinesOf("rack")
		if len(found) != 1 || !strings.HasPrefix(found[0].Remedy, "put it back on the list as n1") ||
			!strings.Contains(found[0].Remedy, "`ironherd discrepancy forget rack n1 --reason WHY`") {
			t.Fatalf("discrepancies %+v", found)
		}
	})
}

// TestAMissingMachineComesBack: the pass that finds it again says so, and not before the provider
// has it when it is asked for it by its ID.
func TestAMissingMachineComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := settled(t, 4)
		lost := b.fake.Devices()[:1]
		b.lose(lost)
		b.pass()
		if _, status := b.status(lost[0]); status != fleet.ProviderStatusGone {
			t.Fatalf("the machine that is lost is %s", status)
		}
		b.fake.Change(lost[0].ID, func(e *provider.Entry) bool { *e = lost[0]; return true })
		lags := &lagging{Provider: b.fake, gone: lost[0].ID}
		b.provider = lags
		b.restart()
		b.pass()
		if _, status := b.status(lost[0]); status != fleet.ProviderStatusGone {
			t.Errorf("the machine that only a list has is %s", status)
		}
		lags.gone = ""
		b.pass()
		if _, status := b.status(lost[0]); status != fleet.ProviderStatusActive {
			t.Errorf("the machine that is back is %s", status)
		}
		b.agree(4)
	})
}

// TestTheRemedyOfAListLoss: the machines that are really gone can be given back. They cannot be
// forgotten, because the provider was not asked for any of them.
func TestTheRemedyOfAListLoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := settled(t, 5)
		lost := b.fake.Devices()[:3]
		b.lose(lost)
		b.pass()
		if found := b.view().Discrepancies; b.kinds() != string(fleet.DiscrepancyListLoss) ||
			!strings.Contains(found[0].Remedy, "`ironherd machine release MACHINE --reason WHY`") {
			t.Fatalf("discrepancies %+v", found)
		}
		if err := b.db.SetLevers(t.Context(), source, provider.Levers(b.fake)); err != nil {
			t.Fatal(err)
		}
		for _, device := range lost {
			id, _ := b.status(device)
			if err := bmdbtest.Forget(t.Context(), b.db, "ada", id, "lost"); fleet.KindOf(err) != fleet.KindConflict {
				t.Errorf("forgotten on the word of a list that is doubted: %v", err)
			}
			if _, err := bmdbtest.Operate(t.Context(), b.db, "ada", id, fleet.OperationRelease, "lost"); err != nil {
				t.Fatal(err)
			}
		}
		b.operate(len(lost))
		if got := len(b.view().Machines); got != 2 {
			t.Errorf("%d machines are left", got)
		}
		b.pass()
		if b.kinds() != "" {
			t.Errorf("discrepancies %q", b.kinds())
		}
	})
}

// TestTheRemedyOfMachinesDeletedElsewhere: most machines of a provider are deleted there. The
// updater learns that they are gone, each is a discrepancy, and can be forgotten.
func TestTheRemedyOfMachinesDeletedElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := settled(t, 5)
		lost := b.fake.Devices()[:3]
		for _, device := range lost {
			b.fake.Change(device.ID, func(e *provider.Entry) bool { e.Status = fleet.ProviderStatusDeleting; return true })
		}
		b.update()
		b.lose(lost)
		b.restart() // the first session ended meanwhile
		b.pass()
		if b.kinds() != "" {
			t.Errorf("on their way out: discrepancies %q", b.kinds())
		}
		b.update()
		b.restart()
		b.pass()
		found := b.view().Discrepancies
		if len(found) != len(lost) {
			t.Fatalf("discrepancies %+v", found)
		}
		for _, d := range found {
			if d.Kind != fleet.DiscrepancyMissingMachine || !strings.Contains(d.Remedy, "`ironherd discrepancy forget "+string(source)+" "+string(d.ProviderID)+" --reason WHY`") {
				t.Errorf("discrepancy %+v", d)
			}
			if err := bmdbtest.Forget(t.Context(), b.db, "ada", d.Machine, "deleted by hand"); err != nil {
				t.Error(err)
			}
		}
		b.passes(2)
		b.agree(5)
	})
}

// update has the updater do its next pass.
func (b *bench) update() {
	b.t.Helper()
	handler, err := updater.New(b.db, []updater.Source{{Name: source, Provider: b.provider, Config: updater.DefaultConfig()}}, updater.Options{})
	if err == nil {
		err = b.one(handler)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// one waits until something is due for a handler, and does it.
func (b *bench) one(handler shepherd.Handler) error {
	loop, err := shepherd.New(b.db, handler, shepherd.DefaultConfig(), shepherd.Options{SessionLease: time.Hour})
	if err != nil {
		return err
	}
	holder, err := loop.Open(b.t.Context())
	if err != nil {
		return err
	}
	for {
		tasks, next, err := holder.Claim(b.t.Context(), 1)
		if err != nil {
			return err
		}
		if len(tasks) == 1 {
			tasks[0].Act(b.t.Context())
			return errors.Join(tasks[0].Commit(b.t.Context()), holder.Close(b.t.Context(), "done"))
		}
		time.Sleep(max(time.Until(next), time.Second))
	}
}

// operate has the loop of operations take so many steps.
func (b *bench) operate(steps int) {
	b.t.Helper()
	check := func(err error) {
		b.t.Helper()
		if err != nil {
			b.t.Fatal(err)
		}
	}
	handler, err := operations.New(b.db, []operations.Source{{Name: source, Provider: b.fake}}, operations.DefaultConfig(), operations.Options{})
	check(err)
	loop, err := shepherd.New(b.db, handler, shepherd.DefaultConfig(), shepherd.Options{})
	check(err)
	holder, err := loop.Open(b.t.Context())
	check(err)
	tasks, _, err := holder.Claim(b.t.Context(), steps)
	check(err)
	if len(tasks) != steps {
		b.t.Fatalf("%d operations are due", len(tasks))
	}
	for _, task := range tasks {
		task.Act(b.t.Context())
		check(task.Commit(b.t.Context()))
	}
	check(holder.Close(b.t.Context(), "done"))
}

// TestMachinesThatAreReleasedWhileTheListWaits are neither lost nor missing, and stop nothing.
func TestMachinesThatAreReleasedWhileTheListWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := settled(t, 6)
		if err := b.db.SetLevers(t.Context(), source, provider.Levers(b.fake)); err != nil {
			t.Fatal(err)
		}
		leaving := b.fake.Devices()[:4]
		for _, device := range leaving {
			id, _ := b.status(device)
			if _, err := bmdbtest.Operate(t.Context(), b.db, "ada", id, fleet.OperationRelease, "sold"); err != nil {
				t.Fatal(err)
			}
		}
		session, err := b.db.StartSession(t.Context(), bmdb.SessionOptions{Component: "operations", Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
			if point != shepherdtest.Listing {
				return nil
			}
			b.fake.Hook = nil
			claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessOperation, Limit: len(leaving)})
			for i, work := range claim.Works {
				number := work.Record.Operation.Number
				err = errors.Join(err, work.Note(t.Context(), bmdb.BeginOperation(number, "")))
				if i == 0 { // this one ends meanwhile
					err = errors.Join(err, work.Finish(t.Context(), bmdb.EndOperation(number, true, "gone", 0)))
				}
			}
			if err != nil || len(claim.Works) != len(leaving) {
				t.Errorf("%d releases are begun, %v", len(claim.Works), err)
			}
			b.lose(leaving)
			return nil
		}
		b.pass()
		if found := b.view().Discrepancies; len(found) > 0 {
			t.Errorf("discrepancies %+v", found)
		}
		for _, device := range leaving {
			if id, status := b.status(device); id != "" && status != fleet.ProviderStatusActive {
				t.Errorf("a machine that is being released is %s", status)
			}
		}
		if strings.Contains(b.result(), "creation is stopped") {
			t.Errorf("the pass says %q", b.result())
		}
	})
}
