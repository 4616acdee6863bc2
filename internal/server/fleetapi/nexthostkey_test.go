package fleetapi

import (
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// TestAReleaseThatMeetsAnotherHostKey is a person's turn, who accepts it or finds out what answers
// there. Where the host has failed in another way since, it is tried again.
func TestAReleaseThatMeetsAnotherHostKey(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	hourAgo := now.Add(-time.Hour)
	const shown = "SHA256:uNiVztksCsDhcc0u9e8BrcqT0"
	for cause, command := range map[string]string{
		"198.51.100.1:22 has the host key " + shown + ", but SHA256:x is expected": "ironherd machine host-key accept m1 " + shown + " --reason WHY",
		"dial: connection refused": "",
	} {
		r := fleet.Record{
			Machine:   fleet.Machine{ID: "m1", Provider: "rack", ProviderID: "dev-1", CreatedAt: hourAgo},
			Provided:  &fleet.Provided{At: hourAgo, Status: fleet.ProviderStatusActive, Hostname: "db1"},
			Operation: &fleet.OperationRequest{Number: 1, Operation: fleet.OperationRelease, At: hourAgo, Actor: "ada", Reason: "sold"},
			Backoffs: map[fleet.Process]fleet.BackoffState{
				fleet.ProcessOperation: {Failures: 1, NotBefore: now.Add(time.Minute), Since: hourAgo, Cause: cause},
			},
			Levers: []fleet.Lever{fleet.LeverRelease, fleet.LeverClean},
		}
		env := fleet.Environment{Policy: fleet.DefaultPolicy()}
		j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now, hostKey: shown}
		if n := j.nextStep(); j.plan.State != fleet.StateReleasing || n.GetCommand() != command || (n.GetWho() == whoOperator) != (command != "") {
			t.Errorf("%s, %q: %v", j.plan.State, cause, n)
		}
	}
}
