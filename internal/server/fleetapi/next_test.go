package fleetapi

import (
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// TestAcceptRestoreIsAPersonsTurn: what was asked for of an installed machine waits for a person
// while the database looks restored. A machine of which nothing was asked waits for nobody.
func TestAcceptRestoreIsAPersonsTurn(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	r := fleet.Record{
		Machine:  fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "dev-1", CreatedAt: now.Add(-time.Hour)},
		Provided: &fleet.Provided{At: now.Add(-time.Hour), Status: fleet.ProviderStatusActive, Hostname: "herd-1"},
		Levers:   []fleet.Lever{fleet.LeverReboot},
		InstallRequest: &fleet.InstallRequest{
			Generation: 1, At: now.Add(-time.Hour), Image: fleet.Image{URL: "http://x/y"},
		},
		Installed: &fleet.Installed{Generation: 1, Attempt: 1, At: now.Add(-time.Minute), BootID: "b1"},
	}
	env := fleet.Environment{Policy: fleet.DefaultPolicy(), Restored: "the mark differs"}
	next := func() (who, command string) {
		n := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}.nextStep()
		return n.GetWho(), n.GetCommand()
	}
	if who, _ := next(); who != whoNobody {
		t.Errorf("nothing was asked for, and it is the turn of %s", who)
	}
	r.Operation = &fleet.OperationRequest{Number: 1, Operation: fleet.OperationReboot, At: now, Actor: "op", Reason: "hangs"}
	if who, command := next(); who != whoOperator || !strings.HasPrefix(command, "ironherd db accept-restore") {
		t.Errorf("a reboot waits for the word, and it is the turn of %s: %q", who, command)
	}
	env.Restored = ""
	if who, _ := next(); who != whoWe {
		t.Errorf("the reboot is due, and it is the turn of %s", who)
	}
}
