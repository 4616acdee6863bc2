package updater_test

import (
	"context"
	"fmt"
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
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const source fleet.ProviderName = "metal"

type bench struct {
	t  *testing.T
	db *bmdb.DB
	// engine notes how much is written at once.
	engine *bmdbtest.Bounds
	fake   *shepherdtest.FakeProvider
	ids    []fleet.MachineID
	loop   *shepherd.Loop
}

func newBench(t *testing.T, machines int) *bench {
	t.Helper()
	b := &bench{t: t, fake: shepherdtest.NewFakeProvider(machines), engine: &bmdbtest.Bounds{Engine: shepherdtest.OpenEngine(t)}}
	b.db = shepherdtest.OpenDB(t, b.engine, bmdb.Options{})
	b.fake.Provisioning = 90 * time.Second
	b.ids = shepherdtest.Seed(t, b.db, source, b.fake, machines)
	handler, err := updater.New(b.db, []updater.Source{{Name: source, Provider: b.fake, Config: updater.DefaultConfig()}}, updater.Options{})
	check(t, err)
	b.loop, err = shepherd.New(b.db, handler, shepherd.DefaultConfig(), shepherd.Options{})
	check(t, err)
	return b
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pass waits until a pass is due and does it.
func (b *bench) pass() shepherd.Outcome {
	b.t.Helper()
	for range 20 {
		holder, err := b.loop.Open(b.t.Context())
		check(b.t, err)
		tasks, next, err := holder.Claim(b.t.Context(), 1)
		check(b.t, err)
		if len(tasks) == 1 {
			tasks[0].Act(b.t.Context())
			check(b.t, tasks[0].Commit(b.t.Context()))
		}
		check(b.t, holder.Close(b.t.Context(), "done"))
		if len(tasks) == 1 {
			return tasks[0].Outcome()
		}
		time.Sleep(max(time.Until(next), time.Second))
	}
	b.t.Fatal("no pass became due")
	return nil
}

func (b *bench) provided(i int) fleet.Provided {
	b.t.Helper()
	record, err := b.db.Machine(b.t.Context(), b.ids[i])
	check(b.t, err)
	return *record.Provided
}

func (b *bench) device(i int) provider.Entry { return b.fake.Devices()[i] }

func TestFollowsWhatChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3)
		b.pass()
		if p := b.provided(0); p.Status != fleet.ProviderStatusCreating || p.ActiveAt != nil {
			t.Errorf("at first: %+v", p)
		}
		start := time.Now()
		b.pass()
		b.pass()
		p := b.provided(0)
		if p.Status != fleet.ProviderStatusActive || p.ActiveAt == nil || p.ActiveAt.Sub(start) < 30*time.Second {
			t.Fatalf("later: %+v", p)
		}
		settled := time.Now()
		b.engine.Reset()
		b.pass() // everything is settled: seldom
		if locked := b.engine.Most("LockMachines"); locked != 0 {
			t.Errorf("%d machines were locked, and none has changed", locked)
		}
		if since := time.Since(settled); since < 20*time.Minute {
			t.Errorf("the settled were looked at after %s", since)
		}
		if again := b.provided(0); !again.At.Equal(p.At) || !again.ActiveAt.Equal(*p.ActiveAt) {
			t.Errorf("written again without a change: %+v, before %+v", again, p)
		}
		b.fake.Change(b.device(1).ID, func(e *provider.Entry) bool { e.Location = "there"; return true })
		b.pass()
		if p := b.provided(1); p.Location != "there" || p.Status != fleet.ProviderStatusActive {
			t.Errorf("moved: %+v", p)
		}
	})
}

func TestGoneOnlyWhenTheProviderSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 6)
		for range 4 {
			b.pass()
		}
		lost, lagging := b.device(0), b.device(1).ID
		b.fake.Change(lost.ID, func(*provider.Entry) bool { return false })
		b.fake.Hide = func(e provider.Entry) bool { return e.ID == lagging }
		b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
			if point == shepherdtest.Asking {
				return fleet.Errorf(fleet.KindUnknown, "a strange answer")
			}
			return nil
		}
		b.pass()
		if got := b.provided(0).Status; got != fleet.ProviderStatusActive {
			t.Errorf("unknown was turned into %s", got)
		}
		b.fake.Hook = nil
		b.pass()
		if gone, there := b.provided(0).Status, b.provided(1).Status; gone != fleet.ProviderStatusGone || there != fleet.ProviderStatusActive {
			t.Errorf("the lost one is %s, the lagging one %s", gone, there)
		}
		b.fake.Change(lost.ID, func(e *provider.Entry) bool { *e = lost; return true })
		b.pass()
		if got := b.provided(0).Status; got != fleet.ProviderStatusActive {
			t.Errorf("it is back, and %s", got)
		}
	})
}

// TestBackOnlyWhenTheProviderSaysSo: the provider has denied a machine when asked for it, and its
// list, which lags, has the machine. The list does not bring it back; the provider's answer does.
func TestBackOnlyWhenTheProviderSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 6)
		for range 4 {
			b.pass()
		}
		lost := b.device(0)
		b.fake.Change(lost.ID, func(*provider.Entry) bool { return false })
		b.pass()
		gone := b.provided(0)
		if gone.Status != fleet.ProviderStatusGone {
			t.Fatalf("the lost one is %s", gone.Status)
		}
		b.fake.Change(lost.ID, func(e *provider.Entry) bool { *e = lost; return true })
		for _, answer := range []error{
			fleet.Errorf(fleet.KindNotFound, "no such machine"), fleet.Errorf(fleet.KindTemporary, "out of order"),
		} {
			asked := 0
			b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
				if point != shepherdtest.Asking {
					return nil
				}
				asked++
				return answer
			}
			if outcome, failed := b.pass().(shepherd.Fail); failed {
				t.Errorf("the pass failed: %v", outcome.Err)
			}
			if got := b.provided(0); got.Status != fleet.ProviderStatusGone || !got.At.Equal(gone.At) || asked != 1 {
				t.Errorf("asked %d times, answered %v: %+v, before %+v", asked, answer, got, gone)
			}
		}
		b.fake.Hook = nil
		b.pass()
		if got := b.provided(0).Status; got != fleet.ProviderStatusActive {
			t.Errorf("the provider has it, and it is %s", got)
		}
	})
}

// lagging is a provider whose list says of all machines that they are being made.
type lagging struct{ *shepherdtest.FakeProvider }

func (l lagging) ListMachines(ctx context.Context) ([]provider.Entry, error) {
	entries, err := l.FakeProvider.ListMachines(ctx)
	for i := range entries {
		entries[i].Status = fleet.ProviderStatusCreating
	}
	return entries, err
}

// TestReinstalledOnlyWhenTheProviderSaysSo: a list lags, and an installed system counts as
// destroyed on a machine that is being reinstalled.
func TestReinstalledOnlyWhenTheProviderSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		for range 3 {
			b.pass()
		}
		handler, err := updater.New(b.db, []updater.Source{{Name: source, Provider: lagging{b.fake}, Config: updater.DefaultConfig()}}, updater.Options{})
		check(t, err)
		b.loop, err = shepherd.New(b.db, handler, shepherd.DefaultConfig(), shepherd.Options{})
		check(t, err)
		b.pass()
		if p := b.provided(0); p.Status != fleet.ProviderStatusActive {
			t.Errorf("its list says so alone, and it is %s", p.Status)
		}
		b.fake.Change(b.device(0).ID, func(e *provider.Entry) bool {
			e.Status, e.CreatedAt = fleet.ProviderStatusCreating, time.Now().Add(time.Hour)
			return true
		})
		b.pass()
		if p := b.provided(0); p.Status != fleet.ProviderStatusCreating {
			t.Errorf("the provider says so, and it is %s", p.Status)
		}
	})
}

