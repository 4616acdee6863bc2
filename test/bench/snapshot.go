package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// side is one that can be paced.
type side interface {
	// fresh removes what is left of an earlier measurement.
	fresh(ctx context.Context) error
	// paced does about so many operations, spread over the time.
	paced(ctx context.Context, b *bench, perSecond int, length time.Duration) (int, error)
	// burst measures how fast it is when nothing holds it back.
	burst(ctx context.Context, b *bench) (figures, error)
}

// again is when work that failed is tried again.
const again = 10 * time.Second

func tryAgain(ctx context.Context, w *bmdb.Work) error {
	return w.Fail(ctx, bmdb.Failure{Cause: "connection refused", Backoff: fleet.Backoff{Initial: again, Maximum: again}})
}

// lease is how long a session lasts that is not extended: so far ahead is put in the agenda what is
// worked on.
const lease = 15 * time.Second

// backlog is for how long machines wait until it is their turn, at the pace.
const backlog = time.Minute

// snapshots measures what an open snapshot does: a stranger's transaction that sees the past keeps
// the server from removing what is dead. Each side works at the same pace for the same time, once
// without and once with a snapshot, then as fast as it can. Our work fails and is tried again
// later, as in a fleet whose machines do not answer: what finishes with nothing to show is due
// again at once, which no fleet does.
func snapshots(ctx context.Context, b *bench) error {
	ours, err := b.cycleSubject(ctx, max(b.machines, int((backlog+again).Seconds())*b.pace))
	if err != nil {
		return err
	}
	ours.ends = tryAgain
	if ours.session, err = ours.db.StartSession(ctx, bmdb.SessionOptions{Component: "initializer", Host: "here", Lease: lease}); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	go func() { _ = ours.session.Run(running) }() // what ends it ends the work, which says so
	reference, err := b.river(ctx, riverWorkers)
	if err != nil {
		return err
	}
	our, err := b.blocked(ctx, ours, ours.name)
	if err != nil {
		return err
	}
	theirs, err := b.blocked(ctx, reference, reference.name)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("a snapshot open for %s at %d/s", b.snapshot, b.pace)
	compare := func(what, unit string, of func(s state) float64) row {
		side := func(s [2]state) string {
			return fmt.Sprintf("%s ÷ %s%s = %s", number(of(s[1])), number(of(s[0])), unit, number(of(s[1])/of(s[0])))
		}
		return row{what: what, goal: noGoal.text, ours: side(our), reference: side(theirs)}
	}
	b.table.add(compare(what+": rate, blocked ÷ unblocked", "/s", func(s state) float64 { return s.rate() }))
	b.table.add(compare("the same: pace that was kept", "/s", func(s state) float64 { return s.pace }))
	b.table.add(compare("the same: database CPU", " µs", func(s state) float64 { return s.cpuEach() }))
	b.table.add(compare("the same: buffers", "", func(s state) float64 { return s.each(s.buffers) }))
	if err := reference.close(ctx, b); err != nil {
		return err
	}
	if err := b.sound(ctx, ours.db); err != nil {
		return err
	}
	return ours.close(ctx, b)
}

// state is what was measured without, or with, a snapshot.
type state struct {
	// pace that was kept, per second; the figures are of the burst after it.
	pace float64
	figures
}

// blocked returns what a burst took after a paced run, without and then with a snapshot.
func (b *bench) blocked(ctx context.Context, s side, database string) (both [2]state, err error) {
	for i := range both {
		if err := s.fresh(ctx); err != nil {
			return both, err
		}
		if err := b.pg.settle(ctx, database); err != nil {
			return both, err
		}
		var open pgx.Tx
		if i == 1 {
			conn, err := b.pg.connect(ctx, database)
			if err != nil {
				return both, err
			}
			defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
			if open, err = conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}); err != nil {
				return both, err
			}
			if _, err := open.Exec(ctx, "SELECT count(*) FROM pg_class"); err != nil { // takes the snapshot
				return both, err
			}
		}
		began := time.Now()
		n, err := s.paced(ctx, b, b.pace, b.snapshot)
		if err != nil {
			return both, err
		}
		both[i].pace = float64(n) / time.Since(began).Seconds()
		b.say("%d in %s, snapshot: %t", n, short(time.Since(began)), i == 1)
		if both[i].figures, err = s.burst(ctx, b); err != nil {
			return both, err
		}
		b.say("then: %s", both[i].figures)
		if err := b.sayProfile(ctx, both[i].ops); err != nil {
			return both, err
		}
		if open != nil {
			if err := open.Rollback(ctx); err != nil {
				return both, err
			}
		}
	}
	return both, nil
}

// fresh implements side: a fleet is always the same.
func (s *subject) fresh(context.Context) error { return nil }

// fresh implements side.
func (r *riverSide) fresh(ctx context.Context) error {
	_, err := r.pool.Exec(ctx, "TRUNCATE river_job")
	return err
}

// paced implements side: a batch at a time.
func (s *subject) paced(ctx context.Context, b *bench, perSecond int, length time.Duration) (cycles int, err error) {
	ticker := time.NewTicker(time.Duration(s.batch) * time.Second / time.Duration(perSecond))
	defer ticker.Stop()
	for until := time.Now().Add(length); time.Now().Before(until); {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return cycles, context.Cause(ctx)
		}
		n, err := s.run(ctx, until, s.batch)
		if err != nil {
			return cycles, err
		}
		cycles += n
	}
	return cycles, nil
}

// burst implements side.
func (s *subject) burst(ctx context.Context, b *bench) (figures, error) {
	return b.pg.measure(ctx, func() (int, error) { return s.run(ctx, time.Now().Add(b.duration), 0) })
}

// paced implements side: jobs are inserted at the pace, and worked as they come.
func (r *riverSide) paced(ctx context.Context, b *bench, perSecond int, length time.Duration) (int, error) {
	inserting, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- r.insertPaced(inserting, perSecond, b.batch, length) }()
	n, err := r.run(ctx, r.pool, length+time.Second, 0)
	if err != nil {
		return n, err
	}
	return n, <-failed
}

func (r *riverSide) insertPaced(ctx context.Context, perSecond, batch int, length time.Duration) error {
	ticker := time.NewTicker(time.Duration(batch) * time.Second / time.Duration(perSecond))
	defer ticker.Stop()
	for until := time.Now().Add(length); time.Now().Before(until); {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := r.insert(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// burst implements side.
func (r *riverSide) burst(ctx context.Context, b *bench) (figures, error) {
	jobs := int(1.5 * r.rate * b.duration.Seconds())
	if err := r.insert(ctx, jobs); err != nil {
		return figures{}, err
	}
	return b.pg.measure(ctx, func() (int, error) { return r.run(ctx, r.pool, b.duration, jobs) })
}
