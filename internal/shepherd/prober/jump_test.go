package prober

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/remote"
)

// list is a list of one host.
type list struct {
	provider.Provider
	entry provider.Entry
}

func (l list) Get(context.Context, fleet.ProviderID) (provider.Entry, error) { return l.entry, nil }

// TestUserOfAJumpHost: where the list names none, it is the one who logs in to all machines.
func TestUserOfAJumpHost(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ listed, configured, want string }{
		{"", "", "root"},
		{"", "admin", "admin"},
		{"jump", "admin", "jump"},
	} {
		var q question
		entry := provider.Entry{Access: provider.Access{Jump: &provider.Jump{Address: netip.MustParseAddrPort("192.0.2.1:22"), User: test.listed}}}
		if err := q.reachAsListed(t.Context(), Source{Provider: list{entry: entry}}, fleet.Record{Machine: fleet.Machine{ProviderID: "rack-1"}}, test.configured); err != nil {
			t.Fatal(err)
		}
		if got := q.target.Via.User; got != test.want {
			t.Errorf("listed %q, configured %q: %q, want %q", test.listed, test.configured, got, test.want)
		}
	}
}

// TestAMissedTurn: where the last login to a jump host failed, the cause is the same as that of the
// one whose login it was. Where it did not, nothing was tried.
func TestAMissedTurn(t *testing.T) {
	t.Parallel()
	last := fleet.Errorf(fleet.KindTimeout, "192.0.2.1:22 hangs")
	tried := notMade(&remote.JumpHostError{Err: last})
	waited := notMade(&remote.JumpHostError{Err: &remote.TurnMissedError{Last: last, Err: errors.New("its turn did not come")}})
	if tried.Error() != "the probe could not be made: jump host: 192.0.2.1:22 hangs" || waited.Error() != tried.Error() ||
		provider.WasQueued(tried) || provider.WasQueued(waited) {
		t.Errorf("%q (queued: %t), %q (%t)", tried, provider.WasQueued(tried), waited, provider.WasQueued(waited))
	}
	busy := notMade(&remote.JumpHostError{Err: &remote.TurnMissedError{Err: errors.New("its turn did not come")}})
	if !provider.WasQueued(busy) || busy.Error() != "the probe could not be made: jump host: its turn did not come" {
		t.Errorf("%q (queued: %t)", busy, provider.WasQueued(busy))
	}
}
