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
	// HostKeys that the system has proved, in authorized_keys form. The machine is known by them from
	// the moment on that the system is first seen.
	HostKeys []string
}

// RecordProbe records what a probe has found. The first answer of a system whose disk was written
// makes it an installed one. A finding about another install than the one that is probed by now is
// left out. History has a row for what is new: a finding that says what the one before said has the
// fact alone, which names its work.
func RecordProbe(f ProbeResult) Change {
	return Change{
		text: fmt.Sprintf("probe: %+v", f),
		kind: ofMachine,
		apply: func(ctx context.Context, t *transaction, c *commit) error {
			return t.recordProbe(ctx, c, f)
		},
	}
}

func (t *transaction) recordProbe(ctx context.Context, c *commit, f ProbeResult) error {
	r := c.machine.record
	awaited := lifecycle.AwaitsProbe(r)
	switch {
	case awaited && f.Generation == r.InstallReport.Generation && f.Attempt == r.InstallReport.Attempt:
	case lifecycle.Watched(r) && f.Generation == r.Installed.Generation && f.Attempt == r.Installed.Attempt:
	default:
		return nil
	}
	next := fleet.Probe{
		Generation: f.Generation, Attempt: f.Attempt, At: t.Now(), Detail: f.Detail, Epoch: c.work.Epoch, Session: c.work.Session,
	}
	was := r.Probe
	if was != nil && (was.Generation != f.Generation || was.Attempt != f.Attempt) {
		was = nil
	}
	if was != nil {
		next.AnsweredAt, next.UnansweredSince = was.AnsweredAt, was.UnansweredSince
	}
	switch {
	case f.Answered:
		next.AnsweredAt, next.UnansweredSince = next.At, time.Time{}
	case next.UnansweredSince.IsZero():
		next.UnansweredSince = next.At
	}
	err := t.q.PutProbe(ctx, statement.PutProbeParams{
		Machine: string(r.ID), Generation: int64(next.Generation), Attempt: int64(next.Attempt), At: micros(next.At),
		AnsweredAt: micros(next.AnsweredAt), UnansweredSince: micros(next.UnansweredSince), Detail: next.Detail, Epoch: int64(next.Epoch),
		Session: string(next.Session),
	})
	if err != nil {
		return err
	}
	c.found = f.Detail
	c.quiet = was != nil && was.Answered() == f.Answered && was.Detail == f.Detail
	if awaited && f.Answered {
		return t.installed(ctx, c.machine, seenInstalled{actor: c.work.session.actor(), hostKeys: f.HostKeys, detail: ": " + f.Detail})
	}
	return t.recordReach(ctx, c, next)
}

// recordReach tells history when a watched machine becomes unreachable, and when it answers again.
func (t *transaction) recordReach(ctx context.Context, c *commit, next fleet.Probe) error {
	env, err := t.environment(ctx)
	if err != nil {
		return err
	}
	r := c.machine.record
	was := lifecycle.Unreachable(r, env)
	before := r.Probe
	r.Probe = &next
	switch is := lifecycle.Unreachable(r, env); {
	case is && !was:
		c.record(t, r.ID, fleet.EventUnreachable, fmt.Sprintf("not answered since %s: %s", next.UnansweredSince.UTC().Format(time.DateTime), next.Detail))
	case was && !is:
		c.record(t, r.ID, fleet.EventReachable, fmt.Sprintf("after %s", next.At.Sub(before.UnansweredSince).Round(time.Second)))
	}
	return nil
}

// foundBy reports whether a probe whose lease is not its own any more has recorded what it found:
// it was committed before, with its reply lost.
func (t *transaction) foundBy(ctx context.Context, w *Work) (bool, error) {
	if w.Process != fleet.ProcessProbe {
		return false, nil
	}
	m, err := t.row(ctx, w.Subject.Machine)
	if fleet.KindOf(err) == fleet.KindNotFound {
		return false, nil
	}
	return m.ProbeEpoch == int64(w.Epoch) && m.ProbeSession == string(w.Session), err
}

func probeOfMachine(r statement.MachineRecord) *fleet.Probe {
	if r.ProbeAt == 0 {
		return nil
	}
	return &fleet.Probe{
		Generation: fleet.InstallGeneration(r.ProbeGeneration), Attempt: int(r.ProbeAttempt), At: instant(r.ProbeAt),
		AnsweredAt: instant(r.ProbeAnsweredAt), UnansweredSince: instant(r.ProbeUnansweredSince), Detail: r.ProbeDetail,
		Epoch: fleet.Epoch(r.ProbeEpoch), Session: fleet.SessionID(r.ProbeSession),
	}
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
	err = json.Unmarshal([]byte(text), &s)
	return s, err
}
