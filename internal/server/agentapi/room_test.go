package agentapi_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// visited is a listener in memory.
type visited struct {
	deserted
	incoming chan net.Conn
}

func (l visited) Accept() (net.Conn, error) {
	select {
	case c := <-l.incoming:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// visitor is a connection in memory, from an address.
type visitor struct {
	net.Conn
	from byte
}

func (v visitor) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, v.from)} }

// TestNoSilenceIsDeclaredWithoutRoom: who finds no room is not heard. The BMDB is told so, until
// those have called again, and the listener counts as up meanwhile.
func TestNoSilenceIsDeclaredWithoutRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		db := openBMDB(t)
		certificates, err := server.OpenCertificates(server.ForAgents, t.TempDir(), []string{"localhost"}, discard)
		must(err)
		config := agentapi.DefaultConfig()
		config.MaxUnadmitted = 1
		api := agentapi.New(db, config, agentapi.Options{Logger: discard, Certificates: certificates})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		listener := visited{deserted{make(chan struct{})}, make(chan net.Conn)}
		go func() { ended <- api.Serve(ctx, listener) }()
		defer func() {
			cancel()
			must(<-ended)
		}()
		visit := func(from byte) {
			here, there := net.Pipe()
			t.Cleanup(func() { here.Close(); there.Close() })
			listener.incoming <- visitor{there, from}
			synctest.Wait()
		}
		started := time.Now()
		expect := func(when string, since, until time.Duration) {
			t.Helper()
			env, err := db.Environment(t.Context())
			must(err)
			if env.ListenerUpSince.IsZero() {
				t.Errorf("%s: no listener is up", when)
			}
			if since == 0 {
				if !env.ListenerFullSince.IsZero() || !env.ListenerFullUntil.IsZero() {
					t.Errorf("%s: there is said to be no room, from %s to %s", when, env.ListenerFullSince, env.ListenerFullUntil)
				}
				return
			}
			if s, u := env.ListenerFullSince.Sub(started), env.ListenerFullUntil.Sub(started); (s-since).Abs() > time.Second || (u-until).Abs() > time.Second {
				t.Errorf("%s: there is said to be no room from %s to %s, want %s and %s", when, s, u, since, until)
			}
		}
		time.Sleep(time.Minute + time.Second)
		visit(1)
		time.Sleep(5 * time.Second)
		expect("when all find room", 0, 0)
		visit(2) // the first one is idle, and makes room
		time.Sleep(5 * time.Second)
		expect("when room is made", 0, 0)
		visit(3)
		visit(4)
		time.Sleep(5 * time.Second)
		expect("when one has found no room", 75*time.Second, 5*time.Minute+15*time.Second)
		time.Sleep(3*time.Minute + 43*time.Second)
		expect("a while later", 75*time.Second, 5*time.Minute+15*time.Second)
		visit(5)
		visit(6)
		time.Sleep(5 * time.Second)
		expect("when it has tried again", 75*time.Second, 9*time.Minute)
		time.Sleep(time.Hour)
		expect("when there is room again", 75*time.Second, 9*time.Minute)
	})
}
