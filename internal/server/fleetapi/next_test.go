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

// TestARestartIsWhatTheProviderCanDo: the command that a person is told for an installed system
// that does not answer is one that its provider can carry out.
func TestARestartIsWhatTheProviderCanDo(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	hourAgo := now.Add(-time.Hour)
	r := fleet.Record{
		Machine:        fleet.Machine{ID: "m1", Provider: "rack", ProviderID: "dev-1", CreatedAt: hourAgo},
		Provided:       &fleet.Provided{At: hourAgo, Status: fleet.ProviderStatusActive, Hostname: "db1"},
		InstallRequest: &fleet.InstallRequest{Generation: 1, At: hourAgo, Image: fleet.Image{URL: "http://x/y"}},
		Installed: &fleet.Installed{
			Generation: 1, Attempt: 1, At: hourAgo, BootID: "b1", SeenUp: fleet.SeenUp{By: fleet.SeenBySSH, Watch: true},
		},
		Probe: &fleet.Probe{Generation: 1, Attempt: 1, At: now, UnansweredSince: hourAgo, Detail: "connection refused"},
	}
	env := fleet.Environment{Policy: fleet.DefaultPolicy()}
	for _, c := range []struct {
		levers        []fleet.Lever
		command, what string
	}{
		{[]fleet.Lever{fleet.LeverReboot, fleet.LeverPower}, "ironherd machine reboot m1 --reason WHY", "the machine is restarted"},
		{[]fleet.Lever{fleet.LeverPower}, "ironherd machine power cycle m1 --reason WHY", "the machine is restarted"},
		{[]fleet.Lever{fleet.LeverRelease}, "", "rack cannot restart it: restart it yourself"},
	} {
		r.Levers = c.levers
		j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
		n := j.nextStep()
		if j.plan.State != fleet.StateUnreachable || n.GetWho() != whoOperator || n.GetCommand() != c.command || !strings.HasPrefix(n.GetWhat(), c.what) {
			t.Errorf("%s with %v: %v", j.plan.State, c.levers, n)
		}
	}
}
