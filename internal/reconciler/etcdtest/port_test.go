package etcdtest

import (
	"errors"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// TestPortIsKept: nobody else gets the port of a member, neither before its first start nor while
// it is down, and nobody is connected to it then.
func TestPortIsKept(t *testing.T) {
	t.Parallel()
	c := New(t, 1)
	address := c.members[0].client.Host
	status := func() error {
		response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + address + "/health")
		if err == nil {
			err = response.Body.Close()
		}
		return err
	}
	taken := func(when string) {
		t.Helper()
		if ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address); err == nil {
			_ = ln.Close()
			t.Errorf("%s, somebody else listens on %s", when, address)
		}
	}
	if err := status(); err != nil {
		t.Errorf("it is up: %v", err)
	}
	c.Down(0)
	taken("while it is down")
	if err := status(); err == nil {
		t.Error("it is down, and answers")
	}
	if err := c.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := status(); err != nil {
		t.Errorf("it is up again: %v", err)
	}

	kept, err := keepPort()
	if err != nil {
		t.Fatal(err)
	}
	address = kept.address
	taken("before its first start")
	kept.close()
	for { // a member of another test that starts just now may hold it until it executes etcd
		ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
		if err == nil {
			_ = ln.Close()
			return
		}
		if t.Context().Err() != nil || !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("it was not given back: %v", err)
		}
		<-time.After(5 * time.Millisecond)
	}
}
