package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Options of the engine.
type Options struct {
	// Logger gets what no caller can be told. Nil: nothing is logged.
	Logger *slog.Logger
	// Password is called for each new connection, so that a password may change; nil, or "": the one
	// of the URL or of the environment (PGPASSWORD, PGPASSFILE, ~/.pgpass). Files that the URL or the
	// environment names are read for each new connection, too.
	Password func() (string, error)
	// Serializable runs every transaction at SERIALIZABLE instead of READ COMMITTED.
	Serializable bool
	// Lease is the shortest interval of the sessions that are kept here; the timeouts of locks and
	// silent transactions are below it. 0: 5s.
	Lease time.Duration
	// Connections is how many connections transactions have at most; 0: 16. Extensions have two more,
	// what others tell comes on another.
	Connections int
	// Silent: neither send notifications nor listen to them.
	Silent bool
}

// Engine is an open PostgreSQL database. See the package comment.
type Engine struct {
	url     string
	options Options
	logger  *slog.Logger

	transactions, extensions *pool
	time                     *serverTime
	notifier                 *notifier // nil: silent

	// marked is set once the schema is known to be there: from then on each new connection compares
	// the mark.
	marked atomic.Bool

	closeOnce sync.Once
}

var _ bmdb.Engine = (*Engine)(nil)

// pool is a pool of connections, and the same for database/sql.
type pool struct {
	*pgxpool.Pool
	sql *sql.DB
}

// Open connects to the database that the URL names: postgres://user@host:port/database, a list of
// key=value pairs, or "" for what the PG* variables of the environment say. KindInvalid when it
// cannot be understood or is refused, KindTemporary when nobody answers. The schema is left as it
// is: see Migrate.
func Open(ctx context.Context, url string, options Options) (*Engine, error) {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.Lease <= 0 {
		options.Lease = 5 * time.Second
	}
	if options.Connections <= 0 {
		options.Connections = 16
	}
	e := &Engine{url: url, options: options, logger: options.Logger, time: newServerTime(options.Logger)}
	var err error
	if e.transactions, err = e.connect(ctx, options.Connections, e.cancelAtServer); err != nil {
		return nil, err
	}
	if e.extensions, err = e.connect(ctx, extensionConnections, giveUpAtOnce); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	if err := e.greet(ctx); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	if !options.Silent {
		e.notifier = startNotifier(ctx, e.transactions.Pool, e.logger)
	}
	return e, nil
}

// extensionConnections is how many connections extensions have.
const extensionConnections = 2

// minVersion is the oldest server that this is tested with.
const minVersion = 150000

// greet looks whether the server is one that we can use.
func (e *Engine) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	var version int
	var encoding string
	err := e.transactions.QueryRow(ctx, "SELECT CAST(current_setting('server_version_num') AS INTEGER), current_setting('server_encoding')").
		Scan(&version, &encoding)
	switch {
	case Refuses(err): // the address, or what the server is told, is wrong
		return fleet.Errorf(fleet.KindInvalid, "open database: %w", classify(err))
	case err != nil:
		return fmt.Errorf("open database: %w", classify(err))
	case version < minVersion:
		return fleet.Errorf(fleet.KindUnsupported, "the database server is PostgreSQL %d: version 15 or later is needed", version/10000)
	case encoding != "UTF8":
		return fleet.Errorf(fleet.KindInvalid, "the database's encoding is %s: UTF8 is needed", encoding)
	}
	return nil
}

// connect makes a pool. Nobody is asked anything yet.
func (e *Engine) connect(ctx context.Context, size int, cancelled func(*pgconn.PgConn) ctxWatcher) (*pool, error) {
	password, err := e.password()
	config, err := parse(e.url, password != "" || err != nil) // refresh tells why it cannot be read
	if err != nil {
		return nil, err
	}
	c := config.ConnConfig
	config.BeforeConnect = e.refresh
	if _, set := c.RuntimeParams["application_name"]; !set {
		c.RuntimeParams["application_name"] = "ironherd"
	}
	settings := e.settings(c.RuntimeParams)
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = 10 * time.Second
	}
	c.DialFunc = dialer(e.options.Lease).DialContext
	c.BuildContextWatcherHandler, c.OnNotice = cancelled, noteUnreplicated
	config.MaxConns = int32(min(size, 10_000)) //nolint:gosec // bounded
	config.MaxConnIdleTime = 5 * time.Minute
	config.PingTimeout = e.options.Lease
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error { return e.connected(ctx, conn, settings) }
	p, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", classify(err))
	}
	return &pool{Pool: p, sql: stdlib.OpenDBFromPool(p)}, nil
}

// dialer connects so that a server which has vanished, as a host without power does, is given up
// within about two leases, also by callers whose context has no end. Without that, what was sent to
// it is sent again for a quarter of an hour.
func dialer(lease time.Duration) *net.Dialer {
	given := 2 * lease
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: lease, Interval: max(lease/2, time.Second), Count: 2},
		Control: func(network, _ string, c syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			var err error
			return cmp.Or(c.Control(func(fd uintptr) {
				// How long sent data may stay without an acknowledgement: tcp(7).
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(given.Milliseconds())) //nolint:gosec // a descriptor
			}), err)
		},
	}
}

