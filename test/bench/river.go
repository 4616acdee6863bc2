package main

import (
	"context"
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
}

// rivers makes one for each number of workers.
func (b *bench) rivers(ctx context.Context, workers ...int) (list []*riverSide, err error) {
	for _, n := range workers {
		r, err := b.river(ctx, n)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

func (b *bench) river(ctx context.Context, workers int) (*riverSide, error) {
	s, err := b.server(ctx)
	if err != nil {
		return nil, err
	}
	r := &riverSide{workers: workers, rate: 8000}
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
	m, err := rivermigrate.New(riverpgxv5.New(r.pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
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
		Logger: slog.New(slog.DiscardHandler), Workers: workers, FetchCooldown: time.Millisecond, FetchPollInterval: 5 * time.Millisecond,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: r.workers}},
	})
}

// insert makes jobs that are due.
func (r *riverSide) insert(ctx context.Context, n int) error {
	client, err := river.NewClient(riverpgxv5.New(r.pool), &river.Config{})
	if err != nil {
		return err
	}
	for done := 0; done < n; {
		jobs := make([]river.InsertManyParams, min(n-done, 5000))
		for i := range jobs {
			jobs[i].Args = noop{N: done + i}
		}
		if _, err := client.InsertManyFast(ctx, jobs); err != nil {
			return err
		}
		done += len(jobs)
	}
	return nil
}

// run works jobs until the time is over or, where most is not 0, as many, and returns how many were
// completed, durably.
func (r *riverSide) run(ctx context.Context, pool *pgxpool.Pool, length time.Duration, most int) (int, error) {
	before, err := r.completed(ctx)
	if err != nil {
		return 0, err
	}
	var worked atomic.Int64
	client, err := r.client(pool, &worked)
	if err != nil {
		return 0, err
	}
	if err := client.Start(ctx); err != nil {
		return 0, err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	over := time.NewTimer(length)
	defer over.Stop()
	for running := true; running; {
		select {
		case <-over.C:
			running = false
		case <-tick.C:
			running = most == 0 || int(worked.Load()) < most
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if err := client.Stop(ctx); err != nil { // waits for the completer
		return 0, err
	}
	after, err := r.completed(ctx)
	if err == nil && int64(after-before) != worked.Load() {
		err = fmt.Errorf("%d jobs were worked and %d completed", worked.Load(), after-before)
	}
	return after - before, err
}

func (r *riverSide) completed(ctx context.Context) (n int, err error) {
	return n, r.pool.QueryRow(ctx, "SELECT count(*) FROM river_job WHERE state = 'completed'").Scan(&n)
}

// round measures one round of jobs, which were inserted before.
func (r *riverSide) round(ctx context.Context, b *bench) (figures, error) {
	if err := r.fresh(ctx); err != nil {
		return figures{}, err
	}
	jobs := int(1.5 * r.rate * b.duration.Seconds())
	inserted, err := b.pg.measure(ctx, func() (int, error) { return jobs, r.insert(ctx, jobs) })
	if err != nil {
		return figures{}, err
	}
	if err := b.pg.settle(ctx, r.name); err != nil {
		return figures{}, err
	}
	f, err := b.pg.measure(ctx, func() (int, error) { return r.run(ctx, r.pool, b.duration, jobs) })
	if err != nil {
		return f, err
	}
	r.rate = max(f.rate(), 6000)
	f.before = time.Duration(float64(inserted.cpu) * float64(f.ops) / float64(jobs))
	b.say("River, %d workers: %s", r.workers, f)
	return f, b.sayProfile(ctx, f.ops)
}

func (r *riverSide) close(ctx context.Context, b *bench) error {
	r.pool.Close()
	return b.pg.Drop(ctx, r.name)
}
