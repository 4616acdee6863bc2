package fleetapi

import (
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// TestSwitchedOffIsNobodysTurn: a machine that a person has switched off needs nobody, as status
// says. Explain tells what switches it on, in a database that looks restored, too.
func TestSwitchedOffIsNobodysTurn(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	hourAgo := now.Add(-time.Hour)
	r := fleet.Record{
		Machine:          fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "dev-1", CreatedAt: hourAgo},
		Provided:         &fleet.Provided{At: now.Add(-time.Minute), Status: fleet.ProviderStatusOff, Hostname: "db1"},
		InstallRequest:   &fleet.InstallRequest{Generation: 1, At: hourAgo, Image: fleet.Image{URL: "http://x/y"}},
		Installed:        &fleet.Installed{Generation: 1, Attempt: 1, At: hourAgo, BootID: "b1"},
		Levers:           []fleet.Lever{fleet.LeverReboot, fleet.LeverPower},
		Operation:        &fleet.OperationRequest{Number: 1, Operation: fleet.OperationPowerOff, At: now.Add(-3 * time.Minute), Actor: "ada", Reason: "new firmware"},
		OperationAttempt: &fleet.OperationAttempt{Number: 1, At: now.Add(-3 * time.Minute), AcceptedAt: new(now.Add(-2 * time.Minute))},
		OperationReport:  &fleet.OperationReport{Number: 1, At: now.Add(-time.Minute), OK: true},
	}
	for _, restored := range []string{"", "the mark differs"} {
		env := fleet.Environment{Policy: fleet.DefaultPolicy(), Restored: restored}
		j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
		n := j.nextStep()
		const want = "Nothing is to be done now: it is off (switched off by ada: new firmware), and it stays off until `ironherd machine power on m1 --reason WHY`."
		if j.plan.State != fleet.StateOff || j.plan.State.Trouble() || n.GetWho() != whoNobody || n.GetCommand() != "" || j.summary(n) != want {
			t.Errorf("restored %q: %s: %v: %s", restored, j.plan.State, n, j.summary(n))
		}
	}
	// Where nobody would switch it on, a person has to see to that, as status says, too.
	env := fleet.Environment{Policy: fleet.DefaultPolicy(), Explained: fleet.Explained{Unserved: []fleet.Role{fleet.RoleOperations}}}
	j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
	if n := j.nextStep(); n.GetWho() != whoOperator || !strings.Contains(j.summary(n), "your turn: no live control plane") {
		t.Errorf("nobody serves its provider: %v: %s", n, j.summary(n))
	}
	// Once it is to be switched on, that is what is waited for.
	r.Operation, r.OperationAttempt, r.OperationReport = &fleet.OperationRequest{Number: 2, Operation: fleet.OperationPowerOn, At: now, Actor: "ada", Reason: "it is done"}, nil, nil
	env.Unserved = nil
	j = judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
	if n := j.nextStep(); n.GetWho() != whoWe || strings.Contains(j.summary(n), "stays off") {
		t.Errorf("to be switched on: %s: %v: %s", j.plan.State, n, j.summary(n))
	}
	// Where that came to nothing, somebody wants it on, and has to see to that.
	r.Provided.At, r.OperationReport = now.Add(-time.Minute), &fleet.OperationReport{Number: 2, At: now.Add(-time.Second), Detail: "the power supply"}
	j = judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
	if n := j.nextStep(); j.plan.State != fleet.StateOff || n.GetWho() != whoOperator || !strings.Contains(n.GetCommand(), "power on") {
		t.Errorf("it could not be switched on: %s: %v: %s", j.plan.State, n, j.summary(n))
	}
}
