package lifecycle_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// steps are what a record can be made of, each at a random minute; a random subset in random order
// makes a record, also one that "cannot happen".
func drawRecord(t *rapid.T) fleet.Record {
	minute := func(label string) float64 { return float64(rapid.IntRange(0, 120).Draw(t, label)) }
	status := rapid.SampledFrom([]fleet.ProviderStatus{
		fleet.ProviderStatusCreating, fleet.ProviderStatusActive, fleet.ProviderStatusOff, fleet.ProviderStatusFailed,
		fleet.ProviderStatusDeleting, fleet.ProviderStatusGone,
	})
	generation := func(label string) int64 { return rapid.Int64Range(1, 3).Draw(t, label) }
	makers := []func() step{
		func() step { return intent(minute("planned"), rapid.IntRange(0, 2).Draw(t, "calls"), 0) },
		func() step { return provided(minute("provided"), status.Draw(t, "status")) },
		func() step { return started(minute("started"), fleet.TakeoverGeneration(generation("takeover"))) },
		func() step {
			first := minute("first")
			return seen(first, first+minute("last"), fleet.TakeoverGeneration(generation("seen")))
		},
		func() step { return hardware(minute("hardware")) },
		func() step { return wantInstall(minute("asked"), fleet.InstallGeneration(generation("asked for"))) },
		func() step { return attempt(minute("attempt"), fleet.InstallGeneration(generation("attempted")), 1) },
		func() step {
			return report(minute("report"), fleet.InstallGeneration(generation("reported")), 1, rapid.Bool().Draw(t, "ok"))
		},
		func() step { return needsErase(minute("refused"), fleet.InstallGeneration(generation("refused")), 1) },
		func() step {
			return notUnderstood(minute("not understood"), fleet.InstallGeneration(generation("not understood")), 1)
		},
		func() step { return installed(minute("installed"), fleet.InstallGeneration(generation("up"))) },
		func() step { return seenUp(rapid.Bool().Draw(t, "watch")) },
		func() step {
			return probed(minute("probe"), minute("unanswered since"), fleet.InstallGeneration(generation("probed")))
		},
		func() step { return quarantine(minute("quarantine")) },
		func() step {
			return levers(rapid.SampledFrom([]fleet.Lever{fleet.LeverReboot, fleet.LeverPower, fleet.LeverReinstall}).Draw(t, "lever"), fleet.LeverRelease)
		},
		func() step {
			rung := rapid.SampledFrom(fleet.Rungs()).Draw(t, "rung")
			taken := repair(minute("repair"), rung, map[fleet.Rung]int{rung: rapid.IntRange(0, 3).Draw(t, "steps")})
			if rapid.Bool().Draw(t, "turned down") {
				return func(r *fleet.Record) { taken(r); turnedDown(r) }
			}
			return taken
		},
		func() step {
			asks := wantOperation(minute("operation"), generation("operation"), rapid.SampledFrom(fleet.Operations()).Draw(t, "which"))
			if rapid.Bool().Draw(t, "asked by policy") {
				return func(r *fleet.Record) { asks(r); byPolicy(r) }
			}
			return asks
		},
		func() step {
			return operating(minute("begun"), generation("attempted operation"), minute("accepted"), minute("checked"))
		},
		func() step {
			return operated(minute("ended"), generation("ended operation"), rapid.Bool().Draw(t, "operated"))
		},
		func() step {
			return maintenance(minute("maintenance"), minute("until"), rapid.Bool().Draw(t, "over"))
		},
		func() step {
			return cancelled(minute("cancelled"), fleet.InstallGeneration(generation("cancelled")))
		},
		func() step {
			return backoff(rapid.SampledFrom(fleet.MachineProcesses()).Draw(t, "failing"), minute("until"), "it broke")
		},
		func() step {
			if rapid.Bool().Draw(t, "answers") {
				return answers(rapid.SampledFrom([]fleet.Answer{fleet.AnswerGiven, fleet.AnswerRefused}).Draw(t, "what"))
			}
			first := minute("unanswered")
			return unanswered(first, first+float64(rapid.IntRange(0, 60).Draw(t, "for")))
		},
		func() step {
			return held(rapid.SampledFrom(fleet.MachineProcesses()).Draw(t, "holding"), minute("deadline"))
		},
	}
	var steps []step
	for _, m := range makers {
		if rapid.IntRange(0, 3).Draw(t, "in") > 0 {
			steps = append(steps, m())
		}
	}
	return record(steps...)
}

