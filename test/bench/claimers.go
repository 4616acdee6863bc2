package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
)

// maxProcesses is how many databases are opened at most; more claimers than that share them, as the
// loops of one process do.
const maxProcesses = 16

// mostClaimers is up to how many claimers there are goals.
const mostClaimers = 16

// warming is how long claimers run before they are measured, so that all have connected and
// planned.
const warming = time.Second

// claimers measures the same cycles by so many claimers at a time, on a fleet where work always
// remains.
func claimers(ctx context.Context, b *bench) error {
	most := 1
	for _, n := range b.claimers {
		most = max(most, n)
	}
	due := max(b.machines, 4*most*b.batch)
	s, err := b.large(ctx, due+40, due, 0)
	if err != nil {
		return err
	}
	results := make(map[int][]figures)
	empty, failed := make(map[int]int), make(map[int]int)
	for range b.rounds {
		for _, n := range b.claimers {
			if err := b.pg.settle(ctx, s.name); err != nil {
				return err
			}
			f, none, errs, err := b.concurrently(ctx, s.name, n, due)
			if err != nil {
				return err
			}
			b.say("%d claimers: %s; %d empty-handed, %d failed", n, f, none, errs)
			if err := b.sayProfile(ctx, f.ops); err != nil {
				return err
			}
			results[n] = append(results[n], f)
			empty[n] += none
			failed[n] += errs
		}
	}
	best := 0.0
	for _, list := range results {
		best = max(best, median(pick(list, figures.rate)))
	}
	for _, n := range b.claimers {
		rate := median(pick(results[n], figures.rate))
		r := row{what: fmt.Sprintf("%d claimers: rate, beside the best", n), goal: noGoal.text, ours: number(rate) + "/s", reference: number(best) + "/s", ratio: number(rate / best)}
		if n <= mostClaimers {
			r.goal, r.met = "≥ 0.9×", yes(rate >= 0.9*best)
		}
		b.table.add(r)
		r = row{what: fmt.Sprintf("%d claimers: empty-handed; errors", n), goal: "no goal; 0", ours: fmt.Sprintf("%d; %d", empty[n], failed[n]), met: yes(failed[n] == 0)}
		if n <= mostClaimers {
			r.goal, r.met = "0; 0", yes(empty[n] == 0 && failed[n] == 0)
		}
		b.table.add(r)
		b.table.add(row{what: fmt.Sprintf("%d claimers: database CPU", n), ours: number(median(pick(results[n], figures.cpuEach))) + " µs"})
	}
	if err := b.sound(ctx, s.db); err != nil {
		return err
	}
	return s.close(ctx, b)
}

// concurrently runs cycles by so many claimers and counts the claims that came back with nothing,
// and the errors.
func (b *bench) concurrently(ctx context.Context, name string, n, due int) (f figures, empty, failed int, err error) {
	processes := min(n, maxProcesses)
	dbs := make([]*bmdb.DB, processes)
	for i := range dbs {
		if dbs[i], err = open(ctx, b.pg.URL(name), postgres.Options{Connections: 4 * (n + processes - 1) / processes}, false); err != nil {
			return f, 0, 0, err
		}
	}
	list := make([]*cycler, n)
	for i := range list {
		db := dbs[i%processes]
		session, err := startSession(ctx, db, "initializer")
		if err != nil {
			return f, 0, 0, err
		}
		list[i] = &cycler{db: db, session: session, batch: b.batch, hold: due / 2 / n}
	}
	var mu sync.Mutex
	together := func(length time.Duration) (cycles int) {
		until := time.Now().Add(length)
		var wg sync.WaitGroup
		for _, c := range list {
			wg.Go(func() {
				n, err := c.run(ctx, until, 0)
				mu.Lock()
				defer mu.Unlock()
				cycles += n
				if err != nil {
					failed++
					b.say("a claimer failed: %v", err)
				}
			})
		}
		wg.Wait()
		return cycles
	}
	together(warming)
	f, err = b.pg.measure(ctx, func() (int, error) { return together(b.duration), nil })
	if err != nil {
		return f, 0, 0, err
	}
	for _, c := range list {
		empty += c.empty
		if err := c.session.Close(ctx, "done"); err != nil {
			return f, 0, 0, err
		}
	}
	for _, db := range dbs {
		if err := db.Close(); err != nil {
			return f, 0, 0, err
		}
	}
	return f, empty, failed, nil
}
