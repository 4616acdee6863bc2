package prober_test

import (
	"crypto/ed25519"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestPowerCutBeforeTheReport: the disk was written, and nobody has heard of it. The installed
// system is seen by its key. The system that was there before answers with another one, and that is
// nobody's fault.
func TestPowerCutBeforeTheReport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := newUnreported(t, watched)
		s.herd.Change(s.machine, func(h *shepherdtest.Host) { h.Refuses = true }) // its key is not known
		var logins atomic.Int32
		_, old, err := ed25519.GenerateKey(nil)
		check(t, err)
		s.answers(sshd(t, old, &logins))
		s.run(9 * time.Minute)
		if got := s.addresses(); len(got) > 0 {
			t.Fatalf("%v were called while the agent may speak", got)
		}
		s.run(3 * time.Minute)
		keys, err := s.herd.DB.HostKeys(t.Context(), s.machine)
		check(t, err)
		r := s.herd.Record(s.machine)
		if r.Installed != nil || keys.Refused != "" || r.Probe == nil || !strings.Contains(r.Probe.Detail, "another system than the one of its install answers") {
			t.Fatalf("installed %+v, refused %q, probe %+v", r.Installed, keys.Refused, r.Probe)
		}
		s.answers(sshd(t, s.order.HostKey, &logins))
		s.run(time.Minute)
		s.wantState(fleet.StateInstalled, "it answers SSH")
		if s.count(fleet.EventDiskWritten) != 1 || s.count(fleet.EventInstalled) != 1 || logins.Load() != 0 {
			t.Errorf("written %d times, installed %d times, %d logins", s.count(fleet.EventDiskWritten), s.count(fleet.EventInstalled), logins.Load())
		}
		s.run(10 * time.Minute)
		s.wantState(fleet.StateInstalled, "it answers SSH")
	})
}