// TestListedAgainIsNoLoss: machines that are gone and listed again count neither as known nor as
// missing. The provider is asked for no more of them in one pass than for missing ones, and for
// each of them sooner or later, be the list doubted or not.
func TestListedAgainIsNoLoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const machines, lost = 70, 25
		b := newBench(t, machines)
		for range 4 {
			b.pass()
		}
		devices := b.fake.Devices()
		for _, device := range devices[:lost] {
			b.fake.Change(device.ID, func(*provider.Entry) bool { return false })
		}
		count := func() (gone int) {
			t.Helper()
			for i := range b.ids {
				if b.provided(i).Status == fleet.ProviderStatusGone {
					gone++
				}
			}
			return gone
		}
		for range 2 {
			b.pass()
		}
		if got := count(); got != lost {
			t.Fatalf("%d machines are gone, want %d", got, lost)
		}
		for _, device := range devices[:lost] {
			b.fake.Change(device.ID, func(e *provider.Entry) bool { *e = device; return true })
		}
		// The others that are known are 45: that 23 of them are missing is a loss.
		hidden := make(map[fleet.ProviderID]bool)
		for _, device := range devices[lost : lost+23] {
			hidden[device.ID] = true
		}
		b.fake.Hide = func(e provider.Entry) bool { return hidden[e.ID] }
		asked := 0
		b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
			if point == shepherdtest.Asking {
				asked++
			}
			return nil
		}
		outcome, failed := b.pass().(shepherd.Fail)
		if !failed || !strings.Contains(outcome.Err.Error(), "23 of 45") {
			t.Errorf("outcome %+v", outcome)
		}
		if got := count(); got != 5 || asked != 20 {
			t.Errorf("after one pass %d are gone still, and %d questions were asked", got, asked)
		}
		b.fake.Hide = nil
		if outcome, failed := b.pass().(shepherd.Fail); failed {
			t.Errorf("the pass failed: %v", outcome.Err)
		}
		if got := count(); got != 0 || asked != lost {
			t.Errorf("after two passes %d are gone still, and %d questions were asked", got, asked)
		}
	})
}

// TestASuddenLossIsDoubted: nothing is gone then, whatever the provider would say: it may be the
// wrong project.
func TestASuddenLossIsDoubted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 7)
		for range 4 {
			b.pass()
		}
		devices := b.fake.Devices()
		b.fake.Change(devices[6].ID, func(e *provider.Entry) bool { e.Status = fleet.ProviderStatusDeleting; return true })
		b.pass()
		for _, device := range append(devices[:4:4], devices[6]) {
			b.fake.Change(device.ID, func(*provider.Entry) bool { return false })
		}
		outcome, failed := b.pass().(shepherd.Fail)
		if !failed || !strings.Contains(outcome.Err.Error(), "4 of 6") {
			t.Errorf("outcome %+v", outcome)
		}
		for i := range b.ids {
			if got := b.provided(i).Status; got == fleet.ProviderStatusGone {
				t.Errorf("machine %d is %s", i, got)
			}
		}
	})
}

// TestDeletedElsewhere: machines that somebody deletes at the provider leave its list. That is no
// loss, however many they are. The provider says that they are gone; then they can be forgotten.
func TestDeletedElsewhere(t *testing.T) {
	t.Parallel()
	for _, status := range []fleet.ProviderStatus{fleet.ProviderStatusDeleting, fleet.ProviderStatusFailed} {
		t.Run(string(status), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 5)
				for range 4 {
					b.pass()
				}
				devices := b.fake.Devices()
				for _, device := range devices[:3] {
					b.fake.Change(device.ID, func(e *provider.Entry) bool { e.Status = status; return true })
				}
				b.pass()
				if got := b.provided(0).Status; got != status {
					t.Fatalf("machine 0 is %s", got)
				}
				for _, device := range devices[:3] {
					b.fake.Change(device.ID, func(*provider.Entry) bool { return false })
				}
				if outcome, failed := b.pass().(shepherd.Fail); failed {
					t.Errorf("the pass failed: %v", outcome.Err)
				}
				rows, err := b.db.ListMachines(t.Context(), bmdb.MachineFilter{States: []fleet.State{fleet.StateMissing}, Limit: 10})
				if err != nil || len(rows) != 3 {
					t.Errorf("%d machines are missing, %v", len(rows), err)
				}
				for i := range 3 {
					if err := bmdbtest.Forget(t.Context(), b.db, "ada", b.ids[i], "deleted by hand"); err != nil {
						t.Error(err)
					}
				}
				if got := b.provided(3).Status; got != fleet.ProviderStatusActive {
					t.Errorf("the others are %s", got)
				}
			})
		})
	}
}

