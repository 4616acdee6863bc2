package reconciler

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestExposeEndsSilentConnections: when the API server has ended a connection, a client that does
// nothing does not keep its place.
func TestExposeEndsSilentConnections(t *testing.T) {
	t.Parallel()
	target, stop := says(t, "127.0.0.1:0", "bye")
	defer stop()
	e := Expose{Target: target, Logger: quiet(t)}
	address := freeAddress(t)
	ln := listenAt(t, address)
	defer ln.Close()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool, 1)
	go func() {
		ended <- e.forward(t.Context(), accepted, func(context.Context) (yes, ok bool) { return true, true })
	}()
	select {
	case ok := <-ended:
		if got, _ := io.ReadAll(conn); !ok || string(got) != "bye" {
			t.Errorf("%v, %q", ok, got)
		}
	case <-time.After(time.Minute):
		t.Error("a silent client keeps its place")
	}
}

// refusing is a listener that accepts nobody.
type refusing struct {
	net.Listener
	closed chan struct{}
	asked  atomic.Int64
}

func (r *refusing) Accept() (net.Conn, error) {
	select {
	case <-r.closed:
		return nil, net.ErrClosed
	default:
		r.asked.Add(1)
		return nil, syscall.EMFILE
	}
}

func (r *refusing) Close() error { close(r.closed); return nil }

// TestExposeSaysWhyNobodyConnects: once, and again after a while.
func TestExposeSaysWhyNobodyConnects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		r := &refusing{closed: make(chan struct{})}
		open := Expose{Logger: slog.New(slog.NewTextHandler(&said, nil))}.open(t.Context(), r)
		time.Sleep(logInterval + time.Second)
		open.close()
		if n := strings.Count(said.String(), syscall.EMFILE.Error()); n != 2 || r.asked.Load() < 50 {
			t.Errorf("said %d times, of %d failures: %s", n, r.asked.Load(), said.String())
		}
	})
}

// TestTheUnitHasFilesForAllConnections: a connection takes the client's and the API server's, and
// for each direction both ends of a pipe, by which the kernel forwards. It holds them to its end.
func TestTheUnitHasFilesForAllConnections(t *testing.T) {
	t.Parallel()
	const each, others = 2 + 2*2, 4096
	unit, err := os.ReadFile("../deploy/systemd/kube-apiserver-expose.service")
	if err != nil {
		t.Fatal(err)
	}
	limit := regexp.MustCompile(`(?m)^LimitNOFILE=([0-9]+)$`).FindSubmatch(unit)
	if limit == nil {
		t.Fatal("the unit does not say how many files it may open")
	}
	if n, err := strconv.Atoi(string(limit[1])); err != nil || n < maxExposed*each+others {
		t.Errorf("%s files are too few for %d connections: %v", limit[1], maxExposed, err)
	}
	if !regexp.MustCompile(`(?m)^CapabilityBoundingSet=.*\bCAP_NET_BIND_SERVICE\b`).Match(unit) {
		t.Error("expose cannot listen at port 443")
	}
}
