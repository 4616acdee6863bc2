package prober_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
)

// keeper is a list of hosts: it has no levers.
type keeper struct{ provider.Provider }

func (keeper) KeepsMachines() bool { return true }

// refusedCleaner knows a host only as it was, and counts how often it tried.
type refusedCleaner struct{ tries atomic.Int32 }

func (c *refusedCleaner) Clean(context.Context, *bmdb.Work, provider.Entry) (string, error) {
	c.tries.Add(1)
	return "", fleet.Errorf(fleet.KindUnauthenticated, "the host has another host key")
}

// TestReleasedWhileItBoots: the host of a list is released while the system that was installed on
// it boots. Nobody goes to the host before the probes have shown that this is up, and then nobody
// has to. Where it does not come up in its time, somebody goes there, and the probes go on.
func TestReleasedWhileItBoots(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		boots time.Duration // after the request
		tried bool
	}{
		"in its time": {boots: 3 * time.Minute},
		"later":       {boots: 40 * time.Minute, tried: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, fleet.SeenUp{By: fleet.SeenBySSH})
				check(t, s.herd.DB.SetLevers(t.Context(), s.herd.Name, []fleet.Lever{fleet.LeverRelease, fleet.LeverClean}))
				var cleaner refusedCleaner
				releases, err := operations.New(s.herd.DB, []operations.Source{{Name: s.herd.Name, Provider: keeper{s.herd.Fake}}},
					operations.DefaultConfig(), operations.Options{Cleaner: &cleaner})
				check(t, err)
				_, err = bmdbtest.Operate(t.Context(), s.herd.DB, "ada", s.machine, fleet.OperationRelease, "sold")
				check(t, err)
				defer s.herd.Start(s.handler, releases)()
				time.Sleep(c.boots)
				s.wantState(fleet.StateReleasing, "")
				if tries := cleaner.tries.Load(); (tries > 0) != c.tried {
					t.Errorf("somebody went to the host %d times", tries)
				}
				s.answers(sshd(t, s.order.HostKey, new(atomic.Int32)))
				time.Sleep(10 * time.Minute)
				if state, why := s.herd.State(s.machine); state != "" {
					t.Fatalf("%s (%s)", state, why)
				}
				rows, err := s.herd.DB.History(t.Context(), s.machine, 100)
				check(t, err)
				var seen bool
				for _, row := range rows {
					seen = seen || row.Event == fleet.EventOperationDone && strings.Contains(row.Detail, "the host runs an installed system")
				}
				if !seen {
					t.Errorf("history: %+v", rows)
				}
			})
		})
	}
}
