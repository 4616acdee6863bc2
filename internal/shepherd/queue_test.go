package shepherd_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// line hands out turns to two control planes, as the BMDB does.
type line struct {
	mu    sync.Mutex
	next  time.Time
	asked int
	most  int // asked for within 100 ms
	since time.Time
	n     int
}

func (l *line) ReserveTurns(_ context.Context, r fleet.TurnRequest) (fleet.TurnGrant, error) {
	time.Sleep(2 * time.Millisecond) // a transaction
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked++; time.Since(l.since) > 100*time.Millisecond {
		l.since, l.n = time.Now(), 0
	}
	l.n++
	l.most = max(l.most, l.n)
	if now := time.Now().Add(r.Lead); l.next.Before(now) {
		l.next = now
	}
	if !r.Latest.IsZero() && l.next.After(r.Latest) || r.Count == 0 {
		return fleet.TurnGrant{Next: l.next}, nil
	}
	first := l.next
	l.next = l.next.Add(time.Duration(r.Count) * r.Spacing)
	return fleet.TurnGrant{First: first, Next: l.next}, nil
}

// TestAQuestionThatWaitsForItsTurn: an API that answers every call within 100 ms is not told to
// have left anything unanswered, however many questions wait in our own line. The database is asked
// for turns a few times. Two control planes with the default ten slots each, and the default
// spacing and in_flight of Equinix Metal.
func TestAQuestionThatWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sent, unsent atomic.Int32
		api := roundTrip(func(r *http.Request) (*http.Response, error) {
			sent.Add(1)
			time.Sleep(100 * time.Millisecond)
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, nil
		})
		turns := new(line)
		var group sync.WaitGroup
		var mu sync.Mutex
		said := map[string]int{}
		for range 2 {
			transport := provider.NewTransport(provider.Limits{Spacing: 2 * time.Second, InFlight: 1, Limit: func() string { return "account" }},
				func(*http.Request) string { return "GET /devices/{id}" }, provider.Options{Turns: turns, HTTP: api})
			source := sourceOver(transport)
			for range 10 {
				group.Go(func() {
					_, err := source.Ask(t.Context(), "device-1")
					if err == nil {
						return
					}
					if unsent.Add(1); provider.WasQueued(err) && strings.HasPrefix(err.Error(), "too many calls to provider metal wait for their turn") {
						return
					}
					mu.Lock()
					defer mu.Unlock()
					said[err.Error()]++
				})
			}
		}
		group.Wait()
		time.Sleep(5 * time.Second) // the last question to the database
		turns.mu.Lock()
		defer turns.mu.Unlock()
		if turns.most > 10 {
			t.Errorf("the database was asked for turns %d times for %d calls, up to %d times within 100 ms", turns.asked, sent.Load(), turns.most)
		}
		if len(said) > 0 || sent.Load()+unsent.Load() != 20 || unsent.Load() == 0 {
			t.Errorf("20 questions, of which %d were sent and answered and %d were not; among those: %v", sent.Load(), unsent.Load(), said)
		}
	})
}

// TestAGatewayThatTimesOutIsNoQueue: where a gateway answers each call late, and that it had no
// answer, the provider is to blame: nobody has waited for a turn.
func TestAGatewayThatTimesOutIsNoQueue(t *testing.T) {
	t.Parallel()
	for _, seconds := range []int{5, 8, 10, 12, 15, 20, 25, 29, 60} {
		after := time.Duration(seconds) * time.Second
		t.Run(after.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				api := roundTrip(func(r *http.Request) (*http.Response, error) {
					select {
					case <-time.After(after):
						return &http.Response{StatusCode: http.StatusGatewayTimeout, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
					case <-r.Context().Done():
						return nil, r.Context().Err()
					}
				})
				source := sourceOver(provider.NewTransport(provider.Limits{Spacing: 2 * time.Second, InFlight: 1},
					func(*http.Request) string { return "GET /devices/{id}" }, provider.Options{HTTP: api}))
				for range 20 { // the time until it is asked again differs
					if _, err := source.Ask(t.Context(), "device-1"); err == nil || shepherd.WasQueued(err) || fleet.KindOf(err) != fleet.KindTimeout {
						t.Fatalf("%s: %v", fleet.KindOf(err), err)
					}
				}
			})
		})
	}
}

// sourceOver is a provider that makes one call for each question.
func sourceOver(transport *provider.Transport) shepherd.Source[struct{}] {
	return shepherd.Source[struct{}]{Name: "metal", Provider: asked{get: func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://metal.example/devices/1", nil)
		if err != nil {
			return err
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			err = fleet.Errorf(fleet.KindTimeout, "the provider answered %s", response.Status)
		}
		return errors.Join(err, response.Body.Close())
	}}}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// limited is a provider that says how its calls are paced.
type limited struct{ asked }

func (limited) Pacing() string { return "one call each 8s" }

// TestAQuestionInTheQueueSaysHowCallsArePaced: it may not be the number of calls that holds it up.
func TestAQuestionInTheQueueSaysHowCallsArePaced(t *testing.T) {
	t.Parallel()
	late := asked{get: func(context.Context) error { return provider.Queued(errors.New("wait for its turn")) }}
	_, err := shepherd.Source[struct{}]{Name: "metal", Provider: limited{late}}.Ask(t.Context(), "device-1")
	const want = "too many calls to provider metal wait for their turn: this one did not get it in time (one call each 8s)"
	if err == nil || err.Error() != want || !provider.WasQueued(err) {
		t.Errorf("the question ends with %v", err)
	}
}
