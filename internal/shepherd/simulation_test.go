package shepherd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
)

// TestSimulation drives the three phases of several processes one step at a time, as a seed says,
// with processes that die, sessions that are not extended, replies that are lost and a provider
// that fails; then the faults stop. It demands that nothing is lost (I2, I11), that provider and
// database agree (I7), that the database finds itself in order, and that the same seed gives the
// same history (I12).
func TestSimulation(t *testing.T) {
	t.Parallel()
	seeds := uint64(6)
	if raceDetector {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			first, second := simulate(t, seed), simulate(t, seed)
			if first != second {
				t.Errorf("the same seed gave another history: %s", firstDifference(first, second))
			}
			if strings.Count(first, "\n") < 100 {
				t.Errorf("little happened:\n%s", first)
			}
		})
	}
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("line %d:\n%s\n%s", i+1, x[i], y[i])
		}
	}
	return fmt.Sprintf("%d and %d lines", len(x), len(y))
}

const simulatedMachines = 12

// simulation is one world, driven by one goroutine.
type simulation struct {
	t      *testing.T
	random *rand.Rand
	db     *bmdb.DB
	fake   *shepherdtest.FakeProvider
	faults bool
	loops  []*simulated
}

// simulated is one process.
type simulated struct {
	loop   *shepherd.Loop
	holder *shepherd.Holder
	// claimed and acted are tasks on their way.
	claimed, acted []*shepherd.Task
}

func simulate(t *testing.T, seed uint64) (history string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(t, seed)
		for range 1500 {
			s.step()
		}
		s.faults = false
		for i := 0; !s.done(); i++ {
			if i > 1000 {
				t.Fatalf("seed %d: the work does not drain: %s", seed, s.left())
			}
			for range 20 {
				s.step()
			}
		}
		s.verify()
		history = s.history()
	})
	return history
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	t.Helper()
	s := &simulation{t: t, random: rand.New(rand.NewPCG(seed, 1)), fake: shepherdtest.NewFakeProvider(simulatedMachines), faults: true}
	s.db, _ = openWith(t, bmdb.Options{Jitter: s.random.Float64})
	s.check(s.db.RegisterProvider(t.Context(), source, "fake", 0))
	s.fake.Provisioning = 40 * time.Second
	s.fake.Hook = s.disturb
	for range 2 { // two of each process, as on two hosts
		s.add(provisionerOf(t, s.db, s.fake))
		s.add(updaterOf(t, s.db, s.fake))
		s.add(handler(s.startAgent))
	}
	return s
}

