package fleetapi

import (
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// TestDiscrepanciesAreAPersonsTurn: nothing is created at a provider before they have ended, and
// nothing while its passes fail, whatever became of the calls so far.
func TestDiscrepanciesAreAPersonsTurn(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	for before, calls := range map[string]struct{ calls, rejected int }{
		"": {},
		"metal was asked once for capacity c1; the outcome is not confirmed yet; ": {1, 0},
		"the provider rejected 2 requests for capacity c1; ":                       {2, 2},
	} {
		r := fleet.Record{
			Machine: fleet.Machine{ID: "m1", Provider: "metal", CreatedAt: now.Add(-time.Hour)},
			Intent: &fleet.Intent{
				Machine: "m1", Capacity: "c1", PlannedAt: now.Add(-time.Minute), Calls: calls.calls, Rejected: calls.rejected,
			},
		}
		env := fleet.Environment{Policy: fleet.DefaultPolicy(), Explained: fleet.Explained{Discrepancies: 1}}
		j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
		want := before + "creation at metal is stopped by discrepancies (1): `ironherd discrepancy list` says what ends each"
		if n := j.nextStep(); j.plan.Reason != want || n.GetCommand() != "ironherd discrepancy list" {
			t.Errorf("%s: %v", j.plan.Reason, n)
		}
		for n, counted := range map[int]string{fleet.CountedAtMost - 1: "(9999)", fleet.CountedAtMost: "(10000+)"} {
			env.Discrepancies = n
			if p := lifecycle.Decide(r, env, now); p.Reason != strings.Replace(want, "(1)", counted, 1) {
				t.Error(p.Reason)
			}
		}
		env = fleet.Environment{Policy: fleet.DefaultPolicy(), Explained: fleet.Explained{PassFailed: &fleet.BackoffState{Cause: "list devices: 401", NotBefore: now.Add(time.Minute)}}}
		if p := lifecycle.Decide(r, env, now); p.Reason != before+"nothing is created at metal while its passes fail: list devices: 401" {
			t.Error(p.Reason)
		}
	}
}

// TestAStopWithoutAnEndIsAPersonsTurn: a silent machine waits for who stopped recovery without an
// end. One that recovery would not restart does not.
func TestAStopWithoutAnEndIsAPersonsTurn(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	policy := fleet.DefaultPolicy()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	written := ago(policy.BootTimeout + time.Minute)
	r := fleet.Record{
		Machine:        fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "dev-1", CreatedAt: written.Add(-time.Hour)},
		Provided:       &fleet.Provided{At: written.Add(-time.Hour), Status: fleet.ProviderStatusActive, Hostname: "herd-1"},
		Levers:         []fleet.Lever{fleet.LeverReboot},
		InstallRequest: &fleet.InstallRequest{Generation: 1, At: written.Add(-time.Minute), Image: fleet.Image{URL: "http://x/y"}},
		InstallAttempt: &fleet.InstallAttempt{Generation: 1, Attempt: 1, At: written.Add(-time.Minute)},
		InstallReport:  &fleet.InstallReport{Generation: 1, Attempt: 1, At: written, OK: true},
	}
	asked := r
	asked.Operation = &fleet.OperationRequest{Number: 1, Operation: fleet.OperationReboot, At: ago(time.Minute), Actor: "bob"}
	refuses := r
	refuses.InstallRequest, refuses.InstallAttempt, refuses.InstallReport = nil, nil, nil
	refuses.AgentStarted = &fleet.AgentStarted{TakeoverGeneration: 1, At: written.Add(-time.Hour), BootID: "b1"}
	refuses.AgentSeen = &fleet.AgentSeen{TakeoverGeneration: 1, FirstAt: written.Add(-time.Hour), LastAt: written, BootID: "b1"}
	refuses.Backoffs = map[fleet.Process]fleet.BackoffState{
		fleet.ProcessAgentStart: {NotBefore: now.Add(time.Minute), Since: written, Cause: "another host key", Answered: true, Refused: true},
	}
	for name, c := range map[string]struct {
		record  fleet.Record
		until   *time.Time
		command string
	}{
		"a system that did not come up": {r, nil, "ironherd recovery resume"},
		"it ends by itself":             {r, new(now.Add(time.Hour)), ""},
		"a restart is asked for":        {asked, nil, ""},
		"its host refuses us":           {refuses, nil, "ironherd machine retry m1"},
	} {
		env := fleet.Environment{Policy: policy, ListenerUpSince: now.Add(-24 * time.Hour)}
		env.RecoveryHold = &fleet.RecoveryHold{At: ago(time.Hour), Until: c.until, Actor: "ada", Reason: "the network is worked on"}
		j := judged{record: c.record, env: env, plan: lifecycle.Decide(c.record, env, now), now: now}
		n := j.nextStep()
		if j.plan.State != fleet.StateSilent || n.GetCommand() != c.command {
			t.Errorf("%s: %s (%s), next is %v", name, j.plan.State, j.plan.Reason, n)
		}
		if c.command == "ironherd recovery resume" && n.GetWhat() != "recovery goes on, which ada stopped: the network is worked on" {
			t.Errorf("%s: %v", name, n)
		}
	}
}

