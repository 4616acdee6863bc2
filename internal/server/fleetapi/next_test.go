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
	next := func() (who, told string) {
		n := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}.nextStep()
		return n.GetWho(), tell(n, now)
	}
	if who, _ := next(); who != whoNobody {
		t.Errorf("nothing was asked for, and it is the turn of %s", who)
	}
	r.Operation = &fleet.OperationRequest{Number: 1, Operation: fleet.OperationReboot, At: now, Actor: "op", Reason: "hangs"}
	// No command stands first: a person looks before that, and stops what has the database.
	const want = " It is your turn: what is to be done waits because the database looks restored or copied: look first at what providers and hosts have"
	if who, told := next(); who != whoOperator || !strings.HasPrefix(told, want) || !strings.Contains(told, "with it stopped") {
		t.Errorf("a reboot waits for the word, and it is the turn of %s: %q", who, told)
	}
	env.Restored = ""
	if who, _ := next(); who != whoWe {
		t.Errorf("the reboot is due, and it is the turn of %s", who)
	}
	// A silent machine waits for the same word.
	r.Operation, r.InstallRequest, r.Installed = nil, nil, nil
	r.AgentStarted = &fleet.AgentStarted{At: now.Add(-time.Hour), TakeoverGeneration: 1}
	r.AgentSeen = &fleet.AgentSeen{TakeoverGeneration: 1, FirstAt: now.Add(-time.Hour), LastAt: now.Add(-50 * time.Minute)}
	env.Restored, env.ListenerUpSince = "the mark differs", now.Add(-24*time.Hour)
	if who, told := next(); who != whoOperator || !strings.HasPrefix(told, want) {
		t.Errorf("a silent machine waits for the word, and it is the turn of %s: %q", who, told)
	}
}

// TestARefusedInstallSaysWhatRuns: beside the command that overwrites the disk, a person is told
// whether the system that was there runs, where the control plane knows.
func TestARefusedInstallSaysWhatRuns(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	hourAgo := now.Add(-time.Hour)
	for _, c := range []struct {
		started, heard string // boot IDs
		generation     fleet.TakeoverGeneration
		what           string
	}{
		{"b1", "b1", 1, "the disk is overwritten; until then the system that the agent was started in goes on running"},
		{"b1", "b2", 1, "the disk is overwritten; until then the agent waits in memory, and the system on the disk does not run"},
		{"", "b2", 1, "the disk is overwritten"},
		{"b1", "b2", 2, "the disk is overwritten"}, // the newest agent was not heard yet
	} {
		r := fleet.Record{
			Machine:        fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "dev-1", CreatedAt: hourAgo},
			Provided:       &fleet.Provided{At: hourAgo, Status: fleet.ProviderStatusActive, Hostname: "herd-1"},
			AgentStarted:   &fleet.AgentStarted{At: hourAgo, TakeoverGeneration: c.generation, BootID: c.started},
			AgentSeen:      &fleet.AgentSeen{TakeoverGeneration: 1, FirstAt: hourAgo, LastAt: now, BootID: c.heard},
			InstallRequest: &fleet.InstallRequest{Generation: 1, At: hourAgo, Image: fleet.Image{URL: "http://x/y"}},
			InstallReport:  &fleet.InstallReport{Generation: 1, Attempt: 1, At: now, Error: "/dev/sda holds an install", HeldGeneration: 3, HeldAttempt: 1},
		}
		if c.generation > 1 {
			r.AgentStarted.At = now
		}
		env := fleet.Environment{Policy: fleet.DefaultPolicy()}
		j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
		n := j.nextStep()
		if j.plan.State != fleet.StateRefused || n.GetWho() != whoOperator || n.GetWhat() != c.what ||
			n.GetCommand() != "ironherd machine install m1 --image IMAGE --reinstall --reason WHY" {
			t.Errorf("started in %q, heard from %q: %s: %v", c.started, c.heard, j.plan.State, n)
		}
	}
}

