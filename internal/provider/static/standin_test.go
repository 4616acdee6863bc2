package static

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// rare is a list that may be fetched each five minutes, and has been fetched until it counts.
type rare struct {
	*Provider
	body    string
	answer  func(r *http.Request) (*http.Response, error) // nil: body is served
	fetches int
}

const rarely = 5 * time.Minute

func rareList(t *testing.T, body string) *rare {
	t.Helper()
	l := &rare{body: body}
	config := Config{URL: "https://lists.example/hosts", Spacing: rarely, InFlight: 1}
	var err error
	l.Provider, err = New(config, provider.Options{HTTP: trip(func(r *http.Request) (*http.Response, error) {
		l.fetches++
		if l.answer != nil {
			return l.answer(r)
		}
		return answered(r, http.StatusOK, l.body), nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := l.List(t.Context()); err != nil; _, err = l.List(t.Context()) {
		time.Sleep(time.Minute)
	}
	return l
}

// ask asks for a host, with the time that package shepherd gives it.
func (l *rare) ask(t *testing.T, id fleet.ProviderID) (provider.Entry, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return l.Get(ctx, id)
}

// TestTheListThatCountedLastStandsIn: where turns come late, one fetch that fails, or says
// something new, fails no question about a host of which nothing new is said.
func TestTheListThatCountedLastStandsIn(t *testing.T) {
	t.Parallel()
	lost := func(*http.Request) (*http.Response, error) { return nil, errors.New("connection reset by peer") }
	status := func(r *http.Request) (*http.Response, error) {
		return answered(r, http.StatusServiceUnavailable, ""), nil
	}
	half := func(r *http.Request) (*http.Response, error) {
		return answered(r, http.StatusOK, "hosts:\n  - {id: node0, addr"), nil
	}
	hangs := func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	for name, test := range map[string]struct {
		fails func(*http.Request) (*http.Response, error) // once
		edit  string
	}{
		"lost": {fails: lost}, "503": {fails: status}, "half of it": {fails: half}, "hangs": {fails: hangs},
		"edited": {edit: hosts(4)}, "edited, and lost": {fails: lost, edit: hosts(4)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := rareList(t, hosts(3))
				if test.edit != "" {
					l.body = test.edit
				}
				before := l.fetches
				if test.fails != nil {
					l.answer = func(r *http.Request) (*http.Response, error) {
						l.answer = nil
						return test.fails(r)
					}
				}
				for begin := time.Now(); time.Since(begin) < 5*rarely; time.Sleep(11 * time.Second) {
					if _, err := l.ask(t, "node0"); err != nil {
						t.Errorf("after %s: %v", time.Since(begin), err)
					}
				}
				if n := l.fetches - before; n < 4 || n > 5 {
					t.Errorf("%d fetches in 25 minutes", n)
				}
				if _, err := l.ask(t, "node3"); (err == nil) != (test.edit != "") {
					t.Errorf("a host that was added: %v", err)
				}
			})
		})
	}
}

// TestAHostOfWhichSomethingNewIsSaid is not answered by the list that counted last: it may have
// been taken off the list, and given to somebody.
func TestAHostOfWhichSomethingNewIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := rareList(t, fiveHosts)
		l.body = strings.NewReplacer("192.0.2.2\n", "192.0.2.22\n", "id: e,", "id: z,").Replace(fiveHosts)
		time.Sleep(rarely)
		if entry, err := l.ask(t, "d"); err != nil || entry.Address.String() != "192.0.2.4" {
			t.Errorf("a host that is the same: %+v, %v", entry, err)
		}
		for id, what := range map[fleet.ProviderID]string{"b": "has another address", "e": "is gone", "z": "was added"} {
			entry, err := l.ask(t, id)
			if fleet.KindOf(err) != fleet.KindTemporary || provider.WasQueued(err) || !strings.Contains(err.Error(), "something new of host") {
				t.Errorf("a host that %s: %+v, %v", what, entry, err)
			}
		}
		time.Sleep(rarely)
		if entry, err := l.ask(t, "b"); err != nil || entry.Address.String() != "192.0.2.22" {
			t.Errorf("when it was fetched again: %+v, %v", entry, err)
		}
		if _, err := l.ask(t, "e"); fleet.KindOf(err) != fleet.KindNotFound {
			t.Errorf("when it was fetched again: %v", err)
		}
		if _, err := l.ask(t, "z"); err != nil {
			t.Errorf("when it was fetched again: %v", err)
		}
	})
}

// TestNoListStandsInForLong: where no fetch succeeds any more, questions fail, and say why.
func TestNoListStandsInForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := rareList(t, hosts(3))
		begin := time.Now()
		l.answer = func(r *http.Request) (*http.Response, error) {
			return answered(r, http.StatusForbidden, ""), nil
		}
		last := time.Duration(0)
		for ; time.Since(begin) < 10*rarely; time.Sleep(11 * time.Second) {
			if _, err := l.ask(t, "node0"); err == nil {
				last = time.Since(begin)
			}
		}
		if last < 3*rarely-time.Minute || last >= 3*rarely {
			t.Errorf("a list that cannot be fetched any more answered for %s", last)
		}
	})
}
