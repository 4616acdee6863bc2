package lifecycle_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// scenario is one case of the specification: facts, an instant, and what is decided.
type scenario struct {
	name  string
	steps []step
	now   float64
	env   func(*fleet.Environment)
	state fleet.State
	// reason that is shown with the state has this in it.
	reason string
	want   []due
}

func pausedProvider(env *fleet.Environment) {
	env.Paused = &fleet.Pause{At: at(-180), Actor: "ada", Reason: "the bill"}
}

var wayOfAMachine = []scenario{
	{
		name: "an install that is not wanted any more is waited for", steps: with(asked, attempt(5, 1, 1), wantInstall(6, 2)), now: 7,
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Later, 25, "attempt 1 at install generation 1, which is not wanted any more, is under way"}},
	},
	{
		name: "once it has ended, the newer one is next", steps: with(asked, attempt(5, 1, 1), wantInstall(6, 2), report(8, 1, 1, false)), now: 9,
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Due, 6, "handed to the agent with its next heartbeat"}},
	},
	{
		name: "a machine that waits for its turn to be created", steps: []step{intent(2, 0, 0)}, now: 1,
		state: fleet.StateCreating,
		want: []due{
			{provision, lifecycle.Waiting, 0, "creation pacing: its turn at metal is in about 1m0s"},
			{agentStart, lifecycle.Waiting, 0, "waiting for the provider to create"},
			{install, lifecycle.NotWanted, 0, "no operating system was asked for"},
			{recovery, lifecycle.NotWanted, 0, "no agent was started"},
			{update, lifecycle.NotWanted, 0, "not confirmed"},
		},
	},
	{
		name: "a create whose answer was lost", steps: []step{intent(0, 1, 0)}, now: 1,
		state: fleet.StateCreating,
		want:  []due{{provision, lifecycle.Waiting, 0, "asked once for capacity rack-7; the outcome is not confirmed"}},
	},
	{
		name: "a create whose answer was lost, and the provider was paused", steps: []step{intent(0, 1, 0)}, now: 1, env: pausedProvider,
		state: fleet.StateCreating,
		want:  []due{{provision, lifecycle.Waiting, 0, "is looked for after the pause: paused by ada since 2026-11-20 21:00:00 UTC: the bill; `ironherd provider resume metal --reason WHY` ends it"}},
	},
	{
		name: "a create that was rejected, and the provider was paused", steps: []step{intent(0, 1, 1)}, now: 1, env: pausedProvider,
		state: fleet.StateCreating,
		want:  []due{{provision, lifecycle.Waiting, 0, "paused by ada since 2026-11-20 21:00:00 UTC: the bill; `ironherd provider resume metal --reason WHY` ends it"}},
	},
	{
		name: "the provider is still at work", steps: []step{provided(1, fleet.ProviderStatusCreating)}, now: 2,
		state: fleet.StateProvisioning,
		want: []due{
			{agentStart, lifecycle.Waiting, 0, "waiting for the provider: creating"},
			{update, lifecycle.Waiting, 0, "asked every 1m0s while the machine is creating"},
		},
	},
	{
		name: "handed over: an agent is wanted at once", steps: active, now: 2,
		state: fleet.StateProvided,
		want: []due{
			{agentStart, lifecycle.Due, 1, "needs an agent"},
			{update, lifecycle.NotWanted, 0, "settled"},
		},
	},
	{
		name: "held by a session", steps: with(active, held(agentStart, 2.1)), now: 2,
		state: fleet.StateProvided,
		want:  []due{{agentStart, lifecycle.Running, 2.1, "held by session s-1 (initializer on ctl, epoch 3)"}},
	},
	{
		name: "in backoff", steps: with(active, backoff(agentStart, 5, "dial: refused")), now: 2,
		state: fleet.StateProvided,
		want:  []due{{agentStart, lifecycle.Later, 5, "in backoff after a failure: dial: refused"}},
	},
	{
		name: "a backoff that is over", steps: with(active, backoff(agentStart, 5, "dial: refused")), now: 6,
		state: fleet.StateProvided,
		want:  []due{{agentStart, lifecycle.Due, 5, "needs an agent"}},
	},
	{
		name: "the provider gave it up", steps: []step{provided(1, fleet.ProviderStatusFailed)}, now: 2,
		state: fleet.StateFailed,
		want: []due{
			{agentStart, lifecycle.NotWanted, 0, "gave the machine up"},
			{recovery, lifecycle.NotWanted, 0, "gave the machine up"},
		},
	},
	{
		name: "the provider lost it", steps: []step{provided(1, fleet.ProviderStatusGone)}, now: 2,
		state: fleet.StateMissing,
		want:  []due{{agentStart, lifecycle.NotWanted, 0, "does not have the machine"}},
	},
	{
		name: "the provider deletes it after the takeover: the provider's update looks after it", now: 40,
		steps: with(agent, provided(3, fleet.ProviderStatusDeleting)),
		state: fleet.StateProvisioning,
		want: []due{
			{agentStart, lifecycle.NotWanted, 0, "the agent was started"},
			{recovery, lifecycle.NotWanted, 0, "the provider is deleting the machine"},
			{update, lifecycle.Waiting, 0, "asked every 1m0s while the machine is deleting"},
		},
	},
	{
		name: "the provider deletes what was installed", steps: with(up, provided(7, fleet.ProviderStatusDeleting)), now: 8,
		state: fleet.StateProvisioning,
		want: []due{
			{install, lifecycle.NotWanted, 0, "installed"},
			{recovery, lifecycle.NotWanted, 0, "the provider is deleting the machine"},
		},
	},
	{
		name: "the agent was started and has not spoken", steps: with(agent, wantInstall(0, 1)), now: 3,
		state: fleet.StateStarted,
		want: []due{
			{agentStart, lifecycle.Later, 32, "has not spoken 30m0s after its start"},
			{install, lifecycle.Waiting, 0, "waiting for a heartbeat"},
			{recovery, lifecycle.NotWanted, 0, "not silent"},
		},
	},
	{
		name: "the agent never spoke", steps: agent, now: 33,
		state: fleet.StateSilent,
		want:  []due{{agentStart, lifecycle.Due, 32, "has not spoken"}, {recovery, lifecycle.Waiting, 0, "started again first"}},
	},
	{
		name: "the agent of an older takeover spoke, the newest has not", now: 3,
		steps: with(active, started(2, 2), seen(1, 2, 1)),
		state: fleet.StateStarted,
		want:  []due{{agentStart, lifecycle.Later, 32, "has not spoken"}},
	},
	{
		name: "it speaks, its hardware is not known", steps: with(speaking, wantInstall(0, 1)), now: 4,
		state: fleet.StateInstalling,
		want: []due{
			{install, lifecycle.Waiting, 0, "waiting for the hardware report"},
			{agentStart, lifecycle.Later, 13, "silent for 10m0s"},
		},
	},
	{
		name: "ready for whatever comes", steps: known, now: 4,
		state: fleet.StateAvailable,
		want:  []due{{install, lifecycle.NotWanted, 0, "no operating system was asked for"}},
	},
	{
		name: "silence", steps: known, now: 13,
		state: fleet.StateSilent,
		want:  []due{{agentStart, lifecycle.Due, 13, "silent for 10m0s"}, {recovery, lifecycle.Waiting, 0, "started again first"}},
	},
	{
		name: "silence does not count while no listener was up", steps: known, now: 60,
		env:   func(e *fleet.Environment) { e.ListenerUpSince = time.Time{} },
		state: fleet.StateAvailable,
		want:  []due{{agentStart, lifecycle.Later, 70, "silent for 10m0s"}},
	},
	{
		name: "silence counts from when the listener came up", steps: known, now: 60,
		env:   func(e *fleet.Environment) { e.ListenerUpSince = at(55) },
		state: fleet.StateAvailable,
		want:  []due{{agentStart, lifecycle.Later, 65, "silent for 10m0s"}},
	},
	{
		name: "who was silent when the listener went away stays so while it comes back, and has time to be heard", steps: known, now: 60,
		env: func(e *fleet.Environment) {
			e.ListenerUpSince, e.ListenedSince, e.ListenedUntil = at(55), at(-20), at(13)
		},
		state: fleet.StateSilent, reason: "silent for 10m0s",
		want: []due{{agentStart, lifecycle.Later, 65, "silent for 10m0s"}, {recovery, lifecycle.Waiting, 0, "it is started again first"}},
	},
	{
		name: "who was not silent for long enough by then does not", steps: known, now: 60,
		env: func(e *fleet.Environment) {
			e.ListenerUpSince, e.ListenedSince, e.ListenedUntil = at(55), at(-20), at(12.9)
		},
		state: fleet.StateAvailable,
	},
	{
		name: "nor does who was not listened to for long enough", steps: known, now: 60,
		env: func(e *fleet.Environment) {
			e.ListenerUpSince, e.ListenedSince, e.ListenedUntil = time.Time{}, at(6), at(15)
		},
		state: fleet.StateAvailable,
	},
	{
		name: "silence is not declared while a listener has no room", steps: known, now: 60, env: full(12, 61),
		state: fleet.StateAvailable,
		want:  []due{{agentStart, lifecycle.Later, 61, "it is started again; not before then, because an agent listener turns callers away"}},
	},
	{
		name: "silence is declared when there was room for long enough", steps: known, now: 61, env: full(12, 61),
		state: fleet.StateSilent,
		want:  []due{{agentStart, lifecycle.Due, 61, "silent for 10m0s"}},
	},
	{
		name: "who was silent before there was no room is so still", steps: known, now: 60, env: full(14, 61),
		state: fleet.StateSilent, reason: "silent for 10m0s",
		want: []due{{agentStart, lifecycle.Later, 61, "silent for 10m0s"}},
	},
	{
		name: "silence is never declared below three promised intervals", steps: known, now: 20,
		env:   func(e *fleet.Environment) { e.PromisedInterval = 10 * time.Minute },
		state: fleet.StateAvailable,
		want:  []due{{agentStart, lifecycle.Later, 33, "silent for 30m0s"}},
	},
	{
		name: "an install is handed out with the next heartbeat", steps: asked, now: 4,
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Due, 3, "next heartbeat"}},
	},
	{
		name: "after a restore nothing is destroyed", steps: asked, now: 4,
		env:   func(e *fleet.Environment) { e.Restored = "counter 7 beside the file, 5 in it" },
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Waiting, 0, "accept-restore"}},
	},
	{
		name: "after a restore no agent is started", steps: active, now: 4, // rule 11
		env:   func(e *fleet.Environment) { e.Restored = "counter 7 beside the file, 5 in it" },
		state: fleet.StateProvided,
		want: []due{
			{agentStart, lifecycle.Waiting, 0, "the start of an agent waits for `ironherd db accept-restore`"},
			{recovery, lifecycle.NotWanted, 0, "no agent was started"},
		},
	},
	{
		name: "after a restore nothing is repaired", steps: known, now: 13, // rule 11
		env:   func(e *fleet.Environment) { e.Restored = "counter 7 beside the file, 5 in it" },
		state: fleet.StateSilent,
		want:  []due{{agentStart, lifecycle.Waiting, 0, "accept-restore"}},
	},
	{
		name: "after a restore nothing that hangs is repaired", steps: written, now: 21, // rule 11
		env:   func(e *fleet.Environment) { e.Restored = "counter 7 beside the file, 5 in it" },
		state: fleet.StateSilent,
		want:  []due{{recovery, lifecycle.Waiting, 0, "accept-restore"}},
	},
	{
		name: "what cannot be read is put off", steps: with(asked, unreadable), now: 4,
		state: fleet.StateUnreadable,
		want: []due{
			{agentStart, lifecycle.Later, 64, "cannot be read: the image is garbled"},
			{install, lifecycle.Later, 64, "cannot be read"},
			{recovery, lifecycle.Later, 64, "cannot be read"},
		},
	},
	{
		name: "people win over what cannot be read", steps: with(asked, unreadable, quarantine(4)), now: 4,
		state: fleet.StateQuarantined,
	},
	{
		name: "off: it may be on its way on", steps: []step{provided(1, fleet.ProviderStatusOff)}, now: 15.9,
		state: fleet.StateProvisioning,
		want:  []due{{update, lifecycle.Waiting, 0, "asked every 1m0s while the machine is off"}},
	},
	{
		name: "off for a quarter of an hour: it stays off", steps: []step{provided(1, fleet.ProviderStatusOff)}, now: 16,
		state: fleet.StateProvisioning,
		want:  []due{{update, lifecycle.NotWanted, 0, "settled"}},
	},
	{
		name: "an attempt is under way", steps: underWay, now: 5,
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Later, 24, "attempt 1 is under way"}},
	},
	{
		name: "an attempt that takes too long", steps: with(underWay, seen(3, 24, 1)), now: 25,
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Due, 24, "given up after 20m0s"}},
	},
	{
		name: "a failed attempt", now: 6,
		steps: with(underWay, report(5, 1, 1, false), backoff(install, 7, "digest does not match")),
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Later, 7, "digest does not match"}},
	},
	{
		name: "the agent refused to overwrite what the disk holds: no time changes that", now: 500,
		steps: with(underWay, seen(3, 499, 1), refused(5, 1, 1, 1)),
		state: fleet.StateRefused,
		want: []due{
			{install, lifecycle.Waiting, 0, "refused by the agent: /dev/sda holds an install; `ironherd machine install m-1 --image IMAGE --reinstall --reason WHY`"},
			{agentStart, lifecycle.Later, 509, "silent for 10m0s"},
		},
	},
	{
		name: "nobody wants what the disk does not allow", now: 8,
		steps: with(underWay, refused(5, 1, 1, 1), cancelled(6, 1)),
		state: fleet.StateAvailable,
		want:  []due{{install, lifecycle.NotWanted, 0, "called off"}},
	},
	{
		name: "the disk holds what may not be erased: a person decides, and the agent looks again", now: 6,
		steps: with(underWay, needsErase(5, 1, 1), backoff(install, 7, "/dev/sda holds a file system")),
		state: fleet.StateRefused, reason: "`ironherd machine install m-1 --image IMAGE --erase` overwrites it",
		want: []due{{install, lifecycle.Later, 7, "in backoff after a failure: /dev/sda holds a file system"}},
	},
	{
		name: "a system that was marked as installed is on the disk", now: 8,
		steps: with(underWay, installed(1, 0), needsErase(5, 1, 1)),
		state: fleet.StateRefused, reason: "`ironherd machine install m-1 --image IMAGE --reinstall --erase --reason WHY` overwrites it",
		want: []due{{install, lifecycle.Due, 3, "the agent looks again whether the disk is empty by now"}},
	},
	{
		name: "a report that it went well says nothing else, whatever an older version has left", now: 8,
		steps: with(underWay, needsErase(5, 1, 1), func(r *fleet.Record) { r.InstallReport.OK = true }),
		state: fleet.StateBooting,
	},
	{
		name: "the agent looks again", steps: with(underWay, needsErase(5, 1, 1), attempt(6, 1, 2)), now: 7,
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Later, 26, "attempt 2 is under way"}},
	},
	{
		name: "what the disk holds is not wanted erased any more", steps: with(underWay, needsErase(5, 1, 1), cancelled(6, 1)), now: 7,
		state: fleet.StateAvailable,
		want:  []due{{install, lifecycle.NotWanted, 0, "called off"}},
	},
	{
		name: "another request may erase it", steps: with(underWay, needsErase(5, 1, 1), wantInstall(7, 2)), now: 8,
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Due, 7, "next heartbeat"}},
	},
	{
		name: "an agent that does not understand the request: a newer one is started when somebody restarts the machine", now: 500,
		steps: with(underWay, allLevers, seen(3, 499, 1), notUnderstood(5, 1, 1)),
		state: fleet.StateRefused,
		want: []due{
			{install, lifecycle.Waiting, 0, "refused by the agent: it is older; a person can restart the machine (`ironherd machine reboot m-1 --reason WHY`)"},
			{agentStart, lifecycle.Later, 509, "silent for 10m0s"},
		},
	},
	{
		name: "nor does the one in memory, which an earlier attempt has left with a disk that may not boot", now: 500,
		steps: with(underWay, allLevers, seen(3, 499, 1), seenBoot("memory"), notUnderstood(5, 1, 1), wrote(fleet.DiskUnknown)),
		state: fleet.StateRefused,
		want: []due{{
			install, lifecycle.Waiting, 0, "it is older; the disk may be half-written, and nothing may boot from it; " +
				"`ironherd machine install m-1 --image IMAGE --reinstall --reason WHY` is understood if it asks for nothing new",
		}},
	},
	{
		name: "the agent started since may understand it", now: 8,
		steps: with(underWay, notUnderstood(5, 1, 1), started(6, 2), seen(7, 8, 2)),
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Due, 7, "next heartbeat"}},
	},
	{
		name: "it does, and is at it", now: 8,
		steps: with(underWay, notUnderstood(5, 1, 1), started(6, 2), seen(7, 8, 2), attempt(7, 1, 2)),
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Later, 27, "attempt 2 is under way"}},
	},
	{
		name: "the request that replaces it may be understood", now: 8,
		steps: with(underWay, notUnderstood(5, 1, 1), wantInstall(7, 2)),
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Due, 7, "next heartbeat"}},
	},
	{
		name: "nobody wants any more what was not understood", now: 7,
		steps: with(underWay, notUnderstood(5, 1, 1), cancelled(6, 1)),
		state: fleet.StateAvailable,
		want:  []due{{install, lifecycle.NotWanted, 0, "called off"}},
	},
	{
		name: "a reinstall above what the disk holds", now: 8,
		steps: with(underWay, refused(5, 1, 1, 4), wantInstall(7, 5)),
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Due, 7, "next heartbeat"}},
	},
	{
		name: "the disk is written", steps: written, now: 6,
		state: fleet.StateBooting,
		want: []due{
			{agentStart, lifecycle.NotWanted, 0, "booting"},
			// its state changes then
			{install, lifecycle.Later, 20, "waiting for the unit of the installed system to call"},
			{recovery, lifecycle.Later, 30, "the unit of the installed system has not called 15m0s after the install, and"},
		},
	},
	{
		name: "the disk is written by an attempt whose report has a refusal of the one before it", steps: with(written, heldBefore), now: 6,
		state: fleet.StateBooting,
	},
	{
		name: "the installed system never came up", steps: written, now: 21,
		state: fleet.StateSilent,
		want: []due{
			{install, lifecycle.Waiting, 0, "waiting for the unit of the installed system to call"},
			{recovery, lifecycle.Later, 30, "the unit of the installed system has not called"},
		},
	},
	{
		name: "a system with cloud-init never called", now: 21,
		steps: with(written, func(r *fleet.Record) { r.InstallRequest.Image.FirstBoot = fleet.FirstBootNoCloud }),
		state: fleet.StateSilent, reason: "after the install (an image with cloud-init may have no such unit)",
		want: []due{{recovery, lifecycle.Later, 30, "(an image with cloud-init may have no such unit), and there is no sign of life"}},
	},
	{
		name: "installed: nothing is wanted", steps: up, now: 500,
		state: fleet.StateInstalled,
		want: []due{
			{agentStart, lifecycle.NotWanted, 0, "needs no agent"},
			{install, lifecycle.NotWanted, 0, "installed (install generation 1)"},
			{recovery, lifecycle.NotWanted, 0, "left alone"},
			{update, lifecycle.NotWanted, 0, "settled"},
		},
	},
	{
		name: "a reinstall needs an agent again", steps: reinstall, now: 21,
		state: fleet.StateProvided,
		want: []due{
			{agentStart, lifecycle.Due, 20, "needs an agent"},
			{install, lifecycle.Waiting, 0, "waiting for the agent"},
			{recovery, lifecycle.NotWanted, 0, "no agent was started"},
		},
	},
	{
		name: "a reinstall is handed to the new agent", steps: reinstall2, now: 24,
		state: fleet.StateInstalling,
		want:  []due{{install, lifecycle.Due, 23, "next heartbeat"}},
	},
	{
		name: "people win", steps: with(asked, quarantine(4)), now: 500,
		state: fleet.StateQuarantined,
		want: []due{
			{agentStart, lifecycle.NotWanted, 0, "quarantined by ada: smells of smoke"},
			{install, lifecycle.NotWanted, 0, "quarantined"},
			{recovery, lifecycle.NotWanted, 0, "quarantined"},
		},
	},
	{
		name: "another process has the lane", steps: with(active, held(recovery, 9)), now: 2,
		state: fleet.StateProvided,
		want: []due{
			{agentStart, lifecycle.Later, 9, "the host lane is held for recovery"},
			{recovery, lifecycle.Running, 9, "held by session"},
		},
	},
}

