package operations_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestAWithdrawnRestartMayStillCome: the provider may have heard the call, so no install is handed
// out while it may still cut it.
func TestAWithdrawnRestartMayStillCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 1, operations.Options{}, nil, nil)
		id := herd.Machines()[0]
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Pulling { // heard; the machine goes down in a minute
				return fleet.Errorf(fleet.KindTimeout, "no answer")
			}
			return nil
		}
		defer herd.Start(handler)()
		time.Sleep(2 * time.Minute)
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationReboot, "new firmware")
		check(t, err)
		time.Sleep(15 * time.Second)
		if a := herd.Record(id).OperationAttempt; a == nil || a.AcceptedAt != nil {
			t.Fatalf("attempt %+v", a)
		}
		check(t, bmdbtest.Withdraw(t.Context(), herd.DB, "ada", id, "not today"))
		_, err = herd.DB.RequestInstall(t.Context(), "ada", id, fleet.InstallRequest{Image: fleet.Image{
			URL: "http://192.0.2.1/image", Digest: "sha256:" + strings.Repeat("0", 64), Compression: fleet.CompressionNone,
		}}, false)
		check(t, err)
		d, err := herd.DB.MachineDetails(t.Context(), id)
		check(t, err)
		if install := lifecycle.Decide(d.Record, d.Environment, d.Now).For(fleet.ProcessInstall); install.Verdict == lifecycle.Due {
			t.Errorf("20 s after a reboot was called whose reply was lost, an install is %s: %s", install.Verdict, install.Reason)
		}
	})
}

// TestARepairedMachineIsKept: a replacement that the policy asked for ends when the provider does
// not give the machine up any more, before it has accepted the call. A person's does not.
func TestARepairedMachineIsKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		person bool
		tries  int
		ended  string
	}{
		"the policy's": {tries: 2, ended: "operation failed: replace (operation 1): the provider says that the machine is active"},
		"a person's":   {person: true, tries: 3, ended: "operation done: replace (operation 2): "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := bench(t, 1, operations.Options{}, func(p *fleet.Policy) { p.ReplaceFailed = true }, nil)
				id := herd.Machines()[0]
				becomes := func(status fleet.ProviderStatus) {
					herd.Fake.Change(herd.Host(id).ID, func(e *provider.Entry) bool {
						e.Status = status
						return true
					})
				}
				tries := 0
				herd.Fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
					if point != shepherdtest.Pulling {
						return nil
					}
					if tries++; tries == 2 {
						becomes(fleet.ProviderStatusActive)
						if c.person {
							_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationReplace, "bad RAM")
							check(t, err)
						}
					}
					if tries == 3 {
						return nil
					}
					return fleet.Errorf(fleet.KindTemporary, "the provider is busy")
				}
				defer herd.Start(handler)()
				time.Sleep(5 * time.Minute)
				becomes(fleet.ProviderStatusFailed)
				herd.Change(id, silent)
				fact := *herd.Record(id).Provided
				fact.Status = fleet.ProviderStatusFailed
				set(t, herd, bmdb.SetProvided(id, herd.Host(id).ID, fact))
				time.Sleep(30 * time.Minute)
				if got := ended(t, herd, id); !strings.HasPrefix(got, c.ended) || tries != c.tries {
					t.Errorf("it ended after %d tries: %q", tries, got)
				}
			})
		})
	}
}

// TestAnAnswerThatCannotBeRead is no word that the machine is given up still.
func TestAnAnswerThatCannotBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 1, operations.Options{}, func(p *fleet.Policy) { p.ReplaceFailed = true }, nil)
		id := herd.Machines()[0]
		fact := *herd.Record(id).Provided
		fact.Status = fleet.ProviderStatusFailed
		herd.Fake.Change(herd.Host(id).ID, func(e *provider.Entry) bool {
			e.Status, e.Invalid = fleet.ProviderStatusFailed, "an unknown state: rebuilding"
			return true
		})
		set(t, herd, bmdb.SetProvided(id, herd.Host(id).ID, fact))
		defer herd.Start(handler)()
		time.Sleep(20 * time.Minute)
		if r := herd.Record(id); r.Operation != nil {
			t.Errorf("asked for: %+v", r.Operation)
		}
		if b, ok := herd.Record(id).Backoffs[fleet.ProcessOperation]; !ok || !strings.Contains(b.Cause, "rebuilding") {
			t.Errorf("backoff %+v", b)
		}
	})
}