// TestWhatIsGivenBackIsNobodysTurn: a machine in quarantine, or one that its provider does not have
// any more, waits for no person while the release that a person has asked for is under way.
func TestWhatIsGivenBackIsNobodysTurn(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	hourAgo := now.Add(-time.Hour)
	quarantined := fleet.Record{
		Machine:    fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "dev-1", CreatedAt: hourAgo},
		Provided:   &fleet.Provided{At: hourAgo, Status: fleet.ProviderStatusActive, Hostname: "herd-1"},
		Levers:     []fleet.Lever{fleet.LeverRelease},
		Quarantine: &fleet.Quarantine{At: hourAgo, Actor: "recovery", Reason: "no step is left"},
	}
	missing := quarantined
	missing.Quarantine = nil
	missing.Provided = &fleet.Provided{At: hourAgo, Status: fleet.ProviderStatusGone, Hostname: "herd-1"}
	for command, r := range map[string]fleet.Record{"unquarantine": quarantined, "forget": missing} {
		env := fleet.Environment{Policy: fleet.DefaultPolicy()}
		next := func() (judged, string) {
			j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
			return j, j.nextStep().GetWho()
		}
		r.Operation = &fleet.OperationRequest{Number: 1, Operation: fleet.OperationReplace, At: now.Add(-time.Minute), Actor: "bob"}
		if j, who := next(); who != whoWe {
			t.Errorf("%s while it is given back: %v", j.plan.State, j.nextStep())
		}
		env.Restored = "its clock runs behind"
		if j, who := next(); who != whoOperator || j.nextStep().GetCommand() != "" {
			t.Errorf("%s while the database looks restored: %v", j.plan.State, j.nextStep())
		}
		env.Restored, r.OperationReport = "", &fleet.OperationReport{Number: 1, At: now, Detail: "it is locked"}
		if j, who := next(); who != whoOperator || j.nextStep().GetCommand() != "ironherd machine "+command+" m1 --reason WHY" {
			t.Errorf("%s when it was not given back: %v", j.plan.State, j.nextStep())
		}
	}
}

// TestAHostThatItsListHasNot may stand on a list all the same, under another id: whoever has the
// machine forgotten has that host taken in anew. So a person is led to the discrepancies. What
// another provider does not have is gone.
func TestAHostThatItsListHasNot(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		levers            []fleet.Lever
		command, summary  string
		reason, notReason string
	}{
		{
			[]fleet.Lever{fleet.LeverRelease, fleet.LeverClean},
			"ironherd discrepancy list", "only where the host is given up, or is to be installed anew",
			"put its host back on the list as n1", "machine forget",
		},
		{
			[]fleet.Lever{fleet.LeverReboot, fleet.LeverRelease},
			"ironherd machine forget m1 --reason WHY", "the machine is removed here",
			"`ironherd machine forget m1 --reason WHY` removes it here", "list",
		},
	} {
		r := fleet.Record{
			Machine:        fleet.Machine{ID: "m1", Provider: "rack", ProviderID: "n1", CreatedAt: now.Add(-time.Hour)},
			Provided:       &fleet.Provided{At: now.Add(-time.Minute), Status: fleet.ProviderStatusGone, Hostname: "db1"},
			InstallRequest: &fleet.InstallRequest{Generation: 1, At: now.Add(-time.Hour), Image: fleet.Image{URL: "http://x/y"}},
			Installed:      &fleet.Installed{Generation: 1, Attempt: 1, At: now.Add(-time.Hour), BootID: "b1"},
			Levers:         c.levers,
		}
		env := fleet.Environment{Policy: fleet.DefaultPolicy()}
		j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
		n := j.nextStep()
		if n.GetWho() != whoOperator || n.GetCommand() != c.command || !strings.Contains(n.GetWhat(), c.summary) {
			t.Errorf("%v: next is %v", c.levers, n)
		}
		if !strings.Contains(j.plan.Reason, c.reason) || strings.Contains(j.plan.Reason, c.notReason) {
			t.Errorf("%v: it is missing because %q", c.levers, j.plan.Reason)
		}
	}
}
