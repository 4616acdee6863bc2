package static

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// TestADoubtOutlivesAListThatCannotBeRead: a fetch that cannot be read says nothing of a host, so
// one that was seen gone, or elsewhere, is not answered as it was because of it.
func TestADoubtOutlivesAListThatCannotBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := rareList(t, fiveHosts)
		doubted := func(when string) {
			t.Helper()
			if _, err := l.ask(t, "d"); err != nil {
				t.Errorf("%s: a host that is the same: %v", when, err)
			}
			for _, id := range []fleet.ProviderID{"b", "e", "z"} {
				entry, err := l.ask(t, id)
				if fleet.KindOf(err) != fleet.KindTemporary || !strings.Contains(err.Error(), "something new of host") {
					t.Errorf("%s: %s: %+v, %v", when, id, entry, err)
				}
				_, err = l.Create(t.Context(), provider.CreateRequest{Capacity: fleet.CapacityID(id), Token: "t"})
				if fleet.KindOf(err) != fleet.KindTemporary || !provider.ConcernsCapacity(err) || !strings.Contains(err.Error(), string(id)) {
					t.Errorf("%s: taking %s in: %v", when, id, err)
				}
			}
		}
		l.body = strings.NewReplacer("192.0.2.2\n", "192.0.2.22\n", "id: e,", "id: z,").Replace(fiveHosts)
		time.Sleep(rarely)
		doubted("edited")
		l.body = "hosts: ["
		time.Sleep(rarely)
		before := l.fetches
		for range 4 {
			doubted("cannot be read")
			time.Sleep(time.Minute)
		}
		if l.fetches != before+1 {
			t.Errorf("%d fetches of what cannot be read", l.fetches-before)
		}
		l.body = fiveHosts
		time.Sleep(time.Minute)
		if entry, err := l.ask(t, "b"); err != nil || entry.Address.String() != "192.0.2.2" {
			t.Errorf("as it was: %+v, %v", entry, err)
		}
		if _, err := l.ask(t, "z"); fleet.KindOf(err) != fleet.KindNotFound {
			t.Errorf("as it was: %v", err)
		}
	})
}

// TestAListThatStandsInSaysOfNoHostThatItIsGone: it may have been put on the list since. Whoever is
// told that a host is gone gives it up.
func TestAListThatStandsInSaysOfNoHostThatItIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := rareList(t, fiveHosts)
		begin := time.Now()
		l.answer = func(r *http.Request) (*http.Response, error) {
			return answered(r, http.StatusServiceUnavailable, ""), nil
		}
		for ; time.Since(begin) < 3*rarely-time.Minute; time.Sleep(time.Minute) {
			want := fleet.KindNotFound
			if time.Since(begin) >= rarely {
				want = fleet.KindTemporary
			}
			after := time.Since(begin)
			if _, err := l.ask(t, "z"); fleet.KindOf(err) != want {
				t.Errorf("a host that is not listed, after %s: %v (%s), want %s", after, err, fleet.KindOf(err), want)
			}
			if _, err := l.Create(t.Context(), provider.CreateRequest{Capacity: "z", Token: "t"}); !provider.ConcernsCapacity(err) {
				t.Errorf("taking in a host that is not listed, after %s: %v", after, err)
			}
			if _, err := l.ask(t, "a"); err != nil {
				t.Errorf("a host that is listed, after %s: %v", after, err)
			}
		}
		l.answer = nil
		time.Sleep(rarely)
		if _, err := l.ask(t, "z"); fleet.KindOf(err) != fleet.KindNotFound {
			t.Errorf("when it was fetched again: %v", err)
		}
	})
}

// TestASlowListIsFetchedToItsEnd, although no question waits that long: its turn would be lost, and
// the list would grow old while nothing fails.
func TestASlowListIsFetchedToItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := rareList(t, hosts(3))
		const takes = patience + 5*time.Second
		whole, ended := 0, 0
		l.answer = func(r *http.Request) (*http.Response, error) {
			select {
			case <-time.After(takes):
				whole++
				return answered(r, http.StatusOK, l.body), nil
			case <-r.Context().Done():
				ended++
				return nil, r.Context().Err()
			}
		}
		for begin := time.Now(); time.Since(begin) < 8*rarely; time.Sleep(time.Minute) {
			asked := time.Now()
			if _, err := l.ask(t, "node0"); err != nil || time.Since(asked) > patience {
				t.Errorf("after %s: %v, in %s", asked.Sub(begin), err, time.Since(asked))
			}
			if waited := time.Since(asked) > 0; waited {
				asked = time.Now()
				if _, err := l.ask(t, "node1"); err != nil || time.Since(asked) > 0 {
					t.Errorf("the next one waits, too: %v, in %s", err, time.Since(asked))
				}
			}
		}
		synctest.Wait()
		if whole < 6 || ended > 0 {
			t.Errorf("in eight times the spacing %d fetches succeeded, and %d were ended", whole, ended)
		}
	})
}
