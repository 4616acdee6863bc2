package static

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// trip answers the requests of a provider.
type trip func(*http.Request) (*http.Response, error)

func (f trip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answered(r *http.Request, status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}
}

func behind(t *testing.T, answer trip) *Provider {
	t.Helper()
	config := DefaultConfig()
	config.URL = "https://lists.example/hosts?key=hidden"
	p, err := New(config, provider.Options{HTTP: answer})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestOneFetchServesAllWhoWait: fifty workers that ask for one host after another wait no longer
// than one fetch takes, each time that the list is too old.
func TestOneFetchServesAllWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const takes = 300 * time.Millisecond
		var fetches atomic.Int32
		p := behind(t, func(r *http.Request) (*http.Response, error) {
			fetches.Add(1)
			time.Sleep(takes)
			return answered(r, http.StatusOK, fiveHosts), nil
		})
		if _, err := p.Get(t.Context(), "a"); err != nil { // what is new in a list is fetched twice
			t.Fatal(err)
		}
		fetches.Store(0)
		time.Sleep(fetchAge)
		begin := time.Now()
		var workers sync.WaitGroup
		var longest atomic.Int64
		for range 50 {
			workers.Go(func() {
				for time.Since(begin) < time.Minute {
					asked := time.Now()
					if _, err := p.Get(t.Context(), "a"); err != nil {
						t.Error(err)
					}
					if took := int64(time.Since(asked)); took > longest.Load() {
						longest.Store(took)
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		workers.Wait()
		if longest := time.Duration(longest.Load()); longest > takes {
			t.Errorf("a question took %s, and a fetch takes %s", longest, takes)
		}
		if n, most := fetches.Load(), int32(time.Minute/fetchAge)+1; n > most {
			t.Errorf("%d fetches in a minute, want at most %d", n, most)
		}
	})
}

// TestWhoeverBeganAFetchMayGiveUp: the others get its answer. When nobody waits any more, it ends.
func TestWhoeverBeganAFetchMayGiveUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var fetches, ended int
		p := behind(t, func(r *http.Request) (*http.Response, error) {
			fetches++
			select {
			case <-time.After(5 * time.Second):
				return answered(r, http.StatusOK, fiveHosts), nil
			case <-r.Context().Done():
				ended++
				return nil, r.Context().Err()
			}
		})
		if _, err := p.Get(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(fetchAge)
		fetches = 0
		cause := errors.New("the control plane stops")
		var callers sync.WaitGroup
		for i := range 3 {
			ctx, cancel := context.WithCancelCause(t.Context())
			callers.Go(func() {
				_, err := p.Get(ctx, "a")
				if gaveUp := i == 0; gaveUp != errors.Is(err, cause) || gaveUp != (fleet.KindOf(err) == fleet.KindTimeout) || !gaveUp && err != nil {
					t.Errorf("caller %d: %v", i, err)
				}
			})
			synctest.Wait()
			if i == 0 {
				time.AfterFunc(time.Second, func() { cancel(cause) })
			} else {
				context.AfterFunc(t.Context(), func() { cancel(nil) })
			}
		}
		callers.Wait()
		if fetches != 1 || ended != 0 {
			t.Errorf("%d fetches, %d of them ended", fetches, ended)
		}
		time.Sleep(fetchAge)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Get(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) || fleet.KindOf(err) != fleet.KindTimeout {
			t.Errorf("nobody waits: %v", err)
		}
		synctest.Wait()
		if ended != 1 {
			t.Errorf("%d fetches were ended, of which nobody waits for one", ended)
		}
		if _, err := p.Get(t.Context(), "a"); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// TestAFailedFetchIsRemembered for a moment, by questions about one host. A list is always fetched.
func TestAFailedFetchIsRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fetches, status := 0, http.StatusForbidden
		p := behind(t, func(r *http.Request) (*http.Response, error) {
			fetches++
			return answered(r, status, fiveHosts), nil
		})
		ask := func(want int) {
			t.Helper()
			_, err := p.Get(t.Context(), "a")
			if failed := status != http.StatusOK; failed != (fleet.KindOf(err) == fleet.KindForbidden) || fetches != want {
				t.Errorf("%v after %d fetches, want %d", err, fetches, want)
			}
		}
		for range 100 {
			ask(1)
		}
		time.Sleep(failureAge)
		ask(2)
		status = http.StatusOK
		// What is new is fetched twice.
		if entries, err := p.List(t.Context()); err != nil || len(entries) != 5 || fetches != 4 {
			t.Errorf("%d hosts, %v, after %d fetches", len(entries), err, fetches)
		}
		ask(4)
	})
}

// TestAServerThatServesHalfOfAList, because that is being written: it does not count, neither at
// first nor later, until the server says the same twice.
func TestAServerThatServesHalfOfAList(t *testing.T) {
	t.Parallel()
	whole := hosts(20) + "  - id: node20\n    address: 10.0.0.189\n"
	for name, half := range map[string]string{
		"without hosts":         hosts(7),
		"cut in the last's":     strings.TrimSuffix(whole, "89\n"),
		"before the last's key": whole,
	} {
		whole := whole + "    host_key: " + hostKey + "\n"
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var body atomic.Value
				p := behind(t, func(r *http.Request) (*http.Response, error) {
					return answered(r, http.StatusOK, body.Load().(string)), nil
				})
				ask := func(when string, sound bool, want time.Duration) {
					t.Helper()
					time.Sleep(fetchAge)
					begin := time.Now()
					got, err := p.Get(t.Context(), "node20")
					if is := err == nil && got.Address.String() == "10.0.0.189" && len(got.HostKeys) == 1; is != sound || time.Since(begin) != want {
						t.Errorf("%s: %+v, %v, after %s", when, got, err, time.Since(begin))
					}
				}
				body.Store(half)
				time.AfterFunc(fetchAge+settled/2, func() { body.Store(whole) })
				ask("at first", true, 2*settled)
				ask("nothing is new", true, 0)
				body.Store(half)
				time.AfterFunc(fetchAge+settled/2, func() { body.Store(whole) })
				ask("later", true, settled)
				body.Store(half)
				ask("it stays like that", false, settled)
			})
		})
	}
}

