package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
)

// TestCommitsReachTheDisk: what is acknowledged survives a power cut (I8), whatever the address and
// the database say of synchronous_commit. A stronger setting of theirs stays.
func TestCommitsReachTheDisk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ database, address, want string }{
		{"", "", "on"},
		{"", "off", "on"},
		{"off", "", "on"},
		{"off", "off", "on"},
		{"remote_apply", "", "remote_apply"},
		{"off", "remote_write", "remote_write"},
	} {
		t.Run(fmt.Sprintf("database=%s,address=%s", c.database, c.address), func(t *testing.T) {
			t.Parallel()
			at, name := own(t)
			if c.database != "" {
				set := fmt.Sprintf("ALTER DATABASE %s SET synchronous_commit = %s", name, c.database)
				if err := pgserver.Shared(t).Exec(t.Context(), "postgres", set); err != nil {
					t.Fatal(err)
				}
			}
			if c.address != "" {
				at += "&synchronous_commit=" + c.address
			}
			e := open(t, at, postgres.Options{Silent: true})
			defer func() { _ = e.Close() }()
			for name, run := range map[string]func(context.Context, func(context.Context, bmdb.Tx) error) error{
				"update": e.Update, "extend": e.Extend,
			} {
				var got string
				err := run(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
					return tx.QueryRowContext(ctx, "SHOW synchronous_commit").Scan(&got)
				})
				if err != nil || got != c.want {
					t.Errorf("%s: synchronous_commit is %q, %v, want %q", name, got, err, c.want)
				}
			}
		})
	}
}

// cutting passes connections on to a server, and cuts them off at a COMMIT where it is told to.
type cutting struct {
	listener net.Listener
	server   string
	// cut is what becomes of the next COMMIT.
	cut  atomic.Int32
	cuts atomic.Int32
	wg   sync.WaitGroup
}

const (
	passOn       int32 = iota
	cutBefore          // the server never gets it
	cutAfterward       // the server commits, and nobody hears of it
)

// cutOff stands between a database and who opens it, and returns the address of the database there.
func cutOff(t *testing.T, address string) (c *cutting, through string) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c = &cutting{listener: listener, server: u.Host}
	ctx := context.WithoutCancel(t.Context())
	c.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			c.wg.Go(func() { c.pass(ctx, conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		c.wg.Wait()
	})
	u.Host = listener.Addr().String()
	return c, u.String()
}

// pass passes one connection on until either side ends it, or it is cut off.
func (c *cutting) pass(ctx context.Context, client net.Conn) {
	defer func() { _ = client.Close() }()
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", c.server)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var silent atomic.Bool
	c.wg.Go(func() {
		defer func() { _ = client.Close() }()
		for buffer := make([]byte, 1<<16); ; {
			n, err := server.Read(buffer)
			if err != nil || silent.Load() { // the reply says that the server is done
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	})
	for buffer := make([]byte, 1<<16); ; {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		if bytes.Contains(buffer[:n], []byte("COMMIT\x00")) {
			switch c.cut.Swap(passOn) {
			case cutBefore:
				c.cuts.Add(1)
				return
			case cutAfterward:
				c.cuts.Add(1)
				silent.Store(true)
			}
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// TestACommitWithoutAReplyIsNotRepeated: where the connection broke during the commit, nobody knows
// what became of it. The engine says so, and leaves it to the caller to ask: what was committed
// would be done twice (I9).
func TestACommitWithoutAReplyIsNotRepeated(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cut  int32
		want int
	}{"before the commit": {cutBefore, 0}, "after the commit": {cutAfterward, 1}} {
		for _, serializable := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,serializable=%t", name, serializable), func(t *testing.T) {
				t.Parallel()
				at := migrated(t)
				proxy, through := cutOff(t, at)
				e := open(t, through, postgres.Options{Silent: true, Serializable: serializable})
				defer func() { _ = e.Close() }()
				for name, run := range map[string]func(context.Context, func(context.Context, bmdb.Tx) error) error{
					"update": e.Update, "extend": e.Extend,
				} {
					proxy.cut.Store(c.cut)
					runs := 0
					err := run(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
						runs++
						_, err := statement.New(tx).PutPenalty(ctx, statement.PutPenaltyParams{
							Provider: name, Capacity: fmt.Sprint(runs), Until: 1 << 60, Cause: "c",
						})
						return err
					})
					if runs != 1 || fleet.KindOf(err) != fleet.KindTemporary || !strings.Contains(err.Error(), "commit") {
						t.Errorf("%s: %d runs, %s: %v", name, runs, fleet.KindOf(err), err)
					}
					if n := query[int](t, at, "SELECT count(*) FROM penalty WHERE provider = $1", name); n != c.want {
						t.Errorf("%s: %d rows, want %d", name, n, c.want)
					}
				}
				if n := proxy.cuts.Load(); n != 2 {
					t.Errorf("%d connections were cut off: the test tests nothing", n)
				}
			})
		}
	}
}
