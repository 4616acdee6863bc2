package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/test/pgserver"
)

// version is what the program was built from; `make bench-bmdb` sets it.
var version = "unknown"

// bench is one run of the command.
type bench struct {
	options
	table    *table
	progress io.Writer
	began    time.Time

	pg *server
}

// print writes what the figures are of, and the table.
func (b *bench) print(ctx context.Context, out io.Writer) error {
	of := []string{"version " + version, fmt.Sprintf("%d processors", runtime.NumCPU()), b.began.UTC().Format(time.DateOnly)}
	if b.pg != nil {
		settings, err := b.pg.describe(ctx)
		if err != nil {
			return err
		}
		of = append(of, settings)
	}
	if _, err := fmt.Fprintf(out, "%s\n\n", strings.Join(of, "; ")); err != nil {
		return err
	}
	return b.table.print(out)
}

// say writes progress.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.progress, "%6.1fs %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

func (b *bench) close() {
	if b.pg == nil {
		return
	}
	if err := b.pg.Close(); err != nil {
		b.say("the server was not removed: %v", err)
	}
}

// server is the private PostgreSQL.
type server struct {
	*pgserver.Server
	// postmaster is the server's first process.
	postmaster int
}

// server starts the server for the first who asks.
func (b *bench) server(ctx context.Context) (*server, error) {
	if b.pg != nil {
		return b.pg, nil
	}
	s, err := pgserver.Start(ctx, pgserver.Options{Durable: true, Settings: []string{
		"shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track=all", "pg_stat_statements.max=5000", "pg_stat_statements.track_planning=on", "shared_buffers=1GB",
		"max_wal_size=8GB", "checkpoint_timeout=30min", "maintenance_work_mem=256MB", "max_connections=400",
	}})
	if err != nil {
		return nil, err
	}
	b.pg = &server{Server: s}
	conn, err := b.pg.connect(ctx, "postgres")
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "CREATE EXTENSION pg_stat_statements"); err != nil {
		return nil, err
	}
	var pid int
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return nil, err
	}
	b.pg.postmaster, err = parentOf(pid)
	return b.pg, err
}

// describe names the server's version, and the settings that decide what a commit costs.
func (s *server) describe(ctx context.Context) (string, error) {
	conn, err := s.connect(ctx, "postgres")
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	var version, settings string
	err = conn.QueryRow(ctx, `SELECT current_setting('server_version'), string_agg(name || ' ' || setting, ', ' ORDER BY name)
		FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'autovacuum')`).Scan(&version, &settings)
	return "PostgreSQL " + version + " with " + settings, err
}

func (s *server) connect(ctx context.Context, database string) (*pgx.Conn, error) {
	return pgx.Connect(ctx, s.URL(database))
}

// open opens a BMDB in the database.
func open(ctx context.Context, url string, o postgres.Options, migrate bool) (*bmdb.DB, error) {
	o.Logger = slog.New(slog.DiscardHandler)
	engine, err := postgres.Open(ctx, url, o)
	if err != nil {
		return nil, err
	}
	if migrate {
		if err := engine.Migrate(ctx); err != nil {
			return nil, errors.Join(err, engine.Close())
		}
		// makes the partitions, as the janitor does
		if _, err := engine.PruneHistory(ctx, time.Unix(0, 0), 1); err != nil {
			return nil, errors.Join(err, engine.Close())
		}
	}
	return bmdb.Open(ctx, engine, bmdb.Options{})
}

// settle leaves nothing behind that a later round would pay for.
func (s *server) settle(ctx context.Context, databases ...string) error {
	for _, d := range databases {
		if err := s.Exec(ctx, d, "VACUUM ANALYZE"); err != nil {
			return err
		}
	}
	return s.Exec(ctx, "postgres", "CHECKPOINT", "SELECT pg_stat_statements_reset()")
}