func drawEnvironment(t *rapid.T) fleet.Environment {
	env := environment()
	switch rapid.IntRange(0, 2).Draw(t, "listener") {
	case 0:
		env.ListenerUpSince = time.Time{}
	case 1:
		env.ListenerUpSince = at(float64(rapid.IntRange(-60, 120).Draw(t, "up since")))
	}
	if rapid.Bool().Draw(t, "listened before") {
		since := rapid.IntRange(-120, 60).Draw(t, "listened since")
		env.ListenedSince, env.ListenedUntil = at(float64(since)), at(float64(since+rapid.IntRange(30, 60).Draw(t, "listened for")))
	}
	if rapid.Bool().Draw(t, "full") {
		since := rapid.IntRange(0, 120).Draw(t, "full since")
		full(float64(since), float64(since+rapid.IntRange(1, 60).Draw(t, "full for")))(&env)
	}
	if rapid.Bool().Draw(t, "stopped") {
		hold(float64(rapid.IntRange(0, 120).Draw(t, "stopped until")))(&env)
	}
	if rapid.Bool().Draw(t, "another interval") {
		watchedBefore(float64(rapid.IntRange(0, 120).Draw(t, "interval until")), float64(rapid.IntRange(2, 60).Draw(t, "interval")))(&env)
	}
	env.Policy.ReplaceFailed, env.Policy.RecoveryReinstalls = rapid.Bool().Draw(t, "replace"), 1
	return env
}

// TestAnswersOnlyMoveLater is what makes an agenda row safe: as long as no fact changes, a later
// look never finds a process scheduled that was not, nor due earlier than it was said to be.
func TestAnswersOnlyMoveLater(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r, env := drawRecord(t), drawEnvironment(t)
		t1 := at(float64(rapid.IntRange(0, 200).Draw(t, "now")))
		t2 := t1.Add(time.Duration(rapid.IntRange(0, 200).Draw(t, "minutes later")) * time.Minute)
		before, after := lifecycle.Decide(r, env, t1), lifecycle.Decide(r, env, t2)
		for i, b := range before.Decisions {
			a := after.Decisions[i]
			// What was scheduled may turn out to wait: whoever meets its entry at its instant removes it.
			// It does so before only where that instant is the end of a hold or of a backoff.
			if b.Verdict.Scheduled() && !a.Verdict.Scheduled() && b.DueAt.After(t2) && len(r.Holds) == 0 && b.Backoff == nil {
				t.Fatalf("%s was due at %s and is %s before that", b.Process, b.DueAt, a.Verdict)
			}
			if a.Verdict.Scheduled() && !b.Verdict.Scheduled() {
				t.Fatalf("%s was %s and becomes %s by time alone", b.Process, b.Verdict, a.Verdict)
			}
			if a.Verdict.Scheduled() && a.DueAt.Before(b.DueAt) {
				t.Fatalf("%s was due at %s and is due at %s when asked later", b.Process, b.DueAt, a.DueAt)
			}
		}
	})
}

// TestEveryPlanIsComplete: any record gets a state, a reason, and a decision for each process that
// is finite and consistent.
func TestEveryPlanIsComplete(t *testing.T) {
	t.Parallel()
	states := map[fleet.State]bool{}
	for _, s := range fleet.States() {
		states[s] = true
	}
	rapid.Check(t, func(t *rapid.T) {
		r, env := drawRecord(t), drawEnvironment(t)
		now := at(float64(rapid.IntRange(0, 200).Draw(t, "now")))
		plan := lifecycle.Decide(r, env, now)
		if !states[plan.State] || plan.Reason == "" {
			t.Fatalf("state %q, reason %q", plan.State, plan.Reason)
		}
		if len(plan.Decisions) != len(fleet.Processes()) {
			t.Fatalf("%d decisions", len(plan.Decisions))
		}
		for i, d := range plan.Decisions {
			checkConsistent(t, d, fleet.Processes()[i], now)
		}
	})
}