// TestListOfSomethingElse: where a list has none of the machines that it should have, nothing is
// made of those that it need not have.
func TestListOfSomethingElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 5)
		for range 4 {
			b.pass()
		}
		devices := b.fake.Devices()
		for _, device := range devices[1:] {
			b.fake.Change(device.ID, func(e *provider.Entry) bool { e.Status = fleet.ProviderStatusFailed; return true })
		}
		b.pass()
		for _, device := range devices {
			b.fake.Change(device.ID, func(*provider.Entry) bool { return false })
		}
		b.pass()
		for i := 1; i < 5; i++ {
			if got := b.provided(i).Status; got != fleet.ProviderStatusFailed {
				t.Errorf("machine %d is %s", i, got)
			}
		}
	})
}

// TestReleasedMachinesAreNotMissing: machines that are being released leave the provider's list.
// That is no loss, however many they are: the loop of operations says what has become of them. It
// may begin with that while the pass waits for its list.
func TestReleasedMachinesAreNotMissing(t *testing.T) {
	t.Parallel()
	for _, meanwhile := range []bool{false, true} {
		t.Run(fmt.Sprintf("meanwhile=%t", meanwhile), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { releaseBesideThePass(t, meanwhile) })
		})
	}
}

func releaseBesideThePass(t *testing.T, meanwhile bool) {
	t.Helper()
	b := newBench(t, 6)
	for range 4 {
		b.pass()
	}
	check(t, b.db.SetLevers(t.Context(), source, []fleet.Lever{fleet.LeverRelease}))
	for _, id := range b.ids[:4] {
		_, err := bmdbtest.Operate(t.Context(), b.db, "ada", id, fleet.OperationRelease, "sold")
		check(t, err)
	}
	s, err := b.db.StartSession(t.Context(), bmdb.SessionOptions{Component: "operations", Host: "test", Lease: time.Hour})
	check(t, err)
	release := func() {
		claim, err := s.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessOperation, Limit: 4})
		check(t, err)
		if len(claim.Works) != 4 {
			t.Fatalf("%d releases are due", len(claim.Works))
		}
		for _, work := range claim.Works {
			check(t, work.Note(t.Context(), bmdb.BeginOperation(work.Record.Operation.Number, "")))
		}
		for _, device := range b.fake.Devices()[:4] {
			b.fake.Change(device.ID, func(*provider.Entry) bool { return false })
		}
	}
	if meanwhile {
		b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
			if point == shepherdtest.Listing {
				b.fake.Hook = nil
				release()
			}
			return nil
		}
	} else {
		release()
	}
	if outcome, failed := b.pass().(shepherd.Fail); failed {
		t.Errorf("the pass failed: %v", outcome.Err)
	}
	for i := range b.ids {
		if got := b.provided(i).Status; got != fleet.ProviderStatusActive {
			t.Errorf("machine %d is %s", i, got)
		}
	}
}

func TestAFailingListFailsThePass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
			if point == shepherdtest.Listing {
				return fleet.Errorf(fleet.KindTemporary, "out of order")
			}
			return nil
		}
		if outcome, failed := b.pass().(shepherd.Fail); !failed || !strings.Contains(outcome.Err.Error(), "out of order") {
			t.Errorf("outcome %+v", outcome)
		}
	})
}

// TestALargeFleet is rule 12: what changed is written in bounded transactions, whoever comes in
// between.
func TestALargeFleet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 250)
		time.Sleep(2 * time.Minute)
		b.engine.Reset()
		b.pass()
		if most := b.engine.Most("LockMachines"); most == 0 || most > 100 {
			t.Errorf("one transaction wrote %d machines", most)
		}
		rows, err := b.db.ListMachines(context.WithoutCancel(t.Context()), bmdb.MachineFilter{States: []fleet.State{fleet.StateProvided}, Limit: 1000})
		if err != nil || len(rows) != 250 {
			t.Errorf("%d machines are provided, %v", len(rows), err)
		}
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	check(t, updater.DefaultConfig().Validate())
	err := updater.Config{}.Validate()
	for _, key := range []string{"asks_per_pass", "settling_time", "backoff.initial"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("no fault names %s: %v", key, err)
		}
	}
}