func TestSpecification(t *testing.T) {
	t.Parallel()
	for _, c := range slices.Concat(wayOfAMachine, recoveryLadder, over, asking, operations, replacements, probes) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			env := environment()
			if c.env != nil {
				c.env(&env)
			}
			plan := lifecycle.Decide(record(c.steps...), env, at(c.now))
			if plan.State != c.state {
				t.Errorf("state %s (%s), want %s", plan.State, plan.Reason, c.state)
			}
			if !strings.Contains(plan.Reason, c.reason) {
				t.Errorf("the reason of the state is %q, want %q", plan.Reason, c.reason)
			}
			for _, w := range c.want {
				checkDecision(t, plan.For(w.process), w)
			}
		})
	}
}

func checkDecision(t *testing.T, got lifecycle.Decision, want due) {
	t.Helper()
	if got.Verdict != want.verdict {
		t.Errorf("%s is %s (%s), want %s", want.process, got.Verdict, got.Reason, want.verdict)
	}
	if want.verdict.Scheduled() && !got.DueAt.Equal(at(want.minute)) {
		t.Errorf("%s is due at %s, want %s", want.process, got.DueAt, at(want.minute))
	}
	if !want.verdict.Scheduled() && !got.DueAt.IsZero() {
		t.Errorf("%s is %s and yet due at %s", want.process, got.Verdict, got.DueAt)
	}
	if !strings.Contains(got.Reason, want.words) {
		t.Errorf("%s: reason %q, want it to say %q", want.process, got.Reason, want.words)
	}
}
