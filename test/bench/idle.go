package main

import (
	"context"
	"fmt"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
)

// idle measures a claim that finds nothing, at each size of the fleet.
func idle(ctx context.Context, b *bench) error {
	// So many that the pages of the catalogue that planning reads, once after the tables were
	// analyzed, do not count.
	const polls = 5000
	var results [][]figures
	for _, size := range b.sizes {
		s, err := b.large(ctx, size, 40, 0)
		if err != nil {
			return err
		}
		if err := b.park(ctx, s); err != nil {
			return err
		}
		poll := func(session *bmdb.Session) (int, error) {
			for range polls {
				c, err := session.Claim(ctx, bmdb.ClaimRequest{
					Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{provider}, Limit: 10,
				})
				if err != nil || len(c.Works) > 0 {
					return 0, fmt.Errorf("an idle claim got %d works: %w", len(c.Works), err)
				}
			}
			return polls, nil
		}
		// the first ones prepare statements
		if _, err := poll(s.session); err != nil {
			return err
		}
		if err := b.pg.settle(ctx, s.name); err != nil {
			return err
		}
		f, err := b.pg.measure(ctx, func() (int, error) { return poll(s.session) })
		if err != nil {
			return err
		}
		b.say("idle, %d machines: %s", size, f)
		if err := b.sayProfile(ctx, f.ops); err != nil {
			return err
		}
		trips, err := b.idleTrips(ctx, s, poll)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("idle poll, %d machines", size)
		statements, buffers := f.each(f.statements), f.each(f.buffers)
		b.table.add(row{what: what + ": statements", goal: "≤ 1", ours: number(statements), met: yes(statements < 1.05)})
		b.table.add(row{what: what + ": buffers", goal: "≤ 3", ours: number(buffers), met: yes(buffers < 3.05)})
		b.table.add(row{what: what + ": round trips", ours: number(trips)})
		results = append(results, []figures{f})
		if err := s.close(ctx, b); err != nil {
			return err
		}
	}
	b.addFlat("idle poll", true, b.sizes, results)
	return nil
}

// park makes nothing due: whatever is, fails with a backoff of a day.
func (b *bench) park(ctx context.Context, s *subject) error {
	for {
		works, err := s.claim(ctx)
		if err != nil || len(works) == 0 {
			return err
		}
		err = each(works, func(w *bmdb.Work) error { return w.Fail(ctx, bmdb.Failure{Cause: "parked", Backoff: longBackoff}) })
		if err != nil {
			return err
		}
	}
}

func (b *bench) idleTrips(ctx context.Context, s *subject, poll func(*bmdb.Session) (int, error)) (float64, error) {
	return b.tripsOf(ctx, b.pg.URL(s.name), func(url string) (int, error) {
		db, err := open(ctx, url, postgres.Options{}, false)
		if err != nil {
			return 0, err
		}
		session, err := startSession(ctx, db, "initializer")
		if err != nil {
			return 0, err
		}
		n, err := poll(session)
		if err != nil {
			return 0, err
		}
		return n, db.Close()
	})
}
