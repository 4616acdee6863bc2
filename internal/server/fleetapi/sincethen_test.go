package fleetapi

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestAFailureIsToldFromThePassBeforeIt: beside the time of the last pass that finished, a failure
// is told as what came after it, until the next one finishes.
func TestAFailureIsToldFromThePassBeforeIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, must := openBMDB(t)
		must(db.RegisterProvider(t.Context(), "metal", "equinix", 7))
		session, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "tester", Lease: 10 * time.Hour})
		must(err)
		for process, of := range map[fleet.Process]struct {
			words    func(bmdb.ProviderRow) string
			finished string // what is told where nothing has failed
			end      []bmdb.Change
		}{
			fleet.ProcessProvision: {
				func(p bmdb.ProviderRow) string { return providerOf(p).GetLastPass() }, "7 used", []bmdb.Change{bmdb.SetPassResult("7 used")},
			},
			fleet.ProcessUpdate: {
				func(p bmdb.ProviderRow) string { return providerOf(p).GetLastUpdate() }, "refreshed every 30m0s: all machines are settled", nil,
			},
		} {
			told := func(when, want string) {
				t.Helper()
				if got := of.words(providersOf(t, db)[0]); got != want {
					t.Errorf("%s %s: %q, want %q", process, when, got, want)
				}
			}
			claim := func() *bmdb.Work {
				t.Helper()
				claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: process, Limit: 1})
				must(err)
				return claim.Works[0]
			}
			failure := bmdb.Failure{Cause: "no answer", Backoff: fleet.Backoff{Initial: time.Minute}}
			must(claim().Fail(t.Context(), failure))
			told("in backoff, before any has finished", "in backoff after a failure: no answer")
			time.Sleep(2 * time.Minute)
			must(claim().Finish(t.Context(), of.end...))
			told("when one has finished", of.finished)
			time.Sleep(time.Hour)
			must(claim().Fail(t.Context(), failure))
			told("in backoff", "since then: in backoff after a failure: no answer")
			time.Sleep(2 * time.Minute)
			work := claim()
			told("while it is tried again", "since then: 1 failure: no answer")
			must(work.Finish(t.Context(), of.end...))
			told("when the next one has finished", of.finished)
		}
	})
}
