package fleetapi_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

// TestRetryOfReleasedCapacity: it is used again where a person names it and says why, and is told
// by name until then.
func TestRetryOfReleasedCapacity(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	o.levered()
	for _, id := range o.machines(2) {
		number, err := bmdbtest.Operate(t.Context(), o.db, "op", id, fleet.OperationRelease, "sold")
		o.must(err)
		o.must(o.claim(fleet.ProcessOperation)[0].Finish(t.Context(), bmdb.BeginOperation(number, ""), bmdb.AcceptOperation(number),
			bmdb.EndOperation(number, true, "gone", time.Hour)))
	}
	client := o.client(token.Operator)
	kept := func(of string) (all []string) {
		t.Helper()
		a, err := client.ListProviders(t.Context(), &fleetv1.ListProvidersRequest{KeptOutOf: of})
		o.must(err)
		for _, p := range a.GetProviders()[0].GetKeptOut() {
			what := p.GetCapacity() + ": " + p.GetCause()
			if p.GetUntil() != nil {
				what += ", for a while"
			}
			all = append(all, what)
		}
		return all
	}
	const sold = "release, asked for by op: sold"
	if got, want := kept("lab"), []string{"host-0: " + sold, "host-1: " + sold, "bad-slot: it failed, for a while"}; !slices.Equal(got, want) {
		t.Errorf("kept out are %q, want %q", got, want)
	}
	if got := kept(""); len(got) != 0 {
		t.Errorf("nobody asked for %q", got)
	}
	many := make([]string, 1000)
	for i := range many {
		many[i] = "c" + strings.Repeat("0", 100) + string(rune('a'+i%26)) + string(rune('a'+i/26))
	}
	for want, requests := range map[connect.Code][]*fleetv1.RetryProviderRequest{
		connect.CodeInvalidArgument: {
			{Capacities: []string{"host-0"}},
			{Capacities: []string{"host-0"}, Reason: strings.Repeat("x", fleet.MaxReason+1)},
			{Capacities: []string{"host-0", ""}, Reason: "r"},
			{Capacities: []string{strings.Repeat("x", 301)}, Reason: "r"},
			{Capacities: append(many, "host-0"), Reason: "r"},
		},
		connect.CodeFailedPrecondition: {
			{Capacities: []string{"host-0", "host-7"}, Reason: "r"},
			{Capacities: many, Reason: "r"},
		},
	} {
		for _, r := range requests {
			r.Provider = "lab"
			if _, err := client.RetryProvider(t.Context(), r); code(err) != want {
				t.Errorf("%.100v: %v, want %v", r, err, want)
			}
		}
	}
	retry := func(capacities ...string) *fleetv1.RetryProviderResponse {
		t.Helper()
		a, err := client.RetryProvider(t.Context(), &fleetv1.RetryProviderRequest{Provider: "lab", Reason: "it is ours again", Capacities: capacities})
		o.must(err)
		return a
	}
	if a := retry(); a.GetPenalties() != 1 || a.GetKept() != 2 {
		t.Errorf("a retry of the pass: %v", a)
	}
	if a := retry("host-0", "host-0"); a.GetPenalties() != 1 || a.GetKept() != 0 {
		t.Errorf("a retry of capacity: %v", a)
	}
	if got, want := kept("lab"), []string{"host-1: " + sold}; !slices.Equal(got, want) {
		t.Errorf("kept out are %q, want %q", got, want)
	}
}