// TestAListThatIsAnotherEachTime is told as that, and what it was before does not stand in for it.
func TestAListThatIsAnotherEachTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, comments := 20, 0
		p := behind(t, func(r *http.Request) (*http.Response, error) {
			comments++
			return answered(r, http.StatusOK, fmt.Sprintf("# made for request %d\n%s", comments, hosts(n))), nil
		})
		if entries, err := p.List(t.Context()); err != nil || len(entries) != 20 || comments != 2 {
			t.Errorf("%d hosts, %v, after %d fetches: a comment is no host", len(entries), err, comments)
		}
		transport := p.remote.fetch
		p.remote.fetch = func(ctx context.Context) ([]byte, error) { n--; return transport(ctx) }
		if entries, err := p.List(t.Context()); fleet.KindOf(err) != fleet.KindTemporary || !strings.Contains(err.Error(), "says something else each time") || comments != 2+fetches {
			t.Errorf("%d hosts, %v, after %d fetches", len(entries), err, comments)
		}
	})
}

// TestAFetchHasATimeLimit of its own, whatever the callers have.
func TestAFetchHasATimeLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := behind(t, func(r *http.Request) (*http.Response, error) {
			busy := answered(r, http.StatusServiceUnavailable, "")
			busy.Header.Set("Retry-After", "40")
			return busy, nil
		})
		begin := time.Now()
		_, err := p.Get(t.Context(), "a")
		if took := time.Since(begin); fleet.KindOf(err) != fleet.KindTimeout || took > fetchLimit {
			t.Errorf("%v (%s) after %s", err, fleet.KindOf(err), took)
		}
	})
}