// TestADiskThatMayNotBeErased: the command that a person is told is one that the control plane
// accepts, and one that the agent does not refuse for the same reason.
func TestADiskThatMayNotBeErased(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 10, 0, 0, 0, time.UTC)
	hourAgo := now.Add(-time.Hour)
	r := fleet.Record{
		Machine:        fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "dev-1", CreatedAt: hourAgo},
		Provided:       &fleet.Provided{At: hourAgo, Status: fleet.ProviderStatusActive, Hostname: "herd-1"},
		AgentStarted:   &fleet.AgentStarted{At: hourAgo, TakeoverGeneration: 1, BootID: "b1"},
		AgentSeen:      &fleet.AgentSeen{TakeoverGeneration: 1, FirstAt: hourAgo, LastAt: now, BootID: "b1"},
		Hardware:       &fleet.Hardware{FirstAt: hourAgo, At: hourAgo},
		InstallRequest: &fleet.InstallRequest{Generation: 1, At: hourAgo, Image: fleet.Image{URL: "http://x/y"}},
		InstallAttempt: &fleet.InstallAttempt{Generation: 1, Attempt: 1, At: hourAgo},
		InstallReport:  &fleet.InstallReport{Generation: 1, Attempt: 1, At: hourAgo, Error: "/dev/sda holds a file system", NeedsErase: true},
	}
	for command, up := range map[string]*fleet.Installed{
		"ironherd machine install m1 --image IMAGE --erase":                          nil,
		"ironherd machine install m1 --image IMAGE --reinstall --erase --reason WHY": {At: hourAgo.Add(-time.Hour)},
	} {
		r.Installed = up
		env := fleet.Environment{Policy: fleet.DefaultPolicy()}
		j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
		n := j.nextStep()
		if j.plan.State != fleet.StateRefused || n.GetWho() != whoOperator || n.GetCommand() != command ||
			n.GetWhat() != "the disk is overwritten; until then the system that the agent was started in goes on running" {
			t.Errorf("%s: %v", j.plan.State, n)
		}
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

// TestNoCommandThatIsRefusedOrNeedless: what a maintenance refuses, and a restart that somebody has
// asked for already, are no turn of a person.
func TestNoCommandThatIsRefusedOrNeedless(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	hourAgo := now.Add(-time.Hour)
	until := now.Add(time.Hour)
	reboot := &fleet.OperationRequest{Number: 1, Operation: fleet.OperationReboot, At: now, Actor: "op", Reason: "it hangs"}
	for name, c := range map[string]struct {
		change       func(r *fleet.Record)
		state        fleet.State
		who, command string
	}{
		"given up": {
			func(r *fleet.Record) { r.Provided.Status = fleet.ProviderStatusFailed },
			fleet.StateFailed, whoOperator, "ironherd machine replace m1 --reason WHY",
		},
		"given up, in maintenance": {func(r *fleet.Record) {
			r.Provided.Status = fleet.ProviderStatusFailed
			r.Maintenance = &fleet.Maintenance{At: hourAgo, Actor: "ada", Reason: "a disk"}
		}, fleet.StateFailed, whoOperator, "ironherd machine maintenance end m1 --reason WHY"},
		"given up, in a maintenance with an end": {func(r *fleet.Record) {
			r.Provided.Status = fleet.ProviderStatusFailed
			r.Maintenance = &fleet.Maintenance{At: hourAgo, Until: &until, Actor: "ada", Reason: "a disk"}
		}, fleet.StateFailed, whoWe, ""},
		"given up after a maintenance": {func(r *fleet.Record) {
			r.Provided.Status = fleet.ProviderStatusFailed
			r.Maintenance = &fleet.Maintenance{At: hourAgo, Until: &now, Actor: "ada", Reason: "a disk", Over: true}
		}, fleet.StateFailed, whoOperator, "ironherd machine replace m1 --reason WHY"},
		"unreachable":             {func(*fleet.Record) {}, fleet.StateUnreachable, whoOperator, "ironherd machine reboot m1 --reason WHY"},
		"unreachable, asked for":  {func(r *fleet.Record) { r.Operation = reboot }, fleet.StateUnreachable, whoWe, ""},
		"silent, and only starts": {onlyStarts(hourAgo, now), fleet.StateSilent, whoOperator, "ironherd machine reboot m1 --reason WHY"},
		"silent, and asked for": {func(r *fleet.Record) {
			onlyStarts(hourAgo, now)(r)
			r.Operation = reboot
		}, fleet.StateSilent, whoWe, ""},
	} {
		r := fleet.Record{
			Machine:        fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "dev-1", CreatedAt: hourAgo},
			Provided:       &fleet.Provided{At: hourAgo, Status: fleet.ProviderStatusActive, Hostname: "db1"},
			InstallRequest: &fleet.InstallRequest{Generation: 1, At: hourAgo, Image: fleet.Image{URL: "http://x/y"}},
			Installed: &fleet.Installed{
				Generation: 1, Attempt: 1, At: hourAgo, BootID: "b1", SeenUp: fleet.SeenUp{By: fleet.SeenBySSH, Watch: true},
			},
			Probe:  &fleet.Probe{Generation: 1, Attempt: 1, At: now, UnansweredSince: hourAgo, Detail: "connection refused"},
			Levers: []fleet.Lever{fleet.LeverReboot, fleet.LeverRelease},
		}
		c.change(&r)
		env := fleet.Environment{Policy: fleet.DefaultPolicy(), ListenerUpSince: hourAgo}
		env.Policy.RecoveryReboots = 0
		j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
		if n := j.nextStep(); j.plan.State != c.state || n.GetWho() != c.who || n.GetCommand() != c.command {
			t.Errorf("%s: %s: %v", name, j.plan.State, n)
		}
	}
}

