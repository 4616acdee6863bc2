package command

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestTheListenerIsBounded: connections that do nothing are few, and do not keep a load balancer
// out that comes from the same address.
func TestTheListenerIsBounded(t *testing.T) {
	t.Parallel()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- listener(address, ln, ok, slog.New(slog.DiscardHandler)).Serve(ctx) }()
	const more = 40
	closed := make(chan struct{}, httpLimit.PerSource+more)
	for range httpLimit.PerSource + more {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err != nil {
			closed <- struct{}{} // before the dialer saw it open
			continue
		}
		t.Cleanup(func() { _ = conn.Close() })
		go func() {
			_, _ = conn.Read(make([]byte, 1)) // until the other side closes it
			closed <- struct{}{}
		}()
	}
	late := time.NewTimer(5 * time.Second) // half of what a connection may take for a header
	defer late.Stop()
	for i := range more {
		select {
		case <-closed:
		case <-late.C:
			t.Fatalf("%d of %d connections too many were closed", i, more)
		}
	}
	late.Reset(30 * time.Second)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for answered := false; !answered; { // a connection is spared for its first second
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/servez", nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer, err := client.Do(request); err == nil {
			answered = answer.StatusCode == http.StatusOK
			_ = answer.Body.Close()
		}
		select {
		case <-tick.C:
		case <-late.C:
			t.Fatal("a load balancer gets no answer")
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
