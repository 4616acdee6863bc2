package prober_test

import (
	"crypto/ed25519"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/remote"
)

// TestAnotherHostKeyIsNotUp until a person accepts it.
func TestAnotherHostKeyIsNotUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, watched)
		var logins atomic.Int32
		_, other, err := ed25519.GenerateKey(nil)
		check(t, err)
		s.answers(sshd(t, other, &logins))
		s.run(5 * time.Minute)
		s.wantState(fleet.StateBooting, "ironherd machine host-key accept")
		// refused is what explain names the command that accepts it by.
		refused := func() {
			t.Helper()
			d, err := s.herd.DB.MachineDetails(t.Context(), s.machine)
			check(t, err)
			if key := remote.Fingerprint(d.RefusedHostKey); key == "" || !strings.Contains(d.Record.Probe.Detail, key) {
				t.Fatalf("the refused host key is %q, and the probe says: %s", key, d.Record.Probe.Detail)
			}
		}
		refused()
		keys, err := s.herd.DB.HostKeys(t.Context(), s.machine)
		check(t, err)
		public, _ := other.Public().(ed25519.PublicKey)
		if keys.Refused != remote.HostKeyOf(public) || s.count(fleet.EventHostKeyRefused) != 1 || logins.Load() != 0 {
			t.Fatalf("%+v, %d events, %d logins", keys, s.count(fleet.EventHostKeyRefused), logins.Load())
		}
		check(t, s.herd.DB.AcceptHostKey(t.Context(), "ada", s.machine, keys.Refused, remote.Fingerprint(keys.Refused), "seen on the console"))
		s.run(time.Minute)
		s.wantState(fleet.StateInstalled, "it answers SSH")

		// a system that has lost its key is not the one that is watched
		s.answers(sshd(t, s.order.HostKey, &logins))
		s.run(8 * time.Minute)
		s.wantState(fleet.StateUnreachable, "host-key accept")
		refused()
	})
}