// onlyStarts makes a machine one without an installed system whose agent is silent and cannot be
// started, and that no policy allows to be restarted.
func onlyStarts(hourAgo, now time.Time) func(r *fleet.Record) {
	return func(r *fleet.Record) {
		r.InstallRequest, r.Installed, r.Probe = nil, nil, nil
		r.AgentStarted = &fleet.AgentStarted{At: hourAgo, TakeoverGeneration: 1, PublicKey: []byte("key"), BootID: "b1"}
		r.AgentSeen = &fleet.AgentSeen{TakeoverGeneration: 1, FirstAt: hourAgo, LastAt: hourAgo, BootID: "b1"}
		r.Backoffs = map[fleet.Process]fleet.BackoffState{
			fleet.ProcessAgentStart: {Failures: 1, NotBefore: now.Add(time.Minute), Since: hourAgo, Cause: "no route to host"},
		}
	}
}

// TestAProbeThatMeetsAnotherHostKey is a person's turn, who accepts it or finds out what answers
// there. A restart does not change the key.
func TestAProbeThatMeetsAnotherHostKey(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	hourAgo := now.Add(-time.Hour)
	const shown = "SHA256:uNiVztksCsDhcc0u9e8BrcqT0"
	for detail, command := range map[string]string{
		"198.51.100.1:22 has the host key " + shown + ", but SHA256:x is expected": "ironherd machine host-key accept m1 " + shown + " --reason WHY",
		"connection refused": "ironherd machine reboot m1 --reason WHY",
	} {
		r := fleet.Record{
			Machine:        fleet.Machine{ID: "m1", Provider: "rack", ProviderID: "dev-1", CreatedAt: hourAgo},
			Provided:       &fleet.Provided{At: hourAgo, Status: fleet.ProviderStatusActive, Hostname: "db1"},
			InstallRequest: &fleet.InstallRequest{Generation: 1, At: hourAgo, Image: fleet.Image{URL: "http://x/y"}},
			Installed: &fleet.Installed{
				Generation: 1, Attempt: 1, At: hourAgo, BootID: "b1", SeenUp: fleet.SeenUp{By: fleet.SeenBySSH, Watch: true},
			},
			Probe:  &fleet.Probe{Generation: 1, Attempt: 1, At: now, UnansweredSince: hourAgo, Detail: detail},
			Levers: []fleet.Lever{fleet.LeverReboot},
		}
		env := fleet.Environment{Policy: fleet.DefaultPolicy()}
		j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now, hostKey: shown}
		if n := j.nextStep(); j.plan.State != fleet.StateUnreachable || n.GetWho() != whoOperator || n.GetCommand() != command {
			t.Errorf("%s, %q: %v", j.plan.State, detail, n)
		}
	}
}

