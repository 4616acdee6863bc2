package server_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/token"
)

// expired finds a token that has expired by its name.
type expired struct{}

func (expired) Find(text string) (token.Token, bool, error) {
	return token.Token{Name: text, Role: token.Metrics, Expires: time.Unix(0, 0)}, true, nil
}

// TestExpiredTokensInUseAreLogged, each of them, with the address, once a minute.
func TestExpiredTokensInUseAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		handler := server.NewAccess(expired{}, slog.New(slog.NewTextHandler(&log, nil))).Identify(http.NotFoundHandler())
		call := func(name string) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
			r.Header.Set("Authorization", "Bearer "+name)
			handler.ServeHTTP(httptest.NewRecorder(), r)
		}
		for range 3 {
			call("prometheus")
			call("ada")
		}
		time.Sleep(time.Minute - time.Nanosecond)
		call("ada")
		time.Sleep(time.Nanosecond)
		call("ada")
		const line = `msg="a token that has expired is still used" token=%s role=metrics expired="1970-01-01 00:00:00 UTC" from=192.0.2.1:1234`
		for name, want := range map[string]int{"prometheus": 1, "ada": 2} {
			if got := strings.Count(log.String(), strings.Replace(line, "%s", name, 1)); got != want {
				t.Errorf("%s was told %d times, want %d:\n%s", name, got, want, &log)
			}
		}
	})
}
