package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// figures are what some operations took, all together.
type figures struct {
	ops       int
	wall, cpu time.Duration
	// client is the processor time of this process, which is the client.
	client time.Duration
	// before is the database's processor time for what had to be there before an operation could be
	// done: a job, inserted.
	before     time.Duration
	statements float64
	buffers    float64
	wal        float64
}

func (f figures) rate() float64 { return float64(f.ops) / f.wall.Seconds() }

// cpuEach is the database's processor time per operation, in microseconds.
func (f figures) cpuEach() float64 {
	return float64(f.cpu) / float64(time.Microsecond) / float64(f.ops)
}

// wholeEach is cpuEach with what came before.
func (f figures) wholeEach() float64 {
	return f.cpuEach() + float64(f.before)/float64(time.Microsecond)/float64(f.ops)
}

// clientEach is the client's processor time per operation, in microseconds.
func (f figures) clientEach() float64 {
	return float64(f.client) / float64(time.Microsecond) / float64(f.ops)
}

func (f figures) each(of float64) float64 { return of / float64(f.ops) }

func (f figures) String() string {
	return fmt.Sprintf("%d in %s: %s/s, %s µs of CPU (and %s of the client), %s statements, %s buffers, %s bytes of WAL each", f.ops, short(f.wall),
		number(f.rate()), number(f.cpuEach()), number(f.clientEach()), number(f.each(f.statements)), number(f.each(f.buffers)), number(f.each(f.wal)))
}

// measure runs do, which returns how many operations it did, and says what they took. The
// statements of the connection that measures are not counted.
func (s *server) measure(ctx context.Context, do func() (int, error)) (f figures, err error) {
	conn, err := s.connect(ctx, "postgres")
	if err != nil {
		return f, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "SELECT pg_stat_statements_reset()"); err != nil {
		return f, err
	}
	before, err := s.wal(ctx, conn)
	if err != nil {
		return f, err
	}
	cpu, err := cpuOf(s.postmaster)
	if err != nil {
		return f, err
	}
	client := ownCPU()
	began := time.Now()
	if f.ops, err = do(); err != nil {
		return f, err
	}
	f.wall, f.client = time.Since(began), ownCPU()-client
	after, err := cpuOf(s.postmaster)
	if err != nil {
		return f, err
	}
	f.cpu = after - cpu
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

// ownCPU is the processor time of this process.
func ownCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0 // it cannot fail for oneself
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// ticksPerSecond is what /proc counts processor time in: USER_HZ, which is 100 on every Linux that
// Go runs on.
const ticksPerSecond = 100

// cpuOf is the processor time of a process, of its children that live, and of those that ended.
func cpuOf(pid int) (time.Duration, error) {
	ticks, err := ticksOf(pid)
	if err != nil {
		return 0, err
	}
	children, err := childrenOf(pid)
	if err != nil {
		return 0, err
	}
	for _, child := range children {
		if n, err := ticksOf(child); err == nil { // it may just have ended
			ticks += n
		}
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

func childrenOf(pid int) (children []int, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	for _, path := range stats {
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		if parent, err := parentOf(child); err == nil && parent == pid {
			children = append(children, child)
		}
	}
	return children, nil
}

// stat returns the fields of /proc/pid/stat from the third (the state) on: see proc(5).
func stat(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	_, rest, ok := strings.Cut(string(text), ") ")
	list := strings.Fields(rest)
	if !ok || len(list) < 20 {
		return nil, fmt.Errorf("/proc/%d/stat cannot be understood: %q", pid, text)
	}
	return list, nil
}

func parentOf(pid int) (int, error) {
	list, err := stat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(list[1])
}

func ticksOf(pid int) (ticks int64, err error) {
	list, err := stat(pid)
	if err != nil {
		return 0, err
	}
	for _, f := range list[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return ticks, nil
}
