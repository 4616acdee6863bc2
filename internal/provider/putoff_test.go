package provider

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestPutOff: a request that is put off leaves its slot to others, and waits for its turn again
// when it may be sent.
func TestPutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var sent []string
		server := &stubServer{answer: func(_ int, r *http.Request) (*http.Response, error) {
			sent = append(sent, time.Since(began).String()+" "+r.Method)
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody}, nil
		}}
		transport := NewTransport(Limits{Spacing: 2 * time.Second, InFlight: 1}, func(r *http.Request) string { return r.Method }, Options{HTTP: server})
		call := func(ctx context.Context, method, body string) error {
			request, err := http.NewRequestWithContext(ctx, method, "https://api.test/", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(request)
			if err == nil {
				err = response.Body.Close()
			}
			return err
		}
		go func() {
			time.Sleep(time.Second)
			for range 3 {
				if err := call(t.Context(), http.MethodGet, ""); err != nil {
					t.Error(err)
				}
			}
		}()
		off := WithBeforeSend(t.Context(), func(context.Context) error {
			if early := time.Until(began.Add(5 * time.Second)); early > 0 {
				return PutOff(early)
			}
			return nil
		})
		if err := call(off, http.MethodPost, "body"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if want := []string{"2s GET", "4s GET", "6s GET", "8s POST"}; !slices.Equal(sent, want) || server.bodies[3] != "body" {
			t.Errorf("sent %q, want %q; bodies %q", sent, want, server.bodies)
		}
		soon, cancel := context.WithTimeout(WithBeforeSend(t.Context(), func(context.Context) error { return PutOff(time.Minute) }), 10*time.Second)
		defer cancel()
		if err := call(soon, http.MethodPost, ""); !NothingSent(err) || !WasQueued(err) || time.Since(began) > 20*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}
