package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
)

// sized is a fleet of one size and what was measured on it, by the name of the operation.
type sized struct {
	*subject
	size int
	// ids of the machines whose agents have spoken, in order.
	ids []fleet.MachineID
	// watcher is for what is not work: it has one connection, which has seen the whole fleet.
	watcher *bmdb.DB
	figures map[string][]figures
	// took is how long each call took.
	took map[string][]time.Duration
	held []*bmdb.Work
}

// operation is one thing whose cost must not grow with the fleet. do does it once and returns how
// many units that were.
type operation struct {
	name string
	// unjudged: its cost may grow, up to a bound.
	unjudged bool
	// bound on the 99th percentile in the largest fleet; 0: none.
	p99 time.Duration
	do  func(ctx context.Context, s *sized) (int, error)
}

func operations() []operation {
	page := func(name string, states ...fleet.State) operation {
		return operation{name: name, p99: 100 * time.Millisecond, do: func(ctx context.Context, s *sized) (int, error) {
			return 1, s.page(ctx, states)
		}}
	}
	return []operation{
		{name: "claim, per work", do: func(ctx context.Context, s *sized) (int, error) {
			works, err := s.claim(ctx)
			s.held = works
			return len(works), err
		}},
		{name: "finish, per work", do: func(ctx context.Context, s *sized) (int, error) {
			return len(s.held), each(s.held, func(w *bmdb.Work) error { return w.Finish(ctx) })
		}},
		{name: "heartbeat flush of 1,000, per heartbeat", do: func(ctx context.Context, s *sized) (int, error) {
			return s.flushSome(ctx, 1000)
		}},
		{name: "flush of a second's heartbeats, one machine in thirty, per heartbeat", do: func(ctx context.Context, s *sized) (int, error) {
			return s.flushSome(ctx, s.size/30)
		}},
		page("list page of 100"),
		page("list page of 100, by three states that most are in", fleet.StateAvailable, fleet.StateInstalled, fleet.StateProvided),
		page("list page of 100, by three states that every fifth is in", fleet.StateQuarantined, fleet.StateFailed, fleet.StateSilent),
		{name: "state counts", p99: 100 * time.Millisecond, do: func(ctx context.Context, s *sized) (int, error) {
			return 1, s.count(ctx)
		}},
		{name: "scrape of the metrics", unjudged: true, p99: 100 * time.Millisecond, do: func(ctx context.Context, s *sized) (int, error) {
			if err := s.count(ctx); err != nil {
				return 0, err
			}
			_, err := s.watcher.OldestByState(ctx)
			return 1, err
		}},
	}
}

// pageSize is how long a page is; behind where it begins there are machines enough for it, whatever
// their states.
const pageSize = 100

// page reads one from anywhere in the fleet.
func (s *sized) page(ctx context.Context, states []fleet.State) error {
	after := s.ids[rand.IntN(max(len(s.ids)-6*pageSize, 1))] //nolint:gosec // a sample
	rows, err := s.watcher.ListMachines(ctx, bmdb.MachineFilter{States: states, After: after, Limit: pageSize})
	if err == nil && len(rows) != pageSize {
		err = fmt.Errorf("a page has %d rows", len(rows))
	}
	return err
}

func (s *sized) count(ctx context.Context) error {
	summary, err := s.watcher.Summary(ctx)
	if err == nil && summary.Machines != s.size {
		err = fmt.Errorf("%d machines are counted, and there are %d", summary.Machines, s.size)
	}
	return err
}

// flushSome writes the heartbeats of n machines from all over the fleet, or of all.
func (s *sized) flushSome(ctx context.Context, n int) (int, error) {
	some := make(map[fleet.MachineID]bool, n)
	for len(some) < min(n, len(s.ids)) {
		some[s.ids[rand.IntN(len(s.ids))]] = true //nolint:gosec // a sample
	}
	return len(some), s.flush(ctx, slices.Collect(maps.Keys(some)))
}

func (s *sized) flush(ctx context.Context, ids []fleet.MachineID) error {
	seen := make([]bmdb.Seen, len(ids))
	for i, id := range ids {
		seen[i] = bmdb.Seen{Machine: id, TakeoverGeneration: 1}
	}
	return s.watcher.FlushSeen(ctx, seen)
}

// scale measures what must not grow, at each size, with history in proportion to it.
func scale(ctx context.Context, b *bench) error {
	largest := 0
	for _, n := range b.sizes {
		largest = max(largest, n)
	}
	var list []*sized
	for _, size := range b.sizes {
		due := min(2*b.batch, size/4)
		s, err := b.large(ctx, size, due, int(float64(b.history)*float64(size)/float64(largest)))
		if err != nil {
			return err
		}
		n := &sized{subject: s, size: size, figures: make(map[string][]figures), took: make(map[string][]time.Duration)}
		if n.ids, err = speakers(ctx, s.db); err != nil {
			return err
		}
		if err := b.pg.settle(ctx, s.name); err != nil {
			return err
		}
		if n.watcher, err = open(ctx, b.pg.URL(s.name), postgres.Options{Connections: 1}, false); err != nil {
			return err
		}
		if err := n.warm(ctx); err != nil {
			return err
		}
		list = append(list, n)
	}
	for round := range b.rounds + 1 { // the first one warms up
		for _, s := range list {
			if err := b.scaleRound(ctx, s, round == 0); err != nil {
				return fmt.Errorf("%d machines: %w", s.size, err)
			}
		}
	}
	for _, o := range operations() {
		b.addScale(o, list)
	}
	for _, s := range list {
		if err := errors.Join(s.watcher.Close(), s.close(ctx, b)); err != nil {
			return err
		}
	}
	return nil
}

