package cli

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// plane is a control plane in any condition.
type plane struct {
	mu      sync.Mutex
	running bool
	dead    error
	heard   []string
}

func (p *plane) Running(context.Context) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running
}

func (p *plane) Alive(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

func (p *plane) is(running bool, dead error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running, p.dead = running, dead
}

func (p *plane) hear(state string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = append(p.heard, state)
	return nil
}

// TestSupervisorHears is the life of a service: it starts slowly, hangs for a while, drains.
func TestSupervisorHears(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &plane{}
		var log bytes.Buffer
		s := supervisor{
			notify: p.hear, watchdog: 30 * time.Second, drain: 5 * time.Minute, logger: slog.New(slog.NewTextHandler(&log, nil)),
		}
		stopping, stop := context.WithCancel(t.Context())
		ended, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			s.follow(t.Context(), stopping, p, ended)
		}()
		after := func(wait time.Duration, want ...string) {
			t.Helper()
			time.Sleep(wait)
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			if !slices.Equal(p.heard, want) {
				t.Errorf("heard %q, want %q", p.heard, want)
			}
			p.heard = nil
		}
		after(9 * time.Second)
		p.is(true, nil)
		after(time.Second/2, stateReady)
		after(20*time.Second, stateAlive, stateAlive)
		p.is(true, errors.New("the socket does not answer"))
		after(time.Minute)
		if !strings.Contains(log.String(), "the socket does not answer") {
			t.Errorf("the log: %s", &log)
		}
		p.is(true, nil)
		after(10*time.Second, stateAlive)
		stop()
		after(0, stateStopping+"\nEXTEND_TIMEOUT_USEC=315000000")
		p.is(false, nil)
		after(10*time.Second, stateAlive)
		close(ended)
		<-done
	})
}

// TestTheSupervisorWaitsForTheDrain: on the socket that systemd gives, one datagram says that the
// stop has begun, and for how long to wait. systemd counts a time without a state for the state
// that it knows, which need not be the stop.
func TestTheSupervisorWaitsForTheDrain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	s := supervisor{drain: 10 * time.Minute, logger: slog.New(slog.DiscardHandler), notify: func(state string) error {
		_, err := daemon.SdNotify(false, state)
		return err
	}}
	stopping, stop := context.WithCancel(t.Context())
	stop()
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		s.follow(t.Context(), stopping, &plane{}, ended)
	}()
	if err := systemd.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	datagram := make([]byte, 4096)
	n, err := systemd.Read(datagram)
	if told := string(datagram[:n]); err != nil || told != "STOPPING=1\nEXTEND_TIMEOUT_USEC=615000000" {
		t.Errorf("told %q, %v", told, err)
	}
	close(ended)
	<-done
}

func TestNobodySupervises(t *testing.T) {
	t.Parallel()
	supervisor{}.follow(t.Context(), t.Context(), &plane{}, nil) // returns at once
}
