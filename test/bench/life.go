package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river"
)

// riverLife is River from a job's insertion to its deletion. In each round as many jobs are deleted
// as are inserted, claimed and completed: River's cleaner deletes those that the round before left,
// beside the work on the new ones, as it does at the default retention of a day with yesterday's.
//
// The cleaner runs when its client becomes the leader, which is at once, and every 30 seconds
// thereafter; it deletes up to 10,000 jobs at a time and pauses for up to a second in between.
type riverLife struct {
	*riverSide
	deleted *deletions
	// jobs is how many there are in a round.
	jobs int
	// stocked is when the last of the jobs was completed that the next round deletes.
	stocked time.Time
}

// riverLife makes one, with jobs for its first round to delete.
func (b *bench) riverLife(ctx context.Context) (*riverLife, error) {
	side, err := b.river(ctx, riverWorkers)
	if err != nil {
		return nil, err
	}
	r := &riverLife{riverSide: side, deleted: new(deletions)}
	r.logger = slog.New(r.deleted)
	// Longer than a round takes: no job is deleted in the round that it is inserted in.
	r.retention = 30*time.Second + 2*b.duration
	trial := max(int(2000*b.duration.Seconds()), 1)
	began := time.Now()
	if err := r.live(ctx, trial, 0); err != nil {
		return nil, err
	}
	r.jobs = max(trial, int(float64(trial)*float64(b.duration)/float64(time.Since(began))))
	if r.jobs > trial {
		err = r.live(ctx, r.jobs-trial, 0)
	}
	b.say("River: %d jobs in each round, and as many to delete", r.jobs)
	return r, err
}

// lives are whole lives of jobs.
func (r *riverLife) lives(*bench) contestant {
	return contestant{
		title: "River, whole lives", database: r.name, check: r.holds,
		prepare: func(ctx context.Context) error {
			return pause(ctx, time.Until(r.stocked.Add(r.retention+time.Second)))
		},
		work: func(ctx context.Context) (int, error) { return r.jobs, r.live(ctx, r.jobs, r.jobs) },
	}
}

// live inserts and works so many jobs, until they are completed and River has deleted so many.
func (r *riverLife) live(ctx context.Context, jobs, deletions int) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.retention, fmt.Errorf("River did not insert, complete and delete %d jobs within %s", jobs, r.retention))
	defer cancel()
	r.deleted.n.Store(0)
	var worked atomic.Int64
	client, err := r.client(r.pool, &worked)
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	err = r.feed(ctx, client, jobs, &worked)
	if err == nil {
		err = until(ctx, func() bool { return int(worked.Load()) >= jobs && int(r.deleted.n.Load()) >= deletions })
	}
	err = errors.Join(err, client.Stop(context.WithoutCancel(ctx))) // it waits for the completer
	r.stocked = time.Now()
	return err
}

// feed inserts jobs, no faster than they are worked: two insertions ahead.
func (r *riverLife) feed(ctx context.Context, client *river.Client[pgxTx], n int, worked *atomic.Int64) error {
	for done := 0; done < n; done += insertedAtOnce {
		if err := until(ctx, func() bool { return done-int(worked.Load()) < 2*insertedAtOnce }); err != nil {
			return err
		}
		if _, err := client.InsertManyFast(ctx, jobs(min(n-done, insertedAtOnce))); err != nil {
			return err
		}
	}
	return nil
}

// deletions counts the jobs that River's cleaner says it deleted, so that nobody has to ask the
// database under the clock. It is a handler of River's log.
type deletions struct{ n atomic.Int64 }

// Enabled implements slog.Handler. Below this level the cleaner tells each batch, too.
func (*deletions) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// Handle implements slog.Handler.
func (d *deletions) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "num_jobs_deleted" {
			d.n.Add(a.Value.Int64())
		}
		return true
	})
	return nil
}

// WithAttrs implements slog.Handler.
func (d *deletions) WithAttrs([]slog.Attr) slog.Handler { return d }

// WithGroup implements slog.Handler.
func (d *deletions) WithGroup(string) slog.Handler { return d }
