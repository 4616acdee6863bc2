package reconciler

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// stagedHand is a hand whose passes have a second half.
type stagedHand struct {
	*hand
	ready func(context.Context) error
	rest  func(ctx context.Context) error
}

func (s *stagedHand) OnReady(ready func(context.Context) error) { s.ready = ready }

func (s *stagedHand) Pass(ctx context.Context) (Report, error) {
	report, err := s.hand.Pass(ctx)
	if err == nil {
		err = s.ready(ctx)
	}
	if err == nil {
		report.Ready, err = true, s.rest(ctx)
	}
	return report, err
}

// runs runs a service over an applier until the test ends.
func runs(t *testing.T, s *Service) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var all sync.WaitGroup
	for _, c := range s.Components() {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := c.Serve(ctx); err != nil {
					t.Logf("%s: %v", c.Name, err)
					<-time.After(100 * time.Millisecond)
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); all.Wait() })
}

// TestRestKeepsNobodyWaiting: API servers are let serve while a pass still works on what they do
// not need, and a status that somebody has written meanwhile ends it.
func TestRestKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	var r resources
	h := &stagedHand{hand: r.hand("v1.0.0")}
	release := make(chan struct{})
	h.rest = func(ctx context.Context) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s, err := NewService(Config{
		Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, Settle: 10 * time.Millisecond, Logger: quiet(t),
	}, client, h)
	if err != nil {
		t.Fatal(err)
	}
	runs(t, s)
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
	if ok, why := ready(t, client, layout, "n1", s.config.Build); !ok {
		t.Error(why)
	}
	if _, passes := r.now(); passes != 1 || !s.State().PassedAt.IsZero() {
		t.Errorf("%d passes, one ended at %v", passes, s.State().PassedAt)
	}
	close(release)
	eventually(t, "the pass ends", func() bool { return s.State().PassReady })
	if got := joined(announced(t, client, layout)); got != "done v1.0.0/v1.0.0" {
		t.Errorf("announced: %s", got)
	}
}

// TestStatusChangesDuringPass: what a pass wanted to announce is not announced over what somebody
// else has written; the pass ends, and another round decides.
func TestStatusChangesDuringPass(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	var r resources
	h := &stagedHand{hand: r.hand("v1.0.0"), rest: func(context.Context) error { return nil }}
	s, err := NewService(Config{
		Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, Settle: 10 * time.Millisecond, Logger: quiet(t),
	}, client, h)
	if err != nil {
		t.Fatal(err)
	}
	announce, once := h.ready, sync.Once{}
	var refused error
	h.ready = func(ctx context.Context) (err error) {
		once.Do(func() {
			if _, err := client.Put(ctx, layout.Status(), "garbled"); err != nil {
				t.Error(err)
			}
			refused = announce(ctx)
			err = refused
		})
		if err != nil {
			return err
		}
		return announce(ctx)
	}
	runs(t, s)
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
	if got := joined(announced(t, client, layout)); got != "unreadable, working none/v1.0.0, done v1.0.0/v1.0.0" || refused == nil {
		t.Errorf("announced: %s; %v", got, refused)
	}
}

// TestChangeEndsTheWait: a pass that failed in what API servers need is tried again at once when
// something has changed, and when the API server can be used again.
func TestChangeEndsTheWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := new(resources).hand("v1.0.0")
		s := &Service{applier: h, config: Config{FullPass: time.Hour}}
		s.fault.Set("")
		for what, change := range map[string]func(){
			"drift":      func() { h.changed <- struct{}{} },
			"API server": func() { s.fault.Set("away") },
		} {
			tm := &term{Service: s, logger: slog.New(slog.DiscardHandler)}
			ctx, cancel := context.WithCancel(t.Context())
			u := tm.turns(ctx)
			synctest.Wait()
			begun := time.Now()
			go change()
			if err := u.await(ctx, tm, time.Hour); err != nil || time.Since(begun) > time.Minute {
				t.Errorf("%s: %v after %v", what, err, time.Since(begun))
			}
			cancel()
			synctest.Wait()
		}
	})
}

// TestOverduePass: a pass that hangs shows, unless API servers may already rely on what they need.
func TestOverduePass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Service{config: Config{FullPass: DefaultFullPass}}
		check := func(want string) {
			t.Helper()
			if err := s.checkPass(t.Context()); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("want %q: %v", want, err)
			}
		}
		s.setPassing(passing{begun: time.Now(), onReady: func(context.Context) error { return errBroken }})
		check("")
		time.Sleep(overduePasses*DefaultFullPass + time.Second)
		check("a pass has taken 5m1s")
		s.fault.Set("away")
		if err := s.ready(t.Context()); err != nil {
			t.Error(err)
		}
		check("a pass has taken 5m1s")
		s.fault.Set("")
		if err := s.ready(t.Context()); !errors.Is(err, errBroken) {
			t.Error(err)
		}
		check("")
		s.setPassing(passing{})
		check("")
	})
}