// TestAHostThatRefusesUs is a person's turn, also where its provider can restart it, and where no
// agent was ever started.
func TestAHostThatRefusesUs(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	hourAgo := now.Add(-time.Hour)
	const shown = "SHA256:uNiVztksCsDhcc0u9e8BrcqT0"
	for _, c := range []struct {
		cause   string
		refused bool
		command string
	}{
		{"198.51.100.1:22 has the host key " + shown + ", but SHA256:x is expected", true, "ironherd machine host-key accept m1 " + shown + " --reason WHY"},
		{"198.51.100.1:22 refuses the key SHA256:x for user root", true, "ironherd machine retry m1"},
		{"connection refused", false, ""},
	} {
		r := fleet.Record{
			Machine:      fleet.Machine{ID: "m1", Provider: "rack", ProviderID: "dev-1", CreatedAt: hourAgo},
			Provided:     &fleet.Provided{At: hourAgo, Status: fleet.ProviderStatusActive, Hostname: "db1"},
			AgentStarted: &fleet.AgentStarted{At: hourAgo, TakeoverGeneration: 1, PublicKey: []byte("key"), BootID: "b1"},
			AgentSeen:    &fleet.AgentSeen{TakeoverGeneration: 1, FirstAt: hourAgo, LastAt: hourAgo, BootID: "b1"},
			Backoffs: map[fleet.Process]fleet.BackoffState{
				fleet.ProcessAgentStart: {Failures: 1, NotBefore: now.Add(time.Minute), Since: hourAgo, Cause: c.cause, Answered: true, Refused: c.refused},
			},
			Levers: []fleet.Lever{fleet.LeverReboot},
		}
		env := fleet.Environment{Policy: fleet.DefaultPolicy(), ListenerUpSince: hourAgo}
		j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now, hostKey: shown}
		if n := j.nextStep(); j.plan.State != fleet.StateSilent || (n.GetWho() == whoOperator) != c.refused || n.GetCommand() != c.command {
			t.Errorf("%s, %q: %v", j.plan.State, c.cause, n)
		}
		j.record.AgentStarted, j.record.AgentSeen = nil, nil
		j.plan = lifecycle.Decide(j.record, env, now)
		if n := j.nextStep(); j.plan.State != fleet.StateProvided || (n.GetWho() == whoOperator) != c.refused || n.GetCommand() != c.command {
			t.Errorf("%s, %q: %v", j.plan.State, c.cause, n)
		}
	}
}

// TestWhatRecoveryGaveUpMayBeReplaced: beside the end of the quarantine, which begins the same
// ladder again, a person is told the other way, where the provider has it.
func TestWhatRecoveryGaveUpMayBeReplaced(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	hourAgo := now.Add(-time.Hour)
	all := []fleet.Lever{fleet.LeverReboot, fleet.LeverPower, fleet.LeverRelease}
	gaveUp := &fleet.Repair{Since: hourAgo, Rung: fleet.RungQuarantine, At: now, Steps: map[fleet.Rung]int{
		fleet.RungAgentStart: 2, fleet.RungReboot: 1, fleet.RungQuarantine: 1,
	}}
	const back = "work comes back to the machine"
	const again = back + ", and recovery begins anew with the steps that it has tried: 2 agent starts, 1 reboot"
	for _, c := range []struct {
		repair *fleet.Repair
		levers []fleet.Lever
		what   string
	}{
		{gaveUp, all, again + "; if its hardware is broken, `ironherd machine replace m1 --reason WHY` gives it back instead, and another one may be created"},
		{gaveUp, []fleet.Lever{fleet.LeverReboot}, again},
		{gaveUp, []fleet.Lever{fleet.LeverRelease}, again}, // a list of hosts
		{&fleet.Repair{Rung: fleet.RungReboot, At: hourAgo, Steps: map[fleet.Rung]int{fleet.RungReboot: 1}}, all, back},
		{nil, all, back},
	} {
		r := fleet.Record{
			Machine:    fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "dev-1", CreatedAt: hourAgo},
			Provided:   &fleet.Provided{At: hourAgo, Status: fleet.ProviderStatusActive, Hostname: "herd-1"},
			Quarantine: &fleet.Quarantine{At: now, Actor: "recovery", Reason: "no step is left"}, Repair: c.repair, Levers: c.levers,
		}
		env := fleet.Environment{Policy: fleet.DefaultPolicy()}
		n := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}.nextStep()
		if n.GetWho() != whoOperator || n.GetCommand() != "ironherd machine unquarantine m1 --reason WHY" || n.GetWhat() != c.what {
			t.Errorf("with %v: %v, want %q", c.levers, n, c.what)
		}
	}
}

