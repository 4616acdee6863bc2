package bmdb

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// ProbeResult is what a probe of an installed system has found.
type ProbeResult struct {
	// Generation and Attempt of the install that was asked about.
	Generation fleet.InstallGeneration
	Attempt    int
	// Answered: the system answers as it should.
	Answered bool
	// Detail is one clause for people. It is the same as long as the same is found.
	Detail string
	// LastCall is when the unit of a watched system had last called, in a finding that it calls no
	// more. Such a finding is left out where a call has come since.
	LastCall time.Time
	// HostKeys that the system has proved, in authorized_keys form. The machine is known by them from
	// the moment on that the system is first seen.
	HostKeys []string
}

// RecordProbe records what a probe has found. The first answer of a system whose disk was written
// makes it an installed one. A finding is left out if another install is probed by now. The end of
// the work has a row of history only if the finding is new; see commit.quiet.
func RecordProbe(f ProbeResult) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		r := c.machine.facts
		await, awaited := lifecycle.AwaitedProbe(r)
		switch {
		case awaited && f.Generation == await.Generation && f.Attempt == await.Attempt:
		case lifecycle.Watched(r) && f.Generation == r.Installed.Generation && f.Attempt == r.Installed.Attempt:
		default:
			return nil
		}
		was := probeBefore(r, f)
		if !awaited && r.Installed.SeenUp.By == fleet.SeenByUnit && was != nil && was.AnsweredAt.After(f.LastCall) {
			return nil
		}
		next := nextProbe(was, f, t.Now())
		if awaited && !f.Answered && was != nil && !was.Answered() {
			next.UnansweredSince = unansweredAcrossGap(*was, next, lifecycle.OughtToAnswer(r, *t.env, t.Now()), t.env.Policy)
		}
		next.Epoch, next.Session = c.work.Epoch, c.work.Session
		if err := t.putProbe(ctx, r.ID, next); err != nil {
			return err
		}
		c.found = f.Detail
		c.foundSame = was != nil && was.Answered() == f.Answered && was.Detail == f.Detail
		if awaited && f.Answered {
			if await.Unreported {
				if err := t.writtenAfterAll(ctx, c.machine, *r.InstallAttempt); err != nil {
					return err
				}
			}
			return t.installed(ctx, c.machine, seenInstalled{actor: c.work.session.actor(), hostKeys: f.HostKeys, detail: ": " + f.Detail})
		}
		if f.Answered && r.Installed.SeenUp.By != fleet.SeenByHTTP { // whoever is there may answer a GET
			if err := t.runsStill(ctx, r); err != nil {
				return err
			}
		}
		if event, detail := t.reach(r, next); event != "" {
			c.addHistory(t, r.ID, event, detail)
		}
		return nil
	}}
}

// runsStill records that an installed system has answered which its provider was seen to reinstall:
// its disk is what it was. While the provider is at it, the old system answers until it is
// restarted.
func (t *transaction) runsStill(ctx context.Context, r fleet.Record) error {
	if !answersElsewhere(r) {
		return nil
	}
	return t.q.DeleteErased(ctx, statement.DeleteErasedParams{Machine: string(r.ID), At: micros(*r.Installed.ErasedAt)})
}

// answersElsewhere reports whether that is news.
func answersElsewhere(r fleet.Record) bool {
	return lifecycle.ReinstalledElsewhere(r) && r.Provided.Status == fleet.ProviderStatusActive
}

// unitCalled records that the unit of an installed system has called again. Nothing is written for
// what comes much earlier than it should.
func (t *transaction) unitCalled(ctx context.Context, m *machineRecord) error {
	r := m.facts
	if _, due, err := t.callDue(ctx, r); err != nil || !due {
		return err
	}
	f := unitFinding(r)
	next := nextProbe(probeBefore(r, f), f, t.Now())
	if err := t.putProbe(ctx, r.ID, next); err != nil {
		return err
	}
	if event, detail := t.reach(r, next); event != "" {
		t.addEvent(fleet.Subject{Machine: r.ID}, actorInstalled, fleet.ProcessProbe, event, detail)
	}
	return nil
}

// callDue returns when the unit of an installed system that calls now is to call next (0: never),
// and whether this call is written down.
func (t *transaction) callDue(ctx context.Context, r fleet.Record) (again time.Duration, due bool, err error) {
	if i := r.Installed; i.SeenUp.By != fleet.SeenByUnit || !i.SeenUp.Watch {
		return 0, false, nil
	}
	env, err := t.environment(ctx)
	if err != nil {
		return 0, false, err
	}
	again = env.Policy.CallInterval()
	was := probeBefore(r, unitFinding(r))
	return again, lifecycle.Watched(r) && (was == nil || !was.Answered() || t.Now().Sub(was.At) >= again/2), nil
}

