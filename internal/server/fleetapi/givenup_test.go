package fleetapi

import (
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// TestGivenUpByItsProvider: whose turn it is where the policy replaces what is given up. It is a
// person's where the machine is heard, and where recovery is stopped for good.
func TestGivenUpByItsProvider(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	hourAgo := now.Add(-time.Hour)
	heard := func(r *fleet.Record) { r.AgentSeen.LastAt = now }
	stopped := func(env *fleet.Environment) {
		env.RecoveryHold = &fleet.RecoveryHold{At: now, Actor: "ada", Reason: "the provider is odd"}
	}
	for name, c := range map[string]struct {
		change             func(*fleet.Record)
		env                func(*fleet.Environment)
		who, command, what string
	}{
		"silent": {who: whoWe, what: "the policy has it replaced"},
		"heard": {
			change: heard, who: whoOperator, command: "ironherd machine replace m1 --reason WHY",
			what: "metal gave it up, and it is heard, so a person decides",
		},
		"stopped": {env: stopped, who: whoOperator, command: "ironherd recovery resume", what: "which ada stopped: the provider is odd"},
		"looks restored": {
			env: func(env *fleet.Environment) { env.Restored = "counter 7 beside the file, 5 in it" }, who: whoOperator, what: "accept-restore",
		},
	} {
		r := fleet.Record{
			Machine:      fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "dev-1", CreatedAt: hourAgo},
			Provided:     &fleet.Provided{At: now.Add(-time.Minute), Status: fleet.ProviderStatusFailed, Detail: "broken"},
			AgentStarted: &fleet.AgentStarted{At: hourAgo.Add(-time.Hour), TakeoverGeneration: 1},
			AgentSeen:    &fleet.AgentSeen{TakeoverGeneration: 1, FirstAt: hourAgo, LastAt: hourAgo, BootID: "b1"},
			Levers:       []fleet.Lever{fleet.LeverReboot, fleet.LeverRelease},
		}
		env := fleet.Environment{Policy: fleet.DefaultPolicy(), ListenerUpSince: hourAgo.Add(-time.Hour)}
		env.Policy.ReplaceFailed = true
		if c.change != nil {
			c.change(&r)
		}
		if c.env != nil {
			c.env(&env)
		}
		j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
		n := j.nextStep()
		if j.plan.State != fleet.StateFailed || n.GetWho() != c.who || n.GetCommand() != c.command || !strings.Contains(n.GetWhat(), c.what) {
			t.Errorf("%s: %s (%s): %v", name, j.plan.State, j.plan.Reason, n)
		}
	}
}
