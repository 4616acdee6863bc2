package fleetapi

import (
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// TestAnAgentThatIsTooOld: a person is told to restart the machine, because no command
// for its disk would help, until that was asked for.
func TestAnAgentThatIsTooOld(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 10, 0, 0, 0, time.UTC)
	hourAgo := now.Add(-time.Hour)
	for name, c := range map[string]struct {
		levers        []fleet.Lever
		asked         bool
		change        func(*fleet.Record)
		command, what string
	}{
		"a provider that can": {
			[]fleet.Lever{fleet.LeverReboot},
			false, nil, "ironherd machine reboot m1 --reason WHY",
			"the machine is restarted, and another agent is started on it; until then the system that the agent was started in goes on running",
		},
		"a list": {
			nil, false, nil, "", "metal cannot restart it: restart it yourself, and another agent is started on it; " +
				"until then the system that the agent was started in goes on running",
		},
		"somebody has asked for it": {[]fleet.Lever{fleet.LeverReboot}, true, nil, "", "operation: reboot was asked for by alice: an old agent"},
		"the disk may not boot": {
			[]fleet.Lever{fleet.LeverReboot},
			false, func(r *fleet.Record) { r.AgentSeen.BootID, r.InstallReport.Disk = "memory", fleet.DiskUnknown },
			"ironherd machine install m1 --image IMAGE --reinstall --reason WHY",
			"the agent writes the disk if that asks for nothing new; nothing may boot from it, and then no agent is started after a restart; " +
				"until then the agent waits in memory, and the system on the disk does not run",
		},
	} {
		r := fleet.Record{
			Machine:        fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "dev-1", CreatedAt: hourAgo},
			Provided:       &fleet.Provided{At: hourAgo, Status: fleet.ProviderStatusActive, Hostname: "herd-1"},
			Levers:         c.levers,
			AgentStarted:   &fleet.AgentStarted{At: hourAgo, TakeoverGeneration: 1, BootID: "b1"},
			AgentSeen:      &fleet.AgentSeen{TakeoverGeneration: 1, FirstAt: hourAgo, LastAt: now, BootID: "b1"},
			Hardware:       &fleet.Hardware{FirstAt: hourAgo, At: hourAgo},
			InstallRequest: &fleet.InstallRequest{Generation: 1, At: hourAgo, Image: fleet.Image{URL: "http://x/y"}},
			InstallAttempt: &fleet.InstallAttempt{Generation: 1, Attempt: 1, At: hourAgo},
			InstallReport:  &fleet.InstallReport{Generation: 1, Attempt: 1, At: hourAgo, Error: "it is older", NotUnderstood: true},
		}
		if c.change != nil {
			c.change(&r)
		}
		if c.asked {
			r.Operation = &fleet.OperationRequest{Number: 1, Operation: fleet.OperationReboot, At: now, Actor: "alice", Reason: "an old agent"}
		}
		env := fleet.Environment{Policy: fleet.DefaultPolicy(), ListenerUpSince: hourAgo}
		j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
		n := j.nextStep()
		if j.plan.State != fleet.StateRefused || (n.GetWho() == whoOperator) == c.asked || n.GetCommand() != c.command || n.GetWhat() != c.what {
			t.Errorf("%s: %s: %v", name, j.plan.State, n)
		}
	}
}
