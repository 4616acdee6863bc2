package pgserver

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

var shared struct {
	sync.Mutex
	server *Server
}

// Shared returns the one server of this test binary, which is started for the first who asks.
// TestMain calls CloseShared at the end.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		// Its launcher starts a worker for each of many databases, again and again, which are emptied
		// before there is much to clean up.
		server, err := Start(context.WithoutCancel(tb.Context()), Options{Settings: []string{"autovacuum=off"}})
		if err != nil {
			tb.Fatal(err)
		}
		shared.server = server
	}
	return shared.server
}

// CloseShared ends the shared server, if there is one.
func CloseShared() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		return nil
	}
	defer func() { shared.server = nil }()
	return shared.server.Close()
}

// Borrow lends a database to a test and returns its name. Its tables, which prepare has made when
// the first of that kind was made, are empty. It is taken back, and emptied for the next test, when
// this one is over and has no transaction open: that takes far less than making one. Tables of
// goose keep their rows. What empties it keeps its connection.
func (s *Server) Borrow(tb testing.TB, kind string, prepare func(ctx context.Context, url string) error) string {
	tb.Helper()
	ctx := context.WithoutCancel(tb.Context())
	d := s.takeFree(kind)
	if d == nil {
		name, err := s.Create(ctx, "")
		if err != nil {
			tb.Fatal(err)
		}
		if err := prepare(ctx, s.URL(name)); err != nil {
			tb.Fatal(err)
		}
		d = &lent{name: name}
	}
	tb.Cleanup(func() {
		if err := d.empty(ctx, s.URL(d.name)); err != nil {
			tb.Error(err)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.free[kind] = append(s.free[kind], d)
	})
	return d.name
}

func (s *Server) takeFree(kind string) *lent {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free == nil {
		s.free = make(map[string][]*lent)
	}
	list := s.free[kind]
	if len(list) == 0 {
		return nil
	}
	s.free[kind] = list[:len(list)-1]
	return list[len(list)-1]
}

// lent is a database that one test has after the other.
type lent struct {
	name string
	// conn empties it; nil before the first time. A new connection costs the server tens of
	// milliseconds, and reads the whole catalogue anew.
	conn *pgx.Conn
}

// empty removes all rows.
func (d *lent) empty(ctx context.Context, url string) (err error) {
	if d.conn == nil || d.conn.Ping(ctx) != nil {
		if d.conn, err = pgx.Connect(ctx, url); err != nil {
			return err
		}
	}
	rows, err := d.conn.Query(ctx, `SELECT format('DELETE FROM %I', c.relname) FROM pg_class c
		WHERE c.relnamespace = CAST(current_schema() AS REGNAMESPACE) AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname NOT LIKE 'goose%'`)
	if err != nil {
		return err
	}
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	// What a test has left open would make this wait for ever.
	statements = append([]string{"SET lock_timeout = '10s'"}, statements...)
	if _, err := d.conn.Exec(ctx, strings.Join(statements, ";")); err != nil {
		return fmt.Errorf("empty database %s: %w", d.name, err)
	}
	return nil
}
