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