// settings is the statement that each connection begins with, but for what the database's address
// sets. They are no parameters of the connection's start, because poolers refuse those that they do
// not know.
func (e *Engine) settings(own map[string]string) string {
	settings := map[string]string{
		"lock_timeout":                        milliseconds(e.options.Lease * 2 / 5),
		"idle_in_transaction_session_timeout": milliseconds(e.options.Lease * 3 / 5),
		// Nearly all that we ask goes by keys, a few rows out of many, whatever the statistics say: so
		// read by an index wherever there is one, even if the table was small or empty when the plan was
		// made, which then stays for as long as the connection and the statistics do. For the same reason
		// one plan per statement will do; left alone, PostgreSQL believes of some that planning them anew
		// at each call pays, and spends more time on planning than on them. Joins of more than two tables
		// are written in the right order, and looking for a better one takes milliseconds. Compiling
		// costs more than it saves, and so do processes that help: with enable_seqscan off, PostgreSQL
		// starts four of them to read two tables of a few rows.
		"random_page_cost":                "1.1",
		"enable_seqscan":                  "off",
		"enable_hashjoin":                 "off",
		"enable_mergejoin":                "off",
		"enable_material":                 "off",
		"join_collapse_limit":             "1",
		"plan_cache_mode":                 "force_generic_plan",
		"jit":                             "off",
		"max_parallel_workers_per_gather": "0",
	}
	calls := []string{
		// Set off, it would lose what was acknowledged.
		"set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)",
		// Set higher, the server would not tell that it has ceased to wait for a standby: see end.
		"set_config('client_min_messages', CASE WHEN current_setting('client_min_messages') IN ('error', 'fatal', 'panic') THEN 'warning' " +
			"ELSE current_setting('client_min_messages') END, false)",
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if _, set := own[name]; !set {
			calls = append(calls, fmt.Sprintf("set_config('%s', '%s', false)", name, settings[name]))
		}
	}
	return "SELECT " + strings.Join(calls, ", ")
}

// cancelAtServer cancels a statement whose context ends at the server, so that it gives up waiting
// and the connection can be used again. A server that does not answer is given up soon.
func (e *Engine) cancelAtServer(conn *pgconn.PgConn) ctxWatcher {
	return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: min(time.Second, e.options.Lease/5)}
}

// giveUpAtOnce gives the connection up: what an extension could not do it must try anew, on another
// one, while there is time.
func giveUpAtOnce(conn *pgconn.PgConn) ctxWatcher {
	return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}
}

// connected is run on each new connection before anybody uses it.
func (e *Engine) connected(ctx context.Context, conn *pgx.Conn, settings string) error {
	if _, err := conn.Exec(ctx, settings); err != nil {
		return err
	}
	if !e.marked.Load() {
		return nil
	}
	evidence, err := e.compareMark(ctx, conn)
	if err != nil || evidence == "" {
		return err
	}
	// what bmdb does with evidence at open, for evidence that turns up later
	e.logger.WarnContext(ctx, "the database looks restored or copied; whatever destroys or reboots waits for `ironherd db accept-restore`",
		slog.String("evidence", evidence))
	return e.noteRestored(ctx, conn, evidence)
}

// noteRestored records the evidence without waiting for a standby. A server that was just promoted
// often has none yet: the wait would have no end, every other new connection would wait for this
// one's row, and nothing could be read. What was acknowledged survives all the same: nobody is
// answered on the strength of this row, and where it is lost, the next new connection finds the
// evidence again.
func (e *Engine) noteRestored(ctx context.Context, conn *pgx.Conn, evidence string) error {
	ctx, cancel := context.WithTimeout(ctx, e.options.Lease)
	defer cancel()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = local"); err != nil {
			return err
		}
		// Another failover before the first one was accepted is told, too.
		_, err := tx.Exec(ctx, `INSERT INTO restored (id, at, evidence)
			SELECT 1, CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT), $1
			WHERE NOT EXISTS (SELECT 1 FROM restored WHERE id = 1 AND evidence = $1)
			ON CONFLICT (id) DO UPDATE SET at = excluded.at, evidence = excluded.evidence`, evidence)
		return err
	})
}

func milliseconds(d time.Duration) string { return fmt.Sprint(max(d.Milliseconds(), 1)) }

// Name returns "postgres".
func (e *Engine) Name() string { return "postgres" }

// Properties says that others may have the database open, too.
func (e *Engine) Properties() bmdb.Properties { return bmdb.Properties{Polled: e.options.Silent} }

// Update implements bmdb.Engine.
func (e *Engine) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.run(ctx, &transaction{pool: e.transactions, begin: e.beginUpdate(), writes: true}, fn)
}

// Extend implements bmdb.Engine on connections of its own.
func (e *Engine) Extend(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.run(ctx, &transaction{pool: e.extensions, begin: e.beginUpdate(), writes: true, extends: true}, fn)
}

// View implements bmdb.Engine.
func (e *Engine) View(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.run(ctx, &transaction{pool: e.transactions, begin: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"}, fn)
}

// Peek implements bmdb.Engine: without a transaction around it, one statement is one round trip.
func (e *Engine) Peek(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.run(ctx, &transaction{pool: e.transactions}, fn)
}

func (e *Engine) beginUpdate() string {
	if e.options.Serializable {
		return "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE"
	}
	return "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
}

// Close closes all connections; it waits for the transactions under way.
func (e *Engine) Close() error {
	e.closeOnce.Do(func() {
		if e.notifier != nil {
			e.notifier.close()
		}
		for _, p := range []*pool{e.transactions, e.extensions} {
			if p != nil {
				_ = p.sql.Close() // it has no connections of its own
				p.Close()
			}
		}
	})
	return nil
}
