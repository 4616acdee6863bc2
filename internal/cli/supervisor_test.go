package cli

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
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
			notify: p.hear, watchdog: 30 * time.Second, logger: slog.New(slog.NewTextHandler(&log, nil)),
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
		after(0, stateStopping)
		p.is(false, nil)
		after(10*time.Second, stateAlive)
		close(ended)
		<-done
	})
}

func TestNobodySupervises(t *testing.T) {
	t.Parallel()
	supervisor{}.follow(t.Context(), t.Context(), &plane{}, nil) // returns at once
}