// TestWhatNobodyDoesIsAPersonsTurn: explain does not promise what no process does. A role that is
// missing changes no decision, only its reason.
func TestWhatNobodyDoesIsAPersonsTurn(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	silent := fleet.Record{
		Machine:      fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "dev-1", CreatedAt: ago(2 * time.Hour)},
		Provided:     &fleet.Provided{At: ago(2 * time.Hour), Status: fleet.ProviderStatusActive, Hostname: "herd-1"},
		Levers:       []fleet.Lever{fleet.LeverReboot},
		AgentStarted: &fleet.AgentStarted{At: ago(2 * time.Hour), TakeoverGeneration: 1, PublicKey: []byte("key"), BootID: "b1"},
		AgentSeen:    &fleet.AgentSeen{TakeoverGeneration: 1, FirstAt: ago(2 * time.Hour), LastAt: ago(time.Hour), BootID: "b1"},
		Backoffs: map[fleet.Process]fleet.BackoffState{
			fleet.ProcessAgentStart: {Failures: 1, NotBefore: now.Add(time.Hour), Cause: "no route to host"},
		},
	}
	creating := fleet.Record{
		Machine: fleet.Machine{ID: "m2", Provider: "metal", CreatedAt: ago(time.Hour)},
		Intent:  &fleet.Intent{Machine: "m2", Provider: "metal", Capacity: "c", OpenedAt: ago(time.Hour), PlannedAt: ago(time.Hour)},
	}
	coming := fleet.Record{
		Machine:  fleet.Machine{ID: "m3", Provider: "metal", ProviderID: "dev-3", CreatedAt: ago(time.Hour)},
		Provided: &fleet.Provided{At: ago(time.Hour), Status: fleet.ProviderStatusCreating},
	}
	fresh := coming
	fresh.Provided = &fleet.Provided{At: ago(time.Minute), Status: fleet.ProviderStatusActive, Hostname: "herd-3"}
	asked := silent
	asked.AgentSeen = &fleet.AgentSeen{TakeoverGeneration: 1, FirstAt: ago(2 * time.Hour), LastAt: now, BootID: "b1"}
	asked.Backoffs = nil
	wanted := asked
	asked.Operation = &fleet.OperationRequest{Number: 1, Operation: fleet.OperationReboot, At: ago(time.Minute), Actor: "ada", Reason: "hangs"}
	wanted.Hardware = &fleet.Hardware{FirstAt: ago(time.Hour), At: ago(time.Hour)}
	well := wanted
	worked := well
	worked.Maintenance = &fleet.Maintenance{At: ago(time.Minute), Until: new(now.Add(time.Minute)), Actor: "ada", Reason: "a new board"}
	wanted.InstallRequest = &fleet.InstallRequest{Generation: 1, At: ago(time.Minute), Image: fleet.Image{URL: "http://x/y"}}
	for name, c := range map[string]struct {
		record  fleet.Record
		process fleet.Process
		missing fleet.Role
		was     string
	}{
		"a silent machine":         {silent, fleet.ProcessRecovery, fleet.RoleRecoverer, whoWe},
		"one that is not created":  {creating, fleet.ProcessProvision, fleet.RoleProvisioner, whoProvider},
		"one that is being made":   {coming, fleet.ProcessAgentStart, fleet.RoleUpdater, whoProvider},
		"one without an agent":     {fresh, fleet.ProcessAgentStart, fleet.RoleInitializer, whoWe},
		"one to be rebooted":       {asked, fleet.ProcessOperation, fleet.RoleOperations, whoWe},
		"one to be installed":      {wanted, fleet.ProcessInstall, fleet.RoleAgentAPI, whoWe},
		"one in maintenance":       {worked, fleet.ProcessOperation, fleet.RoleOperations, whoWe},
		"one that needs nothing":   {well, fleet.ProcessAgentStart, fleet.RoleInitializer, whoNobody},
		"one that nobody recovers": {well, fleet.ProcessAgentStart, fleet.RoleRecoverer, whoNobody},
	} {
		env := fleet.Environment{Policy: fleet.DefaultPolicy(), ListenerUpSince: ago(24 * time.Hour)}
		judge := func() judged {
			return judged{record: c.record, env: env, plan: lifecycle.Decide(c.record, env, now), now: now}
		}
		before := judge()
		if d, _ := before.plan.Next(); d.Process != c.process || before.nextStep().GetWho() != c.was {
			t.Errorf("%s: next is %s, by %s: %s", name, d.Process, before.nextStep().GetWho(), d.Reason)
		}
		env.Missing = []fleet.Role{c.missing}
		after, step := judge(), judge().nextStep()
		said := "no live control plane has the role " + string(c.missing)
		const remedy = "start an `ironherd serve` whose `roles` has it"
		if c.was != whoNobody && (step.GetWho() != whoOperator || step.GetWhat() != said+"; "+remedy) {
			t.Errorf("%s: next is %s: %s", name, step.GetWho(), step.GetWhat())
		}
		if c.was == whoNobody && step.GetWho() != whoNobody {
			t.Errorf("%s: next is %s: %s", name, step.GetWho(), step.GetWhat())
		}
		for i, was := range before.plan.Decisions {
			is := after.plan.Decisions[i]
			reason := was.Reason
			if was.Process.Role() == c.missing && was.Verdict != lifecycle.NotWanted {
				reason += ", but " + said
			}
			if is.Verdict != was.Verdict || !is.DueAt.Equal(was.DueAt) || is.Rung != was.Rung || is.Reason != reason {
				t.Errorf("%s: %s was %v, is %v", name, was.Process, was, is)
			}
		}
		if after.plan.State != before.plan.State || after.plan.Reason != before.plan.Reason {
			t.Errorf("%s: the state was %s (%s), is %s (%s)", name, before.plan.State, before.plan.Reason, after.plan.State, after.plan.Reason)
		}
	}
}

