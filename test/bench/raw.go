package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// rawSchema is the least that has the same durable effect as a lease cycle: work that is due in an
// order, its holder, an epoch, and a log with a row for each end, which says when its work started.
const rawSchema = `
CREATE TABLE raw_work (
  id TEXT COLLATE "C" PRIMARY KEY, due_at BIGINT NOT NULL, first_due_at BIGINT NOT NULL, epoch BIGINT NOT NULL, session BIGINT NOT NULL,
  since BIGINT NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX raw_work_due ON raw_work (due_at, id);
CREATE INDEX raw_work_held ON raw_work (session) WHERE session <> 0;
CREATE TABLE raw_log (
  id BIGINT GENERATED ALWAYS AS IDENTITY, subject TEXT COLLATE "C" NOT NULL, at BIGINT NOT NULL, epoch BIGINT NOT NULL,
  started_at BIGINT NOT NULL, event TEXT COLLATE "C" NOT NULL, session BIGINT NOT NULL
);
CREATE INDEX raw_log_subject ON raw_log (subject, id);`

// rawScript is run by pgbench: a batch is claimed with SKIP LOCKED and ended by whoever holds it.
const rawScript = `\set me :client_id + 1
WITH picked AS (
  SELECT id FROM raw_work WHERE due_at <= %[2]s ORDER BY due_at, id LIMIT %[1]d FOR UPDATE SKIP LOCKED
) UPDATE raw_work w SET epoch = epoch + 1, session = :me, since = %[2]s, due_at = %[2]s + 5000000 FROM picked WHERE w.id = picked.id;
WITH done AS (
  UPDATE raw_work SET session = 0, due_at = first_due_at WHERE session = :me RETURNING id, epoch, since
) INSERT INTO raw_log (subject, at, epoch, started_at, event, session) SELECT id, %[2]s, epoch, since, 'finished', :me FROM done;
`

const rawNow = "CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)"

// rawSide is pgbench on tables of its own.
type rawSide struct {
	name, dir string
	clients   int
}

func (b *bench) raw(ctx context.Context, machines, clients int) (*rawSide, error) {
	s, err := b.server(ctx)
	if err != nil {
		return nil, err
	}
	r := &rawSide{clients: clients}
	if r.name, err = s.Create(ctx, ""); err != nil {
		return nil, err
	}
	if err := s.Exec(ctx, r.name, rawSchema, fmt.Sprintf(`INSERT INTO raw_work SELECT CAST(gen_random_uuid() AS TEXT), n, n, 0, 0, 0
		FROM generate_series(1, %d) AS n`, machines)); err != nil {
		return nil, err
	}
	if r.dir, err = os.MkdirTemp("", "ironherd-bench-"); err != nil {
		return nil, err
	}
	return r, os.WriteFile(r.script(), fmt.Appendf(nil, rawScript, b.batch, rawNow), 0o600)
}

func (r *rawSide) script() string { return filepath.Join(r.dir, "cycle.sql") }

func (r *rawSide) close(ctx context.Context, b *bench) error {
	if err := os.RemoveAll(r.dir); err != nil {
		return err
	}
	return b.pg.Drop(ctx, r.name)
}

// pgbench finds the newest one that is installed.
func pgbench() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench") // the pattern is right
	if len(found) > 0 {
		return found[len(found)-1]
	}
	return "pgbench"
}

// cycles are those of the script. The log is emptied before each round.
func (r *rawSide) cycles(b *bench) contestant {
	return contestant{
		title: "pgbench", database: r.name,
		prepare: func(ctx context.Context) error { return b.pg.Exec(ctx, r.name, "TRUNCATE raw_log") },
		work: func(ctx context.Context) (n int, err error) {
			command := exec.CommandContext(ctx, pgbench(), "-n", "-M", "prepared", "-c", fmt.Sprint(r.clients), "-j", "1",
				"-T", fmt.Sprint(max(int(b.duration.Seconds()), 1)), "-f", r.script(), b.pg.URL(r.name))
			var said bytes.Buffer
			command.Stdout, command.Stderr = &said, &said
			if err := command.Run(); err != nil {
				return 0, fmt.Errorf("pgbench: %w: %s", err, strings.TrimSpace(said.String()))
			}
			conn, err := b.pg.connect(ctx, r.name)
			if err != nil {
				return 0, err
			}
			defer func() { _ = conn.Close(ctx) }()
			return n, conn.QueryRow(ctx, "SELECT count(*) FROM raw_log").Scan(&n)
		},
	}
}

// rawCycles compares lease cycles with the raw script.
func rawCycles(ctx context.Context, b *bench) error {
	ours, err := b.cycleSubject(ctx, b.machines)
	if err != nil {
		return err
	}
	reference, err := b.raw(ctx, b.machines, 2)
	if err != nil {
		return err
	}
	results, err := b.takeTurns(ctx, ours.cycles(b), reference.cycles(b))
	if err != nil {
		return err
	}
	b.compare(fmt.Sprintf("lease cycle, batch %d, beside a raw SKIP LOCKED script", b.batch), results[0], results[1], map[string]goal{
		rateFigure: noGoal, cpuFigure: noGoal,
	})
	if err := reference.close(ctx, b); err != nil {
		return err
	}
	if err := b.sound(ctx, ours.db); err != nil {
		return err
	}
	return ours.close(ctx, b)
}
