package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5"
)

// figures are what some operations took, all together.
type figures struct {
	ops  int
	wall time.Duration
	// cpu is the processor time of the server's backends. background is that of its other processes:
	// checkpointer, writers, autovacuum.
	cpu, background time.Duration
	// client is the processor time of this process, which is the client.
	client     time.Duration
	statements float64
	buffers    float64
	wal        float64
	// writes are counted only where sides take turns.
	writes writes
}

func (f figures) rate() float64 { return float64(f.ops) / f.wall.Seconds() }

func (f figures) each(of float64) float64 { return of / float64(f.ops) }

func (f figures) microseconds(of time.Duration) float64 {
	return f.each(float64(of) / float64(time.Microsecond))
}

// cpuEach is the processor time of the server's backends per operation, in microseconds.
func (f figures) cpuEach() float64 { return f.microseconds(f.cpu) }

// backgroundEach is the processor time of the server's other processes per operation, in
// microseconds.
func (f figures) backgroundEach() float64 { return f.microseconds(f.background) }

// clientEach is the client's processor time per operation, in microseconds.
func (f figures) clientEach() float64 { return f.microseconds(f.client) }

func (f figures) buffersEach() float64 { return f.each(f.buffers) }

func (f figures) String() string {
	return fmt.Sprintf("%d in %s: %s/s; each %s µs of backends, %s of background, %s of the client, %s statements, %s buffers, %s bytes of WAL", f.ops, short(f.wall),
		number(f.rate()), number(f.cpuEach()), number(f.backgroundEach()), number(f.clientEach()), number(f.each(f.statements)), number(f.buffersEach()), number(f.each(f.wal)))
}

// total adds figures up. Where processor time is short, the sum is surer than a median.
func total(list []figures) (sum figures) {
	for _, f := range list {
		sum.ops += f.ops
		sum.wall += f.wall
		sum.cpu += f.cpu
		sum.background += f.background
		sum.client += f.client
		sum.statements += f.statements
		sum.buffers += f.buffers
		sum.wal += f.wal
	}
	return sum
}

// measure runs do, which returns how many operations it did, and says what they took. The
// connection that measures is not counted, and neither is garbage that the client has left before.
func (s *server) measure(ctx context.Context, do func() (int, error)) (f figures, err error) {
	conn, err := s.connect(ctx, "postgres")
	if err != nil {
		return f, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var own int
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid() FROM pg_stat_statements_reset()").Scan(&own); err != nil {
		return f, err
	}
	before, err := s.wal(ctx, conn)
	if err != nil {
		return f, err
	}
	runtime.GC()
	meter, err := startMeter(s.postmaster, own)
	if err != nil {
		return f, err
	}
	client := ownCPU()
	began := time.Now()
	f.ops, err = do()
	f.wall, f.client = time.Since(began), ownCPU()-client
	used, stopped := meter.stop()
	if err := errors.Join(err, stopped); err != nil {
		return f, err
	}
	f.cpu, f.background = used.backends, used.background
	wal, err := s.wal(ctx, conn)
	if err != nil {
		return f, err
	}
	f.wal = wal - before
	err = conn.QueryRow(ctx, `SELECT COALESCE(sum(calls), 0)::float8, COALESCE(sum(shared_blks_hit + shared_blks_read), 0)::float8
		FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
		WHERE d.datname <> 'postgres' AND query !~* '^(begin|commit|rollback|discard|deallocate|set |show |;)'`).Scan(&f.statements, &f.buffers)
	return f, err
}

func (s *server) wal(ctx context.Context, conn *pgx.Conn) (bytes float64, err error) {
	return bytes, conn.QueryRow(ctx, "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8").Scan(&bytes)
}

// profile says which statements took the server longest, since the last reset.
func (b *bench) sayProfile(ctx context.Context, ops int) error {
	if !b.profile {
		return nil
	}
	conn, err := b.pg.connect(ctx, "postgres")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, `SELECT calls::float8, total_exec_time, total_plan_time, (shared_blks_hit + shared_blks_read)::float8, wal_bytes::float8,
		regexp_replace(query, '\s+', ' ', 'g')
		FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname <> 'postgres' ORDER BY total_exec_time DESC LIMIT 25`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var calls, took, planned, buffers, wal float64
		var query string
		if err := rows.Scan(&calls, &took, &planned, &buffers, &wal, &query); err != nil {
			return err
		}
		n := float64(ops)
		b.say("  %7.3f calls %8.2f µs + %6.2f planning %7.1f buffers %7.0f WAL each: %s", calls/n, took*1000/n, planned*1000/n, buffers/n, wal/n, query[:min(len(query), 150)])
	}
	return rows.Err()
}
