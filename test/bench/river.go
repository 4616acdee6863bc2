package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// noop is a job that does nothing.
type noop struct {
	N int `json:"n"`
}

// Kind implements river.JobArgs.
func (noop) Kind() string { return "noop" }

type noopWorker struct {
	river.WorkerDefaults[noop]
	worked *atomic.Int64
}

// Work implements river.Worker.
func (w *noopWorker) Work(context.Context, *river.Job[noop]) error {
	w.worked.Add(1)
	return nil
}

// riverSide is River as its users run it: the default client with its batch completer, and one
// queue. So that it is not its pauses that are measured it may fetch as soon as it wants to
// (FetchCooldown 1 ms instead of 100 ms, FetchPollInterval 5 ms instead of 1 s).
type riverSide struct {
	name    string
	pool    *pgxpool.Pool
	workers int
	// rate of the last round, by which the next one is filled.
	rate float64
	// retention is how long River keeps a completed job; 0: as long as by default, which is a day.
	retention time.Duration
	// logger gets what the clients say.
	logger *slog.Logger
}

func (b *bench) river(ctx context.Context, workers int) (*riverSide, error) {
	s, err := b.server(ctx)
	if err != nil {
		return nil, err
	}
	r := &riverSide{workers: workers, rate: 8000, logger: slog.New(slog.DiscardHandler)}
	if r.name, err = s.Create(ctx, ""); err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(s.URL(r.name))
	if err != nil {
		return nil, err
	}
	config.MaxConns = 16
	if r.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	m, err := rivermigrate.New(riverpgxv5.New(r.pool), &rivermigrate.Config{Logger: r.logger})
	if err != nil {
		return nil, err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return r, err
}

func (r *riverSide) client(pool *pgxpool.Pool, worked *atomic.Int64) (*river.Client[pgxTx], error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &noopWorker{worked: worked})
	return river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger: r.logger, Workers: workers, FetchCooldown: time.Millisecond, FetchPollInterval: 5 * time.Millisecond,
		Queues:                      map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: r.workers}},
		CompletedJobRetentionPeriod: r.retention,
	})
}

// insertedAtOnce is how many jobs one COPY inserts at most.
const insertedAtOnce = 5000

// insert makes jobs that are due.
func (r *riverSide) insert(ctx context.Context, n int) error {
	// The server counts at once what a connection did that is closed.
	pool, err := pgxpool.New(ctx, r.pool.Config().ConnString())
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	if err != nil {
		return err
	}
	for done := 0; done < n; done += insertedAtOnce {
		if _, err := client.InsertManyFast(ctx, jobs(min(n-done, insertedAtOnce))); err != nil {
			return err
		}
	}
	return nil
}

// jobs returns n new ones.
func jobs(n int) []river.InsertManyParams {
	list := make([]river.InsertManyParams, n)
	for i := range list {
		list[i].Args = noop{N: i}
	}
	return list
}

// run works jobs until the time is over or, where most is not 0, as many, and returns how many were
// worked and acknowledged.
func (r *riverSide) run(ctx context.Context, pool *pgxpool.Pool, length time.Duration, most int) (int, error) {
	var worked atomic.Int64
	client, err := r.client(pool, &worked)
	if err != nil {
		return 0, err
	}
	if err := client.Start(ctx); err != nil {
		return 0, err
	}
	over := time.Now().Add(length)
	err = until(ctx, func() bool { return time.Now().After(over) || most > 0 && int(worked.Load()) >= most })
	if err := errors.Join(err, client.Stop(ctx)); err != nil { // it waits for the completer
		return 0, err
	}
	return int(worked.Load()), nil
}

// until waits until something is so.
func until(ctx context.Context, so func() bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// holds fails unless the database has so many completed jobs.
func (r *riverSide) holds(ctx context.Context, jobs int) error {
	var completed int
	err := r.pool.QueryRow(ctx, "SELECT count(*) FROM river_job WHERE state = 'completed'").Scan(&completed)
	if err == nil && completed != jobs {
		err = fmt.Errorf("the database has %d completed jobs, and there ought to be %d", completed, jobs)
	}
	return err
}

// bare is River's claim and completion alone: jobs are inserted before the clock starts, and none
// is deleted.
func (r *riverSide) bare(b *bench) contestant {
	jobs := func() int { return int(1.5 * r.rate * b.duration.Seconds()) }
	return contestant{
		title: "River, claim and complete", database: r.name, check: r.holds,
		prepare: func(ctx context.Context) error {
			if err := r.fresh(ctx); err != nil {
				return err
			}
			return r.insert(ctx, jobs())
		},
		work: func(ctx context.Context) (int, error) {
			began := time.Now()
			n, err := r.run(ctx, r.pool, b.duration, jobs())
			r.rate = max(float64(n)/time.Since(began).Seconds(), 6000)
			return n, err
		},
	}
}

func (r *riverSide) close(ctx context.Context, b *bench) error {
	r.pool.Close()
	return b.pg.Drop(ctx, r.name)
}