// unitFinding is what a call of the unit of an installed system shows.
func unitFinding(r fleet.Record) ProbeResult {
	return ProbeResult{Generation: r.Installed.Generation, Attempt: r.Installed.Attempt, Answered: true, Detail: "its unit calls"}
}

// writtenAfterAll records that an attempt has written the disk, of which nobody has heard that it
// did: its installed system has called in, and a probe is to show that it has come up.
func (t *transaction) writtenAfterAll(ctx context.Context, m *machineRecord, a fleet.InstallAttempt) error {
	if hasWritten(m.facts, a) {
		return nil
	}
	t.resetInstall(m.facts.ID)
	return t.putReport(ctx, m, fleet.InstallReport{Generation: a.Generation, Attempt: a.Attempt, OK: true, Disk: fleet.DiskUnknown}, actorInstalled)
}

// hasWritten reports whether an attempt is known to have written the disk.
func hasWritten(r fleet.Record, a fleet.InstallAttempt) bool {
	p := r.InstallReport
	return p != nil && p.Generation == a.Generation && p.Attempt == a.Attempt && p.OK
}

// probeBefore is what was found before of the install that a finding is about; nil: nothing.
func probeBefore(r fleet.Record, f ProbeResult) *fleet.Probe {
	if p := r.Probe; p != nil && p.Generation == f.Generation && p.Attempt == f.Attempt {
		return p
	}
	return nil
}

// unansweredAcrossGap is since when a system that is to come up has not answered, by two probes
// that it did not answer. A gap between them in which nobody asked counts as a fifth of longestGap,
// not as its length, because the system may have come up meanwhile, and an answer that is missing
// just after an outage of ours may be missing because of that. It does count, so that one that is
// seldom asked, behind many others, comes to its turn, too. What it owed before the gap still
// counts.
func unansweredAcrossGap(was, next fleet.Probe, oughtSince time.Time, policy fleet.Policy) time.Time {
	longestGap := max(3*policy.ProbeInterval, policy.RecoveryStepTimeout/2)
	if next.At.Sub(was.At) <= longestGap {
		return next.UnansweredSince
	}
	owed := min(was.At.Sub(next.UnansweredSince), was.At.Sub(oughtSince))
	return next.At.Add(-max(0, owed) - longestGap/5)
}

// nextProbe is the fact that a finding makes of the one before, which may be nil.
func nextProbe(was *fleet.Probe, f ProbeResult, now time.Time) fleet.Probe {
	next := fleet.Probe{Generation: f.Generation, Attempt: f.Attempt, At: now, Detail: f.Detail}
	if was != nil {
		next.AnsweredAt, next.UnansweredSince = was.AnsweredAt, was.UnansweredSince
	}
	switch {
	case f.Answered:
		next.AnsweredAt, next.UnansweredSince = now, time.Time{}
	case next.UnansweredSince.IsZero():
		next.UnansweredSince = now
	}
	return next
}

func (t *transaction) putProbe(ctx context.Context, machine fleet.MachineID, p fleet.Probe) error {
	return t.q.PutProbe(ctx, statement.PutProbeParams{
		Machine: string(machine), Generation: int64(p.Generation), Attempt: int64(p.Attempt), At: micros(p.At),
		AnsweredAt: micros(p.AnsweredAt), UnansweredSince: micros(p.UnansweredSince), Detail: p.Detail, Epoch: int64(p.Epoch),
		Session: string(p.Session),
	})
}

// reach returns what history is told when a watched machine becomes unreachable by what was found
// next, and when it answers again after as long; "" when neither. One that was switched on since
// it was found silent is not unreachable while it boots, and answers again all the same.
func (t *transaction) reach(r fleet.Record, next fleet.Probe) (event fleet.Event, detail string) {
	was, before := lifecycle.Unreachable(r, *t.env), probeBefore(r, ProbeResult{Generation: next.Generation, Attempt: next.Attempt})
	r.Probe = &next
	switch is := lifecycle.Unreachable(r, *t.env); {
	case is && !was:
		return fleet.EventUnreachable, fmt.Sprintf("not answered since %s: %s", fleet.Instant(next.UnansweredSince), next.Detail)
	case next.Answered() && lifecycle.Watched(r) && before != nil && !before.Answered() &&
		before.At.Sub(before.UnansweredSince) >= t.env.Policy.UnreachableAfter:
		return fleet.EventReachable, fmt.Sprintf("after %s", next.At.Sub(before.UnansweredSince).Round(time.Second))
	}
	return "", ""
}

// seenUpText is how the database has it; "" for the unit.
func seenUpText(s fleet.SeenUp) (string, error) {
	if s == (fleet.SeenUp{}) {
		return "", nil
	}
	text, err := json.Marshal(s)
	return string(text), err
}

func seenUpOf(text string) (s fleet.SeenUp, err error) {
	if text == "" {
		return s, nil
	}
	err = readJSON(text, &s)
	return s, err
}
