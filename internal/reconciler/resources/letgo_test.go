package resources

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// secretsAlone is a server that names one kind, and serves no watch of it.
func secretsAlone(r *http.Request) (*http.Response, error) {
	status, body := http.StatusOK, map[string]string{
		"/api":    `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis":   `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
		"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"secrets","kind":"Secret","namespaced":true,"verbs":["get","list","watch","patch","delete"]}]}`,
	}[r.URL.Path]
	if body == "" {
		status, body = http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
	}
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}, nil
}

// TestLetGoAfterAWhile: what fails, or what others change again and again, stays ours for most of a
// minute, and what is paused does not.
func TestLetGoAfterAWhile(t *testing.T) {
	t.Parallel()
	key := object.Key{Kind: "ConfigMap", Namespace: "default", Name: "kept"}
	for why, try := range map[string]func(*session) time.Time{
		"a webhook is away": func(s *session) time.Time {
			if s.failures.due(key, "h", "1") {
				s.failures.failed(key, "h", "1", "a webhook is away")
			}
			return s.failures[key].until
		},
		changedAgain: func(s *session) time.Time {
			if !s.repairs.tooOften(key) {
				s.repairs.add(key, changedAgain)
			}
			return s.repairs[key].until()
		},
		"it is paused": func(*session) time.Time { return time.Now() },
	} {
		synctest.Test(t, func(t *testing.T) {
			s, begun := &session{a: &Applier{}, failures: failures{}, repairs: repairs{}}, time.Now()
			for {
				p := newPass(s, &wanted{})
				next := try(s)
				if p.why[key] = why; p.undoneFor(key) >= enoughTries {
					break
				}
				time.Sleep(time.Until(next))
			}
			if took := time.Since(begun); why != "it is paused" && took < 30*time.Second || took > 2*time.Minute {
				t.Errorf("%s: it is let go after %v", why, took)
			}
		})
	}
}

// TestAKindThatIsGoneIsQuiet: where an object is refused whose kind is gone, or cannot be watched,
// a pass that looks for it is not the reason for the next pass.
func TestAKindThatIsGoneIsQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, err := New(&rest.Config{Host: "http://192.0.2.11:6443", Transport: answering(secretsAlone)}, Options{BuiltIn: nothing}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		s := newSession(a)
		ctx, cancel := context.WithCancel(t.Context())
		var mirrors sync.WaitGroup
		mirrors.Go(func() { s.follow(ctx, &mirrors) })
		defer mirrors.Wait()
		defer cancel()
		defer s.end()
		for range 2 { // something else is the reason for a pass
			for passes := 1; ; passes++ {
				time.Sleep(time.Second)
				p := newPass(s, &wanted{})
				if p.kinds == nil {
					if err := p.refreshKinds(ctx); err != nil {
						t.Fatal(err)
					}
				}
				p.liveOf(ctx, &object.Object{Key: object.Key{Kind: "Secret", Namespace: "default", Name: "refused"}})
				synctest.Wait()
				if len(a.changed) == 0 {
					break
				}
				if <-a.changed; passes > 3 {
					t.Fatalf("%d passes, and each has the next one come", passes)
				}
			}
		}
		if s.kinds != nil {
			t.Error("nobody asks whether the kind is still there")
		}
	})
}
