package initializer_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// update records what the provider says of the machine, as its updater does.
func (b *bench) update() {
	b.t.Helper()
	session, err := b.db.StartSession(b.t.Context(), bmdb.SessionOptions{Component: "updater", Host: "test", Lease: time.Minute})
	check(b.t, err)
	claim, err := session.Claim(b.t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessUpdate, Providers: []fleet.ProviderName{source}, Limit: 1})
	check(b.t, err)
	if len(claim.Works) != 1 {
		b.t.Fatalf("claimed %d passes", len(claim.Works))
	}
	entry, ok := b.fake.On("capacity-000")
	if !ok {
		b.t.Fatal("the machine is not there")
	}
	provided := entry.Provided(nil, time.Now())
	check(b.t, claim.Works[0].Note(b.t.Context(), bmdb.SetProvided(b.machine, entry.ID, provided)))
	check(b.t, session.Close(b.t.Context(), "done"))
}

// TestNoAddress: a machine that is on and has no address costs its provider a call now and then,
// and its agent is started as soon as it has one.
func TestNoAddress(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	address := b.device.Address
	has := func(address netip.Addr) {
		b.fake.Change(b.device.ID, func(e *provider.Entry) bool { e.Address = address; return true })
		b.update()
	}
	has(netip.Addr{})
	if outcome, ok := b.start().(shepherd.Fail); !ok {
		t.Fatalf("got %T %+v", outcome, outcome)
	}
	waiting := b.record().Backoffs[fleet.ProcessAgentStart]
	if !strings.Contains(waiting.Cause, "no public address") || waiting.Interval != b.config.StartBackoff.Initial {
		t.Errorf("the provider is asked again after %s, cause %q", waiting.Interval, waiting.Cause)
	}
	has(address)
	if outcome, ok := b.start().(shepherd.Finish); !ok {
		t.Fatalf("got %T %+v\n%s", outcome, outcome, b.log.String())
	}
}
