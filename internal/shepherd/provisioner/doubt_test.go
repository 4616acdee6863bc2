package provisioner_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/static"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// edited is a list behind a URL that is edited before the third host is taken in: that host is at
// another address from then on, and its old one is that of a new host.
type edited struct {
	*static.Provider
	body    string
	created int
	host    fleet.CapacityID
}

func (e *edited) Create(ctx context.Context, request provider.CreateRequest) (provider.Entry, error) {
	if e.created++; e.created == 3 {
		e.host = request.Capacity
		e.body = strings.Replace(e.body, string(e.host)+",", "new,", 1) + "  - {id: " + string(e.host) + ", address: 192.0.2.99}\n"
		time.Sleep(12 * time.Second) // until the list may be fetched again
	}
	return e.Provider.Create(ctx, request)
}

func (e *edited) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(e.body)), Request: r}, nil
}

// TestAHostInDoubtKeepsNoOtherOut: the pass leaves out a host of which the list says something new,
// which counts only when it was fetched again, and takes in the others.
func TestAHostInDoubtKeepsNoOtherOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		e := &edited{body: "hosts:\n  - " + strings.Join(hostLines(6), "\n  - ") + "\n"}
		var err error
		e.Provider, err = static.New(static.Config{URL: "https://lists.example/hosts", Spacing: 11 * time.Second, InFlight: 1}, provider.Options{HTTP: e})
		if err != nil {
			t.Fatal(err)
		}
		b.provider, b.config = e, provisioner.ListConfig()
		b.config.CreateParallelism = 1
		b.restart()
		for range 3 {
			if b.pass(); e.created > 0 { // what it was fetched for the first time does not count yet
				break
			}
		}
		view := b.view()
		if len(view.Machines) != 5 || len(view.Penalties) != 0 || len(view.Intents) != 1 || view.Intents[0].Capacity != e.host {
			t.Errorf("%d machines, intents %+v, penalties %+v: %s", len(view.Machines), view.Intents, view.Penalties, b.result())
		}
		for range 3 {
			b.pass()
		}
		view = b.view()
		addresses := map[string]string{}
		for _, m := range view.Machines {
			addresses[m.Provided.Address.String()] = string(m.ProviderID)
		}
		if len(addresses) != 7 || addresses["192.0.2.99"] != string(e.host) || len(view.Machines) != 7 {
			t.Errorf("machines at %v: %s", addresses, b.result())
		}
	})
}

// refusing refuses each call, and makes it once more unless it is stopped.
type refusing struct{ *shepherdtest.FakeProvider }

func (r refusing) Create(ctx context.Context, request provider.CreateRequest) (provider.Entry, error) {
	for range 2 {
		if err := shepherdtest.BeforeCall(ctx, request); err != nil {
			return provider.Entry{}, fleet.Errorf(fleet.KindForbidden, "the key is another one; it was not sent again: %v", err)
		}
		if err := r.Hook(shepherdtest.Refusing, request.Capacity); err != nil {
			return provider.Entry{}, err
		}
	}
	return provider.Entry{}, fleet.Errorf(fleet.KindForbidden, "the key is another one")
}

// TestACallThatWasRefusedHasItsAnswer, also where a pause stops the creation before its second
// call.
func TestACallThatWasRefusedHasItsAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.fake.Hook = once(shepherdtest.Refusing, 1, func(fleet.CapacityID) error {
			return b.db.PauseProvider(t.Context(), "ada", source, "the bill")
		})
		b.provider = refusing{b.fake}
		b.restart()
		b.pass()
		if intents := b.view().Intents; len(intents) != 1 || intents[0].Calls != 1 || intents[0].Rejected != 1 {
			t.Errorf("intents %+v: %s", intents, b.result())
		}
		if !strings.Contains(b.result(), "paused meanwhile") {
			t.Error(b.result())
		}
	})
}
