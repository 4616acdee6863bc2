package prober

import (
	"context"
	"net/netip"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
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
		if err := q.reachAsListed(t.Context(), Source{Provider: list{entry: entry}}, "rack-1", test.configured); err != nil {
			t.Fatal(err)
		}
		if got := q.target.Via.User; got != test.want {
			t.Errorf("listed %q, configured %q: %q, want %q", test.listed, test.configured, got, test.want)
		}
	}
}