// TestAListWhoseTurnsComeLate: where the next fetch may come long after the pause, it is a later
// reading that confirms what is new. Until then, each is told why it does not count.
func TestAListWhoseTurnsComeLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const spacing = 5 * time.Minute
		n, fetches := 0, 0
		config := Config{URL: "https://lists.example/hosts", Spacing: spacing, InFlight: 1}
		p, err := New(config, provider.Options{HTTP: trip(func(r *http.Request) (*http.Response, error) {
			fetches++
			return answered(r, http.StatusOK, hosts(n)), nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		for _, n = range []int{3, 4, 2} {
			begin, before := time.Now(), fetches
			for time.Since(begin) < spacing-fetchLimit {
				_, err := p.List(t.Context())
				if fleet.KindOf(err) != fleet.KindTemporary || provider.WasQueued(err) || !strings.Contains(err.Error(), "counts when it was fetched again") || fetches != before+1 {
					t.Errorf("%d hosts are new: %v (%s), after %d fetches", n, err, fleet.KindOf(err), fetches-before)
				}
				time.Sleep(time.Minute)
			}
			if entries, err := p.List(t.Context()); err != nil || len(entries) != n || fetches != before+2 {
				t.Errorf("%d hosts were fetched again: %d, %v, after %d fetches", n, len(entries), err, fetches-before)
			}
			time.Sleep(spacing)
		}
	})
}

// TestOneHostWhereTurnsComeLate: what was fetched last answers questions about one host for as long
// as nothing newer may be fetched. Each question has the time that package shepherd gives it.
func TestOneHostWhereTurnsComeLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const spacing = 5 * time.Minute
		fetches := 0
		config := Config{URL: "https://lists.example/hosts", Spacing: spacing, InFlight: 1}
		p, err := New(config, provider.Options{HTTP: trip(func(r *http.Request) (*http.Response, error) {
			fetches++
			return answered(r, http.StatusOK, hosts(3)), nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		var entries []provider.Entry
		pass := func() { // one that succeeds
			for entries = nil; len(entries) == 0; time.Sleep(time.Minute) {
				entries, _ = p.List(t.Context())
			}
		}
		pass()
		begin, before := time.Now(), fetches
		for time.Since(begin) < time.Hour {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			if _, err := p.Get(ctx, entries[0].ID); err != nil {
				t.Errorf("after %s: %v", time.Since(begin), err)
			}
			cancel()
			time.Sleep(11 * time.Second)
		}
		if n := fetches - before; n < 11 || n > 12 {
			t.Errorf("the list was fetched %d times in an hour", n)
		}
		pass() // asks for what the list says now, and waits
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if _, err := p.Get(ctx, entries[0].ID); err != nil {
			t.Error(err)
		}
		if _, err := p.List(ctx); err == nil {
			t.Error("a pass is told an old list")
		}
	})
}

// TestAReadingThatNobodyWaitsFor leaves what it has fetched to the next one. That counts it neither
// too early, nor when the list has said something else in between.
func TestAReadingThatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		config := Config{URL: "https://lists.example/hosts", InFlight: 1}
		var body string
		p, err := New(config, provider.Options{HTTP: trip(func(r *http.Request) (*http.Response, error) {
			return answered(r, http.StatusOK, body), nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		leave := func(says string) {
			t.Helper()
			body = says
			ctx, cancel := context.WithTimeout(t.Context(), settled/2)
			defer cancel()
			if _, err := p.List(ctx); fleet.KindOf(err) != fleet.KindTimeout {
				t.Errorf("nobody waits: %v", err)
			}
		}
		const fails = -1
		ask := func(when, says string, want int, after time.Duration) {
			t.Helper()
			body = says
			begin := time.Now()
			entries, err := p.List(t.Context())
			if (want == fails) != (err != nil) || err == nil && len(entries) != want || time.Since(begin) != after {
				t.Errorf("%s: %d hosts, %v, after %s", when, len(entries), err, time.Since(begin))
			}
		}
		leave(hosts(2))
		ask("too young", hosts(2), 2, settled)
		leave(hosts(3))
		time.Sleep(settled)
		ask("old enough", hosts(3), 3, 0)
		for _, between := range []struct {
			says string
			want int
		}{{hosts(3), 3}, {"hosts", fails}} {
			leave(hosts(1))
			time.Sleep(settled)
			ask("in between", between.says, between.want, 0)
			leave(hosts(1))
			ask("and back", hosts(3), 3, 0)
		}
	})
}

// TestAListInVaryingOrder, of which hosts cannot be used: the reasons name lines, and of a host
// that is listed twice the first one's entry is kept.
func TestAListInVaryingOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lines := []string{
			"{id: a, address: 192.0.2.1}", "{id: bad, address: here}", "{id: b, address: 192.0.2.2}", "{id: '#', address: 192.0.2.3}", "{id: twice, address: 192.0.2.4}",
			"{id: twice, address: 192.0.2.5, location: rack 2}", "{id: c, address: 192.0.2.6}", "{id: d, address: 192.0.2.6}", "{id: '%', address: 192.0.2.7}",
		}
		fetches := 0
		p := behind(t, func(r *http.Request) (*http.Response, error) {
			fetches++
			turned := append(slices.Clone(lines[fetches%len(lines):]), lines[:fetches%len(lines)]...)
			return answered(r, http.StatusOK, "hosts:\n  - "+strings.Join(turned, "\n  - ")+"\n"), nil
		})
		for i := range 2 * len(lines) {
			entries, err := p.List(t.Context())
			if err != nil || len(entries) != 8 || fetches != i+2 {
				t.Fatalf("%d hosts, %v, after %d fetches", len(entries), err, fetches)
			}
		}
		lines[1] = "{id: bad, address: 192.0.2.8}" // it can be used now, which is new
		if entries, err := p.List(t.Context()); err != nil || len(entries) != 8 || fetches != 2*len(lines)+3 {
			t.Errorf("%d hosts, %v, after %d fetches", len(entries), err, fetches)
		}
	})
}
