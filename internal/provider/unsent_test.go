package provider

import (
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
)

// TestNothingWasSent: whoever makes a call that is not idempotent learns that nothing of it left.
func TestNothingWasSent(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	cut := &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	for name, c := range map[string]struct {
		method string
		before error
		err    error
		unsent bool
	}{
		"stopped before it":                      {method: http.MethodPost, before: errors.New("stop"), unsent: true},
		"the connection is refused":              {method: http.MethodPost, err: refused, unsent: true},
		"the connection is cut":                  {method: http.MethodPost, err: cut},
		"an earlier attempt may have been heard": {method: http.MethodDelete, err: refused},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := &stubServer{answer: func(int, *http.Request) (*http.Response, error) { return nil, c.err }}
			transport := NewTransport(Limits{}, func(r *http.Request) string { return r.Method }, Options{HTTP: server})
			ctx := WithBeforeSend(t.Context(), func(context.Context) error { return c.before })
			request, err := http.NewRequestWithContext(ctx, c.method, "https://api.test/", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(request)
			if err == nil {
				_ = response.Body.Close()
				t.Fatal("it succeeded")
			}
			if NothingSent(err) != c.unsent {
				t.Errorf("%s: %v is taken as unsent: %t", name, err, NothingSent(err))
			}
		})
	}
}