func checkConsistent(t *rapid.T, d lifecycle.Decision, process fleet.Process, now time.Time) {
	if d.Process != process || d.Reason == "" {
		t.Fatalf("%+v, want a reason and process %s", d, process)
	}
	if d.Verdict.Scheduled() == d.DueAt.IsZero() {
		t.Fatalf("%s is %s with due time %s", d.Process, d.Verdict, d.DueAt)
	}
	if d.Verdict == lifecycle.Due && d.DueAt.After(now) || d.Verdict == lifecycle.Later && !d.DueAt.After(now) {
		t.Fatalf("%s is %s with due time %s at %s", d.Process, d.Verdict, d.DueAt, now)
	}
	if (d.Verdict == lifecycle.Running) != (d.Hold != nil) {
		t.Fatalf("%s is %s with hold %v", d.Process, d.Verdict, d.Hold)
	}
}

// TestNoMachineIsLost is I2: whatever the facts, a machine is worked on, scheduled, or waits for an
// event that the provider, a person or an agent with a deadline brings; or it is at rest in a state
// that says why.
func TestNoMachineIsLost(t *testing.T) {
	t.Parallel()
	rest := map[fleet.State]bool{
		fleet.StateAvailable: true, fleet.StateInstalled: true, fleet.StateQuarantined: true, fleet.StateFailed: true,
		fleet.StateMissing: true, fleet.StateRefused: true, fleet.StateOff: true, fleet.StateMaintenance: true,
	}
	rapid.Check(t, func(t *rapid.T) {
		r, env := drawRecord(t), drawEnvironment(t)
		if r.Intent == nil && r.Provided == nil {
			return // no machine: its intent was rejected
		}
		if env.RecoveryHold != nil && env.RecoveryHold.Until == nil {
			return // a person has stopped recovery, and lets it go on
		}
		plan := lifecycle.Decide(r, env, at(float64(rapid.IntRange(0, 200).Draw(t, "now"))))
		if rest[plan.State] {
			return
		}
		if plan.State == fleet.StateCreating || plan.State == fleet.StateProvisioning {
			return // the provider's own processes look after it
		}
		if plan.State == fleet.StateUnreachable && r.Provided.Status == fleet.ProviderStatusOff {
			return // it is left alone, and a person is told
		}
		for _, d := range plan.Decisions {
			if d.Verdict.Scheduled() {
				return
			}
		}
		t.Fatalf("state %s (%s) and nothing is scheduled: %+v", plan.State, plan.Reason, plan.Decisions)
	})
}

func TestProviderProcesses(t *testing.T) {
	t.Parallel()
	env := environment()
	check := func(name string, p fleet.ProviderRecord, process int, want time.Time) {
		t.Helper()
		if d := lifecycle.DecideProvider(p, env, at(10))[process]; !d.DueAt.Equal(want) {
			t.Errorf("%s: due at %s, want %s", name, d.DueAt, want)
		}
	}
	never := fleet.ProviderRecord{Name: "metal"}
	epoch := time.Unix(0, 0).UTC()
	check("a first pass is due at once", never, 0, epoch)
	check("a first update is due at once", never, 1, epoch)
	ran := fleet.ProviderRecord{Name: "metal", LastPassAt: at(9), LastUpdateAt: at(9)}
	check("the next pass is an interval after the last", ran, 0, at(10))
	check("settled machines are refreshed rarely", ran, 1, at(39))
	check("a last pass that a slow answer puts into the future counts", fleet.ProviderRecord{LastPassAt: at(10.5)}, 0, at(11.5))
	back := fleet.ProviderRecord{Name: "metal", LastPassAt: at(130), LastUpdateAt: at(130)}
	check("a pass after which the clock was set back is none", back, 0, epoch)
	check("nor is such an update", back, 1, epoch)
	ran.Changing = true
	check("changing machines are refreshed often", ran, 1, at(10))
	ran.Backoffs = map[fleet.Process]fleet.BackoffState{fleet.ProcessProvision: {NotBefore: at(15), Cause: "no answer"}}
	check("a failed pass backs off", ran, 0, at(15))
}
