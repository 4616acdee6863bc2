package equinix

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// limits is a database that hands out every turn that is asked for, and keeps who asked.
type limits struct {
	mu    sync.Mutex
	asked []fleet.TurnRequest
}

func (l *limits) ReserveTurns(_ context.Context, r fleet.TurnRequest) (fleet.TurnGrant, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, r)
	return fleet.TurnGrant{First: time.Now().Add(r.Lead)}, nil
}

// take returns what was asked for since it was called last.
func (l *limits) take() []fleet.TurnRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := l.asked
	l.asked = nil
	return asked
}

// Two providers with one token share its limit. Another token, also one that takes the place of
// another in its file, has a limit of its own. No limit has the name of a token.
func TestOneTokenOneLimit(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(deviceJSON(nil)))
	}))
	t.Cleanup(server.Close)
	open := func() (*Provider, *limits) {
		config, turns := testConfig(t, server.URL+"/metal/v1"), new(limits)
		config.Spacing = time.Millisecond
		p, err := New(config, provider.Options{Turns: turns})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.CloseIdleConnections)
		return p, turns
	}
	// limitsOf returns whose turns a call has asked for: on a busy host it asks more than once.
	limitsOf := func(p *Provider, turns *limits) []string {
		t.Helper()
		turns.take()
		if _, err := p.Get(t.Context(), device1); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, r := range turns.take() {
			if names = append(names, r.Limit); r.Spacing != p.config.Spacing {
				t.Errorf("asked for turns: %+v", r)
			}
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	one, turns := open()
	two, others := open()
	shared := limitsOf(one, turns)
	if len(shared) != 1 || shared[0] == "" || strings.Contains(shared[0], apiToken) {
		t.Fatalf("the limits of a token are %q", shared)
	}
	if got := limitsOf(two, others); !slices.Equal(got, shared) {
		t.Errorf("with one token, the limits are %q and %q", shared, got)
	}
	if err := os.WriteFile(two.config.TokenFile, []byte("another-token-of-somebody"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := limitsOf(two, others); !slices.ContainsFunc(got, func(name string) bool { return name != shared[0] }) {
		t.Error("with another token, the limit is the same")
	}
	if got := limitsOf(one, turns); !slices.Equal(got, shared) {
		t.Errorf("the limit of a token has changed by itself to %q", got)
	}
	// It goes on with how long the database took, where that was long.
	if want := "one call each 1ms at most, of all control planes together"; !strings.HasPrefix(one.Pacing(), want) {
		t.Errorf("calls are said to be paced as %q", one.Pacing())
	}
}
