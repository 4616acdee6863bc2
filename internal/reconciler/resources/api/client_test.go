package api_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// server answers requests.
type server func(*http.Request) (*http.Response, error)

func (s server) RoundTrip(r *http.Request) (*http.Response, error) { return s(r) }

func client(t *testing.T, s server) *api.Client {
	t.Helper()
	c, err := api.New(&rest.Config{Host: "http://server", Transport: s}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestNoAnswerIsAskedForAgain: a server that has too much to do answers, and is alive. Whoever asks
// is told at once.
func TestNoAnswerIsAskedForAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		c := client(t, func(r *http.Request) (*http.Response, error) {
			asked.Add(1)
			return &http.Response{
				StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}, "Content-Type": {"text/plain"}},
				Body: io.NopCloser(strings.NewReader("too many requests")), Request: r,
			}, nil
		})
		begun := time.Now()
		_, err := c.Get(t.Context(), api.ConfigMap, object.Key{Kind: "ConfigMap", Namespace: "default", Name: "x"})
		if !apierrors.IsTooManyRequests(err) || asked.Load() != 1 {
			t.Errorf("asked %d times: %v", asked.Load(), err)
		}
		if !c.Alive(t.Context()) || asked.Load() != 2 || time.Since(begun) > 0 {
			t.Errorf("it counts as dead, after %d requests and %v", asked.Load(), time.Since(begun))
		}
	})
}

// TestAlive: a server that refuses the question is alive, and one that has a fault is not.
func TestAlive(t *testing.T) {
	t.Parallel()
	for status, alive := range map[int]bool{
		http.StatusOK: true, http.StatusUnauthorized: true, http.StatusForbidden: true, http.StatusTooManyRequests: true,
		http.StatusNotFound: false, http.StatusRequestTimeout: false,
		http.StatusInternalServerError: false, http.StatusBadGateway: false, http.StatusServiceUnavailable: false, 0: false,
	} {
		c := client(t, func(r *http.Request) (*http.Response, error) {
			if status == 0 {
				return nil, errors.New("connection refused")
			}
			return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(strings.NewReader("x")), Request: r}, nil
		})
		if c.Alive(t.Context()) != alive {
			t.Errorf("%d counts as alive: %t", status, !alive)
		}
	}
}

// TestEveryRequestEnds: the inventory's requests end by themselves, too.
func TestEveryRequestEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := client(t, func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		maps, m := c.ConfigMaps("default"), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
		m.SetName("x")
		for what, ask := range map[string]func() error{
			"get":    func() error { _, err := maps.Get(ctx, "x", metav1.GetOptions{}); return err },
			"create": func() error { _, err := maps.Create(ctx, m, metav1.CreateOptions{}); return err },
			"update": func() error { _, err := maps.Update(ctx, m, metav1.UpdateOptions{}); return err },
		} {
			begun := time.Now()
			if err := ask(); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != api.Timeout {
				t.Errorf("%s: %v after %v", what, err, time.Since(begun))
			}
		}
	})
}
