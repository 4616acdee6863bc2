package server

import (
	"net/netip"
	"testing"
)

// TestTheAdmittedAreNotLookedAt: who comes where there is no room has the server look at the
// sources of unadmitted connections, and not at those of every agent. A source that is nil ends the
// look at it with a panic.
func TestTheAdmittedAreNotLookedAt(t *testing.T) {
	t.Parallel()
	l, _ := LimitConnections(nil, Limit{Unadmitted: 2}, nil).(*limitedListener)
	enter := func(from string) *LimitedConn {
		t.Helper()
		c := &LimitedConn{listener: l}
		if victim, ok := l.enter(c, netip.MustParsePrefix(from)); !ok || victim != nil {
			t.Fatalf("%s: let in: %t, in the place of %v", from, ok, victim)
		}
		return c
	}
	enter("192.0.2.1/32").Admit()
	gone := enter("192.0.2.2/32")
	l.remove(gone)
	enter("192.0.2.3/32")
	both := enter("192.0.2.4/32")
	both.Admit()
	l.dismiss(both)
	defer both.Serving()() // so it makes no room
	if len(l.waiting) != 2 {
		t.Errorf("%d sources have unadmitted connections, want 2", len(l.waiting))
	}
	l.sources[netip.MustParsePrefix("192.0.2.1/32")] = nil
	if victim, ok := l.enter(&LimitedConn{listener: l}, netip.MustParsePrefix("192.0.2.5/32")); ok || victim != nil {
		t.Errorf("there is room: %t, in the place of %v", ok, victim)
	}
}
