package fleetapi

import (
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// TestInstalledMachinesThatNeedAPerson: a person is told the command that switches a machine on
// that nobody has switched off, what there is to decide about one that its provider has reinstalled
// for somebody else, and what tells more about one of which something cannot be read.
func TestInstalledMachinesThatNeedAPerson(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	r := fleet.Record{
		Machine:        fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "dev-1", CreatedAt: now.Add(-time.Hour)},
		Provided:       &fleet.Provided{At: now.Add(-time.Minute), Status: fleet.ProviderStatusOff, Hostname: "db1"},
		InstallRequest: &fleet.InstallRequest{Generation: 1, At: now.Add(-time.Hour), Image: fleet.Image{URL: "http://x/y"}},
		Installed:      &fleet.Installed{Generation: 1, Attempt: 1, At: now.Add(-time.Hour), BootID: "b1"},
		Levers:         []fleet.Lever{fleet.LeverReboot, fleet.LeverPower},
	}
	env := fleet.Environment{Policy: fleet.DefaultPolicy()}
	j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
	n := j.nextStep()
	if !j.plan.State.Trouble() || n.GetCommand() != "ironherd machine power on m1 --reason WHY" || !strings.HasPrefix(n.GetWhat(), "the machine is switched on") {
		t.Errorf("%s (%s): %v", j.plan.State, j.plan.Reason, n)
	}
	r.Provided.Status, r.Installed.ErasedAt = fleet.ProviderStatusActive, &now
	j = judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
	n = j.nextStep()
	if !j.plan.State.Trouble() || n.GetCommand() != "ironherd machine mark-installed m1 --reason WHY" ||
		!strings.Contains(n.GetWhat(), "`ironherd machine install m1 --image IMAGE --reinstall --erase --reason WHY` destroys it") {
		t.Errorf("reinstalled for somebody else: %s (%s): %v", j.plan.State, j.plan.Reason, n)
	}
	r.Unreadable = "the image of install generation 2"
	j = judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
	if n = j.nextStep(); n.GetWho() != whoOperator || n.GetCommand() != "ironherd db check" {
		t.Errorf("unreadable: %s (%s): %v", j.plan.State, j.plan.Reason, n)
	}
}
