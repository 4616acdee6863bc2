package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTree(t *testing.T, options service.Options, components ...service.Component) *service.Tree {
	t.Helper()
	options.Logger = slog.New(slog.DiscardHandler)
	tree, err := service.New(options, components...)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// diary remembers what happened, in order.
type diary struct {
	mu      sync.Mutex
	entries []string
}

func (d *diary) add(s string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries = append(d.entries, s)
}

func (d *diary) untilDone(name string, stop time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		d.add("start " + name)
		<-ctx.Done()
		time.Sleep(stop) // fake time
		d.add("stop " + name)
		return nil
	}
}

func TestStopsStageByStage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d diary
		tree := newTree(t, service.Options{},
			service.Component{Name: "session", Stage: service.State, Serve: d.untilDone("session", 0)},
			service.Component{Name: "api", Stage: service.Listeners, Serve: d.untilDone("api", time.Second)},
			service.Component{Name: "loop", Stage: service.Loops, Serve: d.untilDone("loop", 5*time.Second)})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		if err := tree.Run(ctx); err != nil {
			t.Errorf("an orderly end is no error: %v", err)
		}
		want := []string{"stop loop", "stop api", "stop session"}
		if got := d.entries[3:]; !reflect.DeepEqual(got, want) {
			t.Errorf("stopped in the order %v, want %v", got, want)
		}
	})
}

func TestNamesWhoDidNotStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d diary
		tree := newTree(t, service.Options{Drain: 10 * time.Second},
			service.Component{Name: "stuck", Stage: service.Loops, Serve: d.untilDone("stuck", time.Hour)},
			service.Component{Name: "fine", Stage: service.State, Serve: d.untilDone("fine", 0)})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		err := tree.Run(ctx)
		if fleet.KindOf(err) != fleet.KindTimeout || err.Error() != "not stopped after 6s: stuck" {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != 6*time.Second {
			t.Errorf("took %s", took)
		}
		time.Sleep(2 * time.Hour) // let it end, inside the bubble
	})
}

func TestRestartsWhatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		var d diary
		tree := newTree(t, service.Options{Pause: 4 * time.Second},
			service.Component{Name: "shaky", Serve: func(ctx context.Context) error {
				switch calls++; {
				case calls == 1:
					panic("out of luck")
				case calls < 6:
					return errors.New("not yet")
				}
				<-ctx.Done()
				return nil
			}},
			service.Component{Name: "done", Serve: func(context.Context) error { return nil }},
			service.Component{Name: "steady", Stage: service.State, Serve: d.untilDone("steady", 0)})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- tree.Run(ctx) }()
		time.Sleep(time.Second)
		h := tree.Health(t.Context())
		if h[0].Healthy || h[0].Condition != service.Restarting || h[0].Error != "not yet" {
			t.Errorf("while failing: %+v", h[0])
		}
		if !h[1].Healthy || h[1].Condition != service.Stopped || !h[2].Healthy || h[2].Condition != service.Running {
			t.Errorf("the others are disturbed: %+v", h)
		}
		time.Sleep(time.Minute)
		if h := tree.Health(t.Context())[0]; !h.Healthy || h.Restarts != 5 || h.Error != "" {
			t.Errorf("after it recovered: %+v", h)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if len(d.entries) != 2 {
			t.Errorf("the steady one was restarted: %v", d.entries)
		}
	})
}

func TestHandlers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sick error
		var d diary
		mayRead := func(r *http.Request) bool { return r.URL.Path == "/known" }
		tree := newTree(t, service.Options{MayRead: mayRead}, service.Component{
			Name: "db", Serve: d.untilDone("db", time.Second), Check: func(context.Context) error { return sick },
		})
		status := func(h http.Handler) (int, string) {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			var answer struct{ Status string }
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
				t.Fatalf("%v in %s", err, w.Body)
			}
			return w.Code, answer.Status
		}
		expect := func(when string, h http.Handler, code int, word string) {
			t.Helper()
			if c, s := status(h); c != code || s != word {
				t.Errorf("%s: %d %s, want %d %s", when, c, s, code, word)
			}
		}
		expect("before the start", tree.ReadyHandler(), 503, "degraded")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- tree.Run(ctx) }()
		synctest.Wait()
		expect("running", tree.ReadyHandler(), 200, "ok")
		expect("running", tree.HealthHandler(), 200, "ok")
		sick = errors.New("no answer")
		expect("check fails", tree.HealthHandler(), 503, "degraded")
		for path, told := range map[string]bool{"/known": true, "/unknown": false} {
			w := httptest.NewRecorder()
			tree.HealthHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if body := w.Body.String(); strings.Contains(body, "no answer") != told || !strings.Contains(body, `"db"`) {
				t.Errorf("%s: %s", path, body)
			}
		}
		sick = nil
		cancel()
		synctest.Wait()
		expect("draining", tree.HealthHandler(), 200, "draining")
		expect("draining", tree.ReadyHandler(), 503, "draining")
		<-ended
	})
}

// TestReadiness is that of a component that failed: it is not ready while it is down, and not while
// its check fails. That it was started once is enough for Started.
func TestReadiness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sick error
		var calls atomic.Int32
		tree := newTree(t, service.Options{Pause: time.Minute}, service.Component{
			Name: "shaky", Check: func(context.Context) error { return sick },
			Serve: func(ctx context.Context) error {
				if calls.Add(1) < 4 {
					return errors.New("not yet")
				}
				<-ctx.Done()
				return nil
			},
		}, service.Component{Name: "done", Serve: func(context.Context) error { return nil }})
		expect := func(when string, code int, started bool) {
			t.Helper()
			w := httptest.NewRecorder()
			tree.ReadyHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
			if got := tree.Started(t.Context()); w.Code != code || got != started {
				t.Errorf("%s: %d, started %v: %s", when, w.Code, got, w.Body)
			}
		}
		expect("before the start", 503, false)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- tree.Run(ctx) }()
		synctest.Wait()
		expect("it is down, and waits for another start", 503, true)
		for calls.Load() < 4 {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		expect("it runs again", 200, true)
		sick = errors.New("no answer")
		expect("it runs again, and its check fails", 503, true)
		sick = nil
		cancel()
		synctest.Wait()
		expect("it is stopped", 503, false)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	serve := func(context.Context) error { return nil }
	for name, components := range map[string][]service.Component{
		"no name":     {{Serve: serve}},
		"nothing":     {{Name: "a"}},
		"no stage":    {{Name: "a", Serve: serve, Stage: 9}},
		"named twice": {{Name: "a", Serve: serve}, {Name: "a", Serve: serve}},
	} {
		if _, err := service.New(service.Options{}, components...); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