func provisionerOf(t *testing.T, db *bmdb.DB, fake *shepherdtest.FakeProvider) shepherd.Handler {
	t.Helper()
	config := provisioner.DefaultConfig()
	config.CreateRate, config.ChunkSize = fleet.Rate{Every: 100 * time.Millisecond, Burst: 1}, 5
	config.SettlingTime, config.Penalty = 2*time.Minute, 5*time.Minute
	h, err := provisioner.New(db, []provisioner.Source{{Name: source, Provider: fake, Config: config}}, provisioner.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func updaterOf(t *testing.T, db *bmdb.DB, fake *shepherdtest.FakeProvider) shepherd.Handler {
	t.Helper()
	h, err := updater.New(db, []updater.Source{{Name: source, Provider: fake, Config: updater.DefaultConfig()}}, updater.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (s *simulation) add(h shepherd.Handler) {
	s.t.Helper()
	loop, err := shepherd.New(s.db, h, shepherd.DefaultConfig(), shepherd.Options{Host: fmt.Sprint("host-", len(s.loops)/3)})
	s.check(err)
	s.loops = append(s.loops, &simulated{loop: loop})
}

func (s *simulation) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *simulation) chance(percent int) bool { return s.random.IntN(100) < percent }

// disturb is the provider's hook: calls fail at random.
func (s *simulation) disturb(point shepherdtest.Point, _ fleet.CapacityID) error {
	if !s.faults || !s.chance(15) {
		return nil
	}
	switch point {
	case shepherdtest.Sending, shepherdtest.Sent:
		return fleet.Errorf(fleet.KindTimeout, "no answer")
	case shepherdtest.Refusing:
		return fleet.Errorf(fleet.KindConflict, "not now")
	case shepherdtest.Created:
		return nil
	default:
		return fleet.Errorf(fleet.KindTemporary, "out of order")
	}
}

// startAgent is the act of agent start, without a host.
func (s *simulation) startAgent(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
	var generation fleet.TakeoverGeneration
	if err := work.Note(ctx, bmdb.MintTakeover(0, &generation)); err != nil {
		return shepherd.Fail{Err: err}
	}
	if s.faults && s.chance(20) {
		return shepherd.Fail{Err: errors.New("the host does not answer")}
	}
	return shepherd.Finish{Changes: []bmdb.Change{bmdb.SetAgentStarted(fleet.AgentStarted{
		TakeoverGeneration: generation, PublicKey: make([]byte, 32), AgentVersion: "simulated", BootID: "boot",
	})}}
}

// step does one thing to one process, or lets time pass.
func (s *simulation) step() {
	p := s.loops[s.random.IntN(len(s.loops))]
	switch dice := s.random.IntN(100); {
	case dice < 15:
		time.Sleep(time.Duration(s.random.IntN(3000)) * time.Millisecond)
	case dice < 20:
		_, err := s.db.CollectSessions(s.t.Context())
		s.check(err)
	case p.holder == nil:
		holder, err := p.loop.Open(s.t.Context())
		s.check(err)
		p.holder = holder
	case dice < 45:
		s.forget(p, p.holder.Extend(s.t.Context()))
	case dice < 65:
		tasks, _, err := p.holder.Claim(s.t.Context(), 1+s.random.IntN(3))
		p.claimed = append(p.claimed, tasks...)
		s.forget(p, err)
	case dice < 80 && len(p.claimed) > 0:
		task := p.claimed[0]
		p.claimed, p.acted = p.claimed[1:], append(p.acted, task)
		task.Act(s.t.Context())
	case dice < 97 && len(p.acted) > 0:
		task := p.acted[0]
		p.acted = p.acted[1:]
		s.forget(p, task.Commit(s.t.Context()))
	case dice >= 97 && s.faults: // the process dies
		p.holder, p.claimed, p.acted = nil, nil, nil
	}
}

// forget gives up a session that has ended.
func (s *simulation) forget(p *simulated, err error) {
	s.t.Helper()
	switch {
	case errors.Is(err, fleet.ErrLeaseLost):
		if p.holder.Extend(s.t.Context()) != nil {
			p.holder, p.claimed, p.acted = nil, nil, nil
		}
	case err != nil:
		s.t.Fatal(err)
	}
}

// left says what is not done yet; "" when nothing is left.
func (s *simulation) left() string {
	s.t.Helper()
	rows, err := s.db.ListMachines(s.t.Context(), bmdb.MachineFilter{Limit: 100})
	s.check(err)
	if len(rows) < simulatedMachines {
		return fmt.Sprintf("%d machines", len(rows))
	}
	for _, row := range rows {
		if row.State != fleet.StateStarted {
			return fmt.Sprintf("machine %s is %s: %s", row.ID, row.State, row.Reason)
		}
	}
	for _, p := range s.loops {
		if len(p.claimed)+len(p.acted) > 0 {
			return "tasks are on their way"
		}
	}
	return ""
}

func (s *simulation) done() bool { return s.left() == "" }

func (s *simulation) verify() {
	s.t.Helper()
	findings, err := s.db.Check(s.t.Context())
	s.check(err)
	view, err := s.db.ViewProvider(s.t.Context(), source)
	s.check(err)
	devices := s.fake.Devices()
	known := make(map[fleet.ProviderID]bool)
	for _, m := range view.Machines {
		known[m.ProviderID] = true
	}
	orphans := slices.DeleteFunc(slices.Clone(devices), func(e entry) bool { return known[e.ID] })
	if len(findings) > 0 || len(devices) != simulatedMachines || len(view.Machines) != simulatedMachines || len(orphans) > 0 {
		s.t.Errorf("findings %v, %d devices, %d machines, orphans %v", findings, len(devices), len(view.Machines), orphans)
	}
}

// history is all that happened, with IDs replaced by the order in which they appear.
func (s *simulation) history() string {
	s.t.Helper()
	var b strings.Builder
	write := func(subject string, rows []bmdb.HistoryRow) {
		fmt.Fprintf(&b, "%s\n", subject)
		for _, row := range rows {
			fmt.Fprintf(&b, "  %s %s %s %d %s: %s, retry %s\n",
				row.At.Format(time.RFC3339Nano), row.Actor, row.Process, row.Epoch, row.Event, row.Detail, row.RetryAt.Format(time.RFC3339Nano))
		}
	}
	rows, err := s.db.ListMachines(s.t.Context(), bmdb.MachineFilter{Limit: 100})
	s.check(err)
	for _, row := range rows {
		history, err := s.db.History(s.t.Context(), row.ID, 10000)
		s.check(err)
		write(string(row.ID), history)
	}
	history, err := s.db.ProviderHistory(s.t.Context(), source, 10000, false)
	s.check(err)
	write(string(source), history)
	return anonymous(b.String())
}