// TestRecoveryIsNextOfASilentInstall: who waits for an installed system that has not come up in its
// time waits for recovery. Before that time, they wait for the system.
func TestRecoveryIsNextOfASilentInstall(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	policy := fleet.DefaultPolicy()
	for _, c := range []struct {
		written time.Duration // before now
		state   fleet.State
		who     string
		by      time.Duration // from now
	}{
		{policy.BootTimeout - time.Second, fleet.StateBooting, whoAgent, 0},
		{policy.BootTimeout + policy.RecoveryStepTimeout - 20*time.Second, fleet.StateSilent, whoWe, 20 * time.Second},
	} {
		at := now.Add(-c.written)
		r := fleet.Record{
			Machine:        fleet.Machine{ID: "m1", Provider: "metal", ProviderID: "dev-1", CreatedAt: at.Add(-time.Hour)},
			Provided:       &fleet.Provided{At: at.Add(-time.Hour), Status: fleet.ProviderStatusActive, Hostname: "herd-1"},
			Levers:         []fleet.Lever{fleet.LeverReboot},
			InstallRequest: &fleet.InstallRequest{Generation: 1, At: at.Add(-time.Minute), Image: fleet.Image{URL: "http://x/y"}},
			InstallAttempt: &fleet.InstallAttempt{Generation: 1, Attempt: 1, At: at.Add(-time.Minute)},
			InstallReport:  &fleet.InstallReport{Generation: 1, Attempt: 1, At: at, OK: true},
		}
		env := fleet.Environment{Policy: policy, ListenerUpSince: now.Add(-24 * time.Hour)}
		j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
		n := j.nextStep()
		if j.plan.State != c.state || n.GetWho() != c.who || c.by > 0 && (!n.GetBy().AsTime().Equal(now.Add(c.by)) || !strings.HasPrefix(n.GetWhat(), "recovery: ")) {
			t.Errorf("%s after the install: %s (%s), next is %v; %+v", c.written, j.plan.State, j.plan.Reason, n, j.plan.Decisions)
		}
		j.env.Missing = []fleet.Role{fleet.RoleRecoverer}
		if n := j.nextStep(); c.state == fleet.StateSilent && n.GetWho() != whoOperator {
			t.Errorf("nobody recovers: %v", n)
		}
	}
}

// TestAPausedProviderIsAPersonsTurn: a creation waits for who paused its provider, also one that
// was asked for already and not answered: a pass looks for it after the pause.
func TestAPausedProviderIsAPersonsTurn(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	for _, asked := range []bool{false, true} {
		r := fleet.Record{
			Machine: fleet.Machine{ID: "m1", Provider: "metal", CreatedAt: now.Add(-time.Hour)},
			Intent:  &fleet.Intent{Machine: "m1", Capacity: "c1", PlannedAt: now.Add(time.Minute)},
		}
		if asked {
			r.Intent.Calls = 1
		}
		env := fleet.Environment{Policy: fleet.DefaultPolicy(), Explained: fleet.Explained{Paused: &fleet.Pause{At: time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC), Actor: "ada", Reason: "the bill"}}}
		j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
		n := j.nextStep()
		told := strings.Contains(j.plan.Reason, "paused by ada since 2026-11-21 03:00:00 UTC: the bill")
		persons := n.GetCommand() == "ironherd provider resume metal --reason WHY"
		if !told || !persons {
			t.Errorf("asked %v: %s: %v", asked, j.plan.Reason, n)
		}
	}
}
