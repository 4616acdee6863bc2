package server_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/token"
)

// TestStrangersBehindAProxyCutNobody: a proxy puts the calls of many on one connection. A
// stranger's among them is refused, and ends no other, nor the connection. It does when nobody has
// been admitted on it for a while.
func TestStrangersBehindAProxyCutNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, server.Limit{})
		mux := http.NewServeMux()
		mux.Handle("/", rights)
		mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, "still here\n")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(time.Second):
				}
			}
		})
		handler := server.NewAccess(known(), slog.New(slog.DiscardHandler)).Identify(server.Guard(map[string]token.Role{"/": token.Viewer}, mux))
		options := server.HTTPOptions{Logger: discard, Limit: server.Limit{AdmitWithin: 5 * time.Second, UnadmittedBytes: 32 << 10}, Refusals: d.all}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- server.NewHTTP(handler, options).Serve(ctx, d) }()
		var dialled atomic.Int32
		proxy := &http.Transport{Protocols: new(http.Protocols), DialContext: func(context.Context, string, string) (net.Conn, error) {
			dialled.Add(1)
			here, there := net.Pipe()
			d.incoming <- remote{there, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}}
			return here, nil
		}}
		proxy.Protocols.SetUnencryptedHTTP2(true)
		ask := func(who, path string) *http.Response {
			t.Helper()
			synctest.Wait() // until the proxy has its connection in its pool
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x"+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			if who != "" {
				r.Header = bearer(who)
			}
			a, err := proxy.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		expect := func(when, who string, status int, connections int32) {
			t.Helper()
			a := ask(who, "/")
			_, _ = io.Copy(io.Discard, a.Body)
			a.Body.Close()
			if a.StatusCode != status {
				t.Errorf("%s: %d, want %d", when, a.StatusCode, status)
			}
			synctest.Wait()
			if n := dialled.Load(); n != connections {
				t.Errorf("%s: %d connections, want %d", when, n, connections)
			}
		}
		stream := ask("viewer", "/stream")
		defer stream.Body.Close()
		lines := bufio.NewReader(stream.Body)
		goesOn := func(when string, lasting time.Duration) {
			t.Helper()
			for range lasting / time.Second {
				if _, err := lines.ReadString('\n'); err != nil {
					t.Fatalf("%s: the call of another one is cut: %v", when, err)
				}
			}
		}
		expect("a stranger beside a call", "", http.StatusUnauthorized, 1)
		goesOn("a stranger was refused", 90*time.Second)
		expect("an operator after it", "operator", http.StatusOK, 1)
		expect("another stranger", "", http.StatusUnauthorized, 1)
		goesOn("another stranger was refused", 20*time.Second)
		stream.Body.Close()
		time.Sleep(10 * time.Second)
		expect("a stranger soon after the last call", "", http.StatusUnauthorized, 1)
		time.Sleep(10 * time.Second)
		expect("the next call", "viewer", http.StatusOK, 1)
		time.Sleep(70 * time.Second)
		expect("a stranger long after it", "", http.StatusUnauthorized, 1)
		time.Sleep(2 * time.Second)
		expect("a call after that", "viewer", http.StatusOK, 2)
		proxy.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestOneTokenLeavesRoomForOthers: of the connections of one token only the newest stay, whatever
// it may do.
func TestOneTokenLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	handler := server.NewAccess(known(), slog.New(slog.DiscardHandler)).Identify(rights)
	l := serve(t, "127.0.0.1:0", handler, server.HTTPOptions{Limit: server.Limit{Total: 4, PerOwner: 2}})
	ask := func(who string, client *http.Client) error {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, l.URL("http"), http.NoBody)
		if err != nil {
			return err
		}
		r.Header = bearer(who)
		a, err := client.Do(r)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, a.Body) // after that the connection is idle, and open
		return errors.Join(err, a.Body.Close())
	}
	for range 6 {
		if err := ask("metrics", newClient(t, "")); err != nil {
			t.Errorf("another connection of one token: %v", err)
		}
	}
	if err := ask("operator", newClient(t, "")); err != nil {
		t.Errorf("one of another token: %v", err)
	}
}