// warm hears every agent once, because between two checkpoints each is heard many times, and only
// the first time costs the log a page; and reads all pages there are, because what a connection
// reads for the first time costs it a fault.
func (s *sized) warm(ctx context.Context) error {
	if err := s.flush(ctx, s.ids); err != nil {
		return err
	}
	for _, states := range [][]fleet.State{nil, fleet.States()} {
		for f := (bmdb.MachineFilter{States: states, Limit: 1000}); ; {
			page, err := s.watcher.ListMachines(ctx, f)
			if err != nil {
				return err
			}
			if len(page) == 0 {
				break
			}
			f.After = page[len(page)-1].ID
		}
	}
	return nil
}

// speakers returns the machines whose agents have spoken, in order.
func speakers(ctx context.Context, db *bmdb.DB) (ids []fleet.MachineID, err error) {
	for f := (bmdb.MachineFilter{Limit: 1000}); ; {
		page, err := db.ListMachines(ctx, f)
		if err != nil || len(page) == 0 {
			return ids, err
		}
		for _, m := range page {
			if !m.LastSeenAt.IsZero() {
				ids = append(ids, m.ID)
			}
		}
		f.After = page[len(page)-1].ID
	}
}

// scaleCalls is how often each operation is done in a round, until there are enough units of it;
// processor time is counted by hundredths of a second.
const (
	scaleCalls = 100
	scaleUnits = 100_000
)

func (b *bench) scaleRound(ctx context.Context, s *sized, warming bool) error {
	list := operations()
	do := func(o operation, calls int) error {
		f, err := b.pg.measure(ctx, func() (units int, err error) {
			for range calls {
				began := time.Now()
				n, err := o.do(ctx, s)
				if err != nil {
					return 0, fmt.Errorf("%s: %w", o.name, err)
				}
				if !warming {
					s.took[o.name] = append(s.took[o.name], time.Since(began))
				}
				if units += n; units >= scaleUnits {
					break
				}
			}
			return units, nil
		})
		if err == nil && !warming {
			s.figures[o.name] = append(s.figures[o.name], f)
		}
		return err
	}
	for range scaleCalls / 20 {
		for _, o := range list[:2] { // what is claimed is finished
			if err := do(o, 1); err != nil {
				return err
			}
		}
	}
	for _, o := range list[2:] {
		if err := do(o, scaleCalls); err != nil {
			return err
		}
	}
	b.say("a round on %d machines", s.size)
	return nil
}

func (b *bench) addScale(o operation, list []*sized) {
	b.addFlat(o.name, !o.unjudged, pick(list, func(s *sized) int { return s.size }), pick(list, func(s *sized) []figures { return s.figures[o.name] }))
	if o.p99 > 0 {
		last := list[len(list)-1]
		p99 := quantile(last.took[o.name], 0.99)
		b.table.add(row{
			what: fmt.Sprintf("%s: p99 at %s machines", o.name, count(last.size)), goal: "≤ " + short(o.p99), ours: short(p99), met: yes(p99 <= o.p99),
		})
	}
}

// flat is how much what an operation costs may grow from the first size of a fleet to the last.
const flat = 1.2

// addFlat adds what an operation costs at each size. Where it is judged, database CPU or buffers
// decide whether it is flat: the former says what a descent of one more level of an index costs,
// and the latter does not depend on what else the machine does.
func (b *bench) addFlat(what string, judged bool, sizes []int, results [][]figures) {
	line := func(name, goal string, of func(list []figures) float64, write func(float64) string) float64 {
		var texts []string
		for i, list := range results {
			texts = append(texts, fmt.Sprintf("%s (%s)", write(of(list)), count(sizes[i])))
		}
		ratio := of(results[len(results)-1]) / max(of(results[0]), 1e-9)
		b.table.add(row{what: what + ": " + name, goal: goal, ours: strings.Join(texts, ", "), ratio: number(ratio)})
		return ratio
	}
	duration := func(microseconds float64) string {
		return short(time.Duration(microseconds * float64(time.Microsecond)))
	}
	goal := noGoal.text
	if judged {
		goal = fmt.Sprintf("this or buffers ≤ %g×", flat)
	}
	verdict := len(b.table.rows)
	cpu := line("database CPU", goal, func(list []figures) float64 { return total(list).cpuEach() }, duration)
	buffers := line("buffers", "", func(list []figures) float64 { return total(list).buffersEach() }, number)
	if judged {
		b.table.rows[verdict].met = yes(min(cpu, buffers) <= flat)
	}
	line("wall", "", func(list []figures) float64 {
		return median(pick(list, func(f figures) float64 { return f.microseconds(f.wall) }))
	}, duration)
}

// count writes a size of a fleet.
func count(n int) string {
	switch {
	case n >= 1_000_000 && n%100_000 == 0:
		return fmt.Sprintf("%gM", float64(n)/1e6)
	case n >= 1000 && n%100 == 0:
		return fmt.Sprintf("%gk", float64(n)/1e3)
	default:
		return fmt.Sprint(n)
	}
}
