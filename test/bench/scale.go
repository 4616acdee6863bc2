package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// sized is a fleet of one size and what was measured on it, by the name of the operation.
type sized struct {
	*subject
	size    int
	ids     []fleet.MachineID
	figures map[string][]figures
	// took is how long each call took.
	took map[string][]time.Duration
	held []*bmdb.Work
}

// operation is one thing whose cost must not grow with the fleet. do does it once and returns how many units that were.
type operation struct {
	name string
	goal string
	// bound on the 99th percentile in the largest fleet; 0: none.
	p99 time.Duration
	do  func(ctx context.Context, s *sized) (int, error)
}

func operations() []operation {
	return []operation{
		{"claim, per work", "flat within 1.2×", 0, func(ctx context.Context, s *sized) (int, error) {
			c, err := s.session.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{provider}, Limit: s.batch})
			s.held = c.Works
			return len(c.Works), err
		}},
		{"finish, per work", "flat within 1.2×", 0, func(ctx context.Context, s *sized) (int, error) {
			return len(s.held), each(s.held, func(w *bmdb.Work) error { return w.Finish(ctx) })
		}},
		{"heartbeat flush of 1,000, per heartbeat", "flat within 1.2×", 0, flushSome},
		{"list page of 100", "flat within 1.2×", 100 * time.Millisecond, func(ctx context.Context, s *sized) (int, error) {
			_, err := s.db.ListMachines(ctx, bmdb.MachineFilter{After: s.ids[rand.IntN(len(s.ids))], Limit: 100}) //nolint:gosec // a sample
			return 1, err
		}},
		{"list page of 100, by state", "flat within 1.2×", 100 * time.Millisecond, func(ctx context.Context, s *sized) (int, error) {
			_, err := s.db.ListMachines(ctx, bmdb.MachineFilter{
				Provider: provider, States: fleet.States()[:3], After: s.ids[rand.IntN(len(s.ids))], Limit: 100, //nolint:gosec // a sample
			})
			return 1, err
		}},
		{"state counts", "flat within 1.2×", 100 * time.Millisecond, func(ctx context.Context, s *sized) (int, error) {
			summary, err := s.db.Summary(ctx)
			if err == nil && summary.Machines != s.size {
				err = fmt.Errorf("%d machines are counted, and there are %d", summary.Machines, s.size)
			}
			return 1, err
		}},
	}
}

// flushSome writes a thousand heartbeats of machines from all over the fleet.
func flushSome(ctx context.Context, s *sized) (int, error) {
	seen := make([]bmdb.Seen, 1000)
	for i := range seen {
		seen[i] = bmdb.Seen{Machine: s.ids[rand.IntN(len(s.ids))], TakeoverGeneration: 1} //nolint:gosec // a sample
	}
	return len(seen), s.db.FlushSeen(ctx, seen)
}

// scale measures what must not grow, at each size, with history in proportion to it.
func scale(ctx context.Context, b *bench) error {
	largest := 0
	for _, n := range b.sizes {
		largest = max(largest, n)
	}
	var list []*sized
	for _, size := range b.sizes {
		due := min(5*b.batch, size/2)
		s, err := b.large(ctx, size, due, int(float64(b.history)*float64(size)/float64(largest)))
		if err != nil {
			return err
		}
		n := &sized{subject: s, size: size, figures: make(map[string][]figures), took: make(map[string][]time.Duration)}
		if n.ids, err = b.sample(ctx, s.name); err != nil {
			return err
		}
		if err := b.pg.settle(ctx, s.name); err != nil {
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
		if err := s.close(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// sample returns machines from all over the fleet whose agents have spoken.
func (b *bench) sample(ctx context.Context, name string) (ids []fleet.MachineID, err error) {
	conn, err := b.pg.connect(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, "SELECT machine FROM (SELECT machine FROM fact_agent_seen ORDER BY md5(machine) LIMIT 20000) AS s")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, fleet.MachineID(id))
	}
	return ids, rows.Err()
}

// scaleCalls is how often each operation is done in a round.
const scaleCalls = 20

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
				units += n
			}
			return units, nil
		})
		if err == nil && !warming {
			s.figures[o.name] = append(s.figures[o.name], f)
		}
		return err
	}
	for range scaleCalls / 4 {
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
	line := func(name, goal string, of func(s *sized) float64, write func(float64) string, met func(ratio float64) string) {
		var texts []string
		for _, s := range list {
			texts = append(texts, fmt.Sprintf("%s (%s)", write(of(s)), count(s.size)))
		}
		ratio := of(list[len(list)-1]) / max(of(list[0]), 1e-9)
		b.table.add(row{what: o.name + ": " + name, goal: goal, ours: strings.Join(texts, ", "), ratio: number(ratio), met: met(ratio)})
	}
	flat := func(r float64) string { return yes(r <= 1.2) }
	line("wall", o.goal, func(s *sized) float64 {
		return median(pick(s.figures[o.name], func(f figures) float64 { return float64(f.wall) / float64(f.ops) }))
	}, func(x float64) string { return short(time.Duration(x)) }, flat)
	line("buffers", "", func(s *sized) float64 {
		return median(pick(s.figures[o.name], func(f figures) float64 { return f.each(f.buffers) }))
	}, number, func(float64) string { return "" })
	if o.p99 > 0 {
		last := list[len(list)-1]
		p99 := quantile(last.took[o.name], 0.99)
		b.table.add(row{
			what: fmt.Sprintf("%s: p99 at %s machines", o.name, count(last.size)), goal: "≤ " + short(o.p99), ours: short(p99), met: yes(p99 <= o.p99),
		})
	}
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
