package bmdb

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// AgentIdentity is the agent that is in charge of a machine. What an agent says is fenced by it,
// not by a lease.
type AgentIdentity struct {
	Machine            fleet.MachineID
	TakeoverGeneration fleet.TakeoverGeneration
	// PublicKey is the agent's Ed25519 key.
	PublicKey []byte
}

// actorAgent is who history names for what agents say.
const actorAgent = "agent"

// Agent returns the agent that is in charge. KindNotFound when there is none.
func (db *DB) Agent(ctx context.Context, machine fleet.MachineID) (AgentIdentity, error) {
	return read(ctx, db.view, "agent", func(ctx context.Context, t *transaction) (AgentIdentity, error) {
		row, err := t.q.GetAgentStarted(ctx, string(machine))
		if absent(err) {
			err = fleet.Errorf(fleet.KindNotFound, "no agent is in charge of machine %s", machine)
		}
		return AgentIdentity{Machine: machine, TakeoverGeneration: fleet.TakeoverGeneration(row.TakeoverGeneration), PublicKey: row.PublicKey}, err
	})
}

// inCharge fails, as KindForbidden, for every agent but the one in charge.
func (a AgentIdentity) inCharge(r fleet.Record) error {
	s := r.AgentStarted
	if s == nil || s.TakeoverGeneration != a.TakeoverGeneration || !bytes.Equal(s.PublicKey, a.PublicKey) {
		return fleet.Errorf(fleet.KindForbidden, "this agent is not in charge of machine %s", a.Machine)
	}
	return nil
}

// fromAgent is onMachine for what only the agent in charge may write. A machine that is not there
// is KindForbidden too.
func (db *DB) fromAgent(ctx context.Context, kind string, a AgentIdentity,
	fn func(ctx context.Context, t *transaction, m *machineRecord) (changed bool, err error),
) error {
	err := db.onMachine(ctx, kind, a.Machine, func(ctx context.Context, t *transaction, m *machineRecord) (bool, error) {
		if err := a.inCharge(m.facts); err != nil {
			return false, err
		}
		return fn(ctx, t, m)
	})
	if fleet.KindOf(err) == fleet.KindNotFound {
		return a.inCharge(fleet.Record{})
	}
	return err
}

// loadOf returns the machine of an agent; KindForbidden for every agent but the one in charge.
func (t *transaction) loadOf(ctx context.Context, a AgentIdentity) (*machineRecord, error) {
	m, err := t.load(ctx, a.Machine)
	if fleet.KindOf(err) == fleet.KindNotFound {
		return nil, a.inCharge(fleet.Record{})
	}
	if err != nil {
		return nil, err
	}
	return m, a.inCharge(m.facts)
}

// RecordSpoken commits that the agent was heard where that is news: the first heartbeat of a
// takeover generation, a return from silence, a changed boot ID (rule 9). Everything else is for
// FlushSeen. Idempotent.
func (db *DB) RecordSpoken(ctx context.Context, a AgentIdentity, bootID string) error {
	return db.fromAgent(ctx, "agent spoke", a, func(ctx context.Context, t *transaction, m *machineRecord) (bool, error) {
		seen, now := m.facts.AgentSeen, heardAt(m.facts, a, bootID, t.Now())
		first := seen == nil || seen.TakeoverGeneration != a.TakeoverGeneration
		switch {
		case first:
			detail := fmt.Sprintf("takeover generation %d spoke for the first time", a.TakeoverGeneration)
			t.addEvent(fleet.Subject{Machine: a.Machine}, actorAgent, "", fleet.EventAgentSpoke, detail)
		case seen.BootID != bootID:
			t.addEvent(fleet.Subject{Machine: a.Machine}, actorAgent, "", fleet.EventMachineRestarted, "the agent came back with another boot ID")
		case m.state.state == fleet.StateSilent:
			t.addEvent(fleet.Subject{Machine: a.Machine}, actorAgent, "", fleet.EventAgentReturned, "silent since "+fleet.Instant(seen.LastAt))
		}
		t.heard(m.facts, a, bootID)
		if len(m.facts.Backoffs) > 0 {
			t.forgetFailures(m.facts)
		}
		if first || seen.BootID != bootID {
			firstAt := now
			if !first {
				firstAt = seen.FirstAt
			}
			err := t.q.PutAgentSeen(ctx, statement.PutAgentSeenParams{
				Machine: string(a.Machine), TakeoverGeneration: int64(a.TakeoverGeneration), FirstAt: micros(firstAt), BootID: bootID,
			})
			if err != nil {
				return false, err
			}
		}
		err := t.q.PutLastSeen(ctx, statement.PutLastSeenParams{
			Machine: string(a.Machine), TakeoverGeneration: int64(a.TakeoverGeneration), LastAt: micros(now),
		})
		if err != nil {
			return false, err
		}
		return true, nil
	})
}

// heardAt returns when an agent was heard that is heard now. The times of two processes differ by
// as long as one took to ask the server: an agent is not heard before it was started, nor before
// the step of recovery that it shows to have helped.
func heardAt(before fleet.Record, a AgentIdentity, bootID string, now time.Time) time.Time {
	since := before.AgentStarted.At
	if step := before.Repair; step != nil && step.At.After(since) && helped(before, a, bootID) {
		since = step.At
	}
	if since.After(now) {
		return since
	}
	return now
}

// Seen is one agent that was heard again.
type Seen struct {
	Machine            fleet.MachineID
	TakeoverGeneration fleet.TakeoverGeneration
	// Age is how long ago, by the clock of the process that heard it.
	Age time.Duration
}

// flushBatch bounds how many rows one transaction of a flush holds.
const flushBatch = 2000

// FlushSeen writes repeated heartbeats, on PostgreSQL thousands by one statement. It touches one
// narrow row each, and no agenda; what is not of the takeover generation that has spoken is
// ignored.
func (db *DB) FlushSeen(ctx context.Context, seen []Seen) error {
	seen = slices.SortedFunc(slices.Values(seen), func(a, b Seen) int { return cmp.Compare(a.Machine, b.Machine) })
	start := db.clock.Elapsed()
	for batch := range slices.Chunk(seen, flushBatch) {
		err := db.update(ctx, "flush heartbeats", func(ctx context.Context, t *transaction) error {
			waited := db.clock.Elapsed() - start
			return t.many.FlushAllSeen(ctx, converted(batch, func(s Seen) statement.FlushSeenParams {
				return statement.FlushSeenParams{
					Machine: string(s.Machine), TakeoverGeneration: int64(s.TakeoverGeneration), LastAt: micros(t.Now().Add(-s.Age - waited)),
				}
			}))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// RecordHardware stores an encoded hardware report. Idempotent: the same report changes nothing.
// History tells of another report, unless alike (which may be nil) is true of the one before it.
func (db *DB) RecordHardware(ctx context.Context, a AgentIdentity, report []byte, alike func(before []byte) bool) error {
	sum := sha256.Sum256(report)
	digest := hex.EncodeToString(sum[:])
	return db.fromAgent(ctx, "hardware report", a, func(ctx context.Context, t *transaction, m *machineRecord) (bool, error) {
		event, told := fleet.EventHardwareReported, true
		if h := m.facts.Hardware; h != nil {
			if h.Digest == digest {
				return false, nil
			}
			event = fleet.EventHardwareChanged
			if alike != nil {
				before, err := t.q.GetHardwareReport(ctx, string(a.Machine))
				if err != nil && !absent(err) {
					return false, err
				}
				told = err != nil || !alike(before)
			}
		}
		err := t.q.PutHardware(ctx, statement.PutHardwareParams{Machine: string(a.Machine), At: micros(t.Now()), Digest: digest})
		if err != nil {
			return false, err
		}
		if err := t.q.PutHardwareReport(ctx, statement.PutHardwareReportParams{Machine: string(a.Machine), Report: report}); err != nil {
			return false, err
		}
		if told {
			t.addEvent(fleet.Subject{Machine: a.Machine}, actorAgent, "", event, fmt.Sprintf("%d bytes, sha256 %.12s…", len(report), digest))
		}
		return true, nil
	})
}

// HardwareReport returns the stored report. KindNotFound when there is none.
func (db *DB) HardwareReport(ctx context.Context, machine fleet.MachineID) ([]byte, error) {
	return read(ctx, db.view, "read hardware report", func(ctx context.Context, t *transaction) (report []byte, err error) {
		report, err = t.q.GetHardwareReport(ctx, string(machine))
		if absent(err) {
			return report, fleet.Errorf(fleet.KindNotFound, "machine %s has not reported its hardware", machine)
		}
		return report, err
	})
}

// HostKeys returns what is known of the machine's host keys; its zero value when nothing is.
func (db *DB) HostKeys(ctx context.Context, machine fleet.MachineID) (fleet.HostKeys, error) {
	return read(ctx, db.view, "read host keys", func(ctx context.Context, t *transaction) (fleet.HostKeys, error) {
		return t.hostKeys(ctx, machine)
	})
}

// hostKeys reads what HostKeys returns.
func (t *transaction) hostKeys(ctx context.Context, machine fleet.MachineID) (keys fleet.HostKeys, err error) {
	rows, err := t.q.GetHostKeys(ctx, string(machine))
	for _, r := range rows { // there is one at most
		keys = fleet.HostKeys{
			Known: splitLines(r.Pinned), At: instant(r.At), Source: fleet.HostKeySource(r.Source), Refused: r.Refused, RefusedAt: instant(r.RefusedAt),
		}
	}
	return keys, err
}

// putHostKeys makes these the keys that the machine is known by. None is refused any more.
func (t *transaction) putHostKeys(ctx context.Context, machine fleet.MachineID, source fleet.HostKeySource, keys ...string) error {
	return t.q.PutHostKeys(ctx, statement.PutHostKeysParams{
		Machine: string(machine), At: micros(t.Now()), Pinned: joinLines(keys), Source: string(source),
	})
}

// unitTold makes the host keys that the unit of an installed system tells those that the machine is
// known by, where the system is seen up by HTTP, which proves none. The system is that of the
// newest attempt; its unit calls once, so another install may be wanted by then. What became known
// since its disk was written stays.
func (t *transaction) unitTold(ctx context.Context, m *machineRecord, by fleet.SeenBy, generation fleet.InstallGeneration, attempt int, keys []string) error {
	known, tells, err := t.tellsKeys(ctx, m, by, generation, attempt, keys)
	if err != nil || !tells {
		return err
	}
	if known.Refused != "" { // what was refused until now is tried at once
		t.buffer.resetBackoff(machineKey(m.facts.ID), fleet.ProcessAgentStart)
	}
	t.addEvent(fleet.Subject{Machine: m.facts.ID}, actorInstalled, "", fleet.EventHostKeysPinned, fmt.Sprintf("%d keys", len(keys)))
	return t.putHostKeys(ctx, m.facts.ID, fleet.HostKeyInstalled, keys...)
}

// tellsKeys reports whether unitTold has something to write, and what is known by then.
func (t *transaction) tellsKeys(
	ctx context.Context, m *machineRecord, by fleet.SeenBy, generation fleet.InstallGeneration, attempt int, keys []string,
) (known fleet.HostKeys, tells bool, err error) {
	a, rep := m.facts.InstallAttempt, m.facts.InstallReport
	if len(keys) == 0 || by != fleet.SeenByHTTP || a == nil || a.Generation != generation || a.Attempt != attempt {
		return known, false, nil
	}
	written := t.Now()
	if rep != nil && rep.OK && rep.Generation == generation && rep.Attempt == attempt {
		written = rep.At
	}
	known, err = t.hostKeys(ctx, m.facts.ID)
	return known, err == nil && known.At.Before(written), err
}

// ListenerAlive is an agent listener's own proof of life: called every interval, with the longest
// heartbeat interval that it has promised lately. Listeners that were not heard of for three
// intervals are down, and silence counts only from their return.
//
// A longer promise counts at once. A shorter one makes silence due earlier than every row of the
// agenda says, so it counts only when it is less than half, and then every machine is judged again,
// as under a new policy. Another process may still promise more, and agents may still follow what a
// process has promised before its restart. So it waits until no listener has promised half of it,
// or more, for three intervals and as long as was promised. The longest of those that wait counts.
func (db *DB) ListenerAlive(ctx context.Context, interval, promised time.Duration) error {
	return db.update(ctx, "listener alive", func(ctx context.Context, t *transaction) error {
		was, err := t.q.LockListener(ctx) // several listeners, each with a promise of its own
		if err != nil {
			return err
		}
		now := t.Now()
		l := statement.SetListenerParams{
			UpSince: micros(now), ValidUntil: micros(now.Add(3 * interval)), Promised: promised.Microseconds(), PromisedUntil: was.PromisedUntil,
			ListenedSince: was.ListenedSince, ListenedUntil: was.ListenedUntil,
		}
		if was.ValidUntil >= micros(now) {
			l.UpSince = was.UpSince
			l.ValidUntil = max(l.ValidUntil, was.ValidUntil)
		} else {
			env, err := t.environment(ctx)
			if err != nil {
				return err
			}
			l.ListenedSince, l.ListenedUntil = listened(was, lifecycle.LongestSilence(env))
		}
		less := max(l.Promised, was.PromisedLess) // of every listener, not only of this one
		switch {
		case l.Promised*2 >= was.Promised:
			l.Promised = max(l.Promised, was.Promised)
		case micros(now) < was.PromisedUntil:
			l.Promised, l.PromisedLess = was.Promised, less
			return t.q.SetListener(ctx, l)
		default:
			l.Promised = less
			if err := t.renumber(ctx); err != nil {
				return err
			}
		}
		l.PromisedUntil = max(was.PromisedUntil, micros(now.Add(3*interval+lasting(l.Promised))))
		return t.q.SetListener(ctx, l)
	})
}

// listened returns the newest time in which a listener was up for at least that long, when it is
// not any more. Where it had no room in the end, that time ends with the room.
func listened(was statement.LockListenerRow, least time.Duration) (since, until int64) {
	until = was.ValidUntil
	if was.FullUntil > until {
		until = min(until, was.FullSince)
	}
	if until-was.UpSince < least.Microseconds() {
		return was.ListenedSince, was.ListenedUntil
	}
	return was.UpSince, until
}

// ListenerFull says that an agent listener has no room for agents, or that agents refuse it. Until
// so long from now no silence is declared: whoever did not get through, to whichever listener, must
// have called again by then. While the next call comes before the end of the last one, it is one
// time without room.
func (db *DB) ListenerFull(ctx context.Context, lasting time.Duration) error {
	return db.update(ctx, "listener full", func(ctx context.Context, t *transaction) error {
		was, err := t.q.LockListener(ctx)
		if err != nil {
			return err
		}
		now := t.Now()
		full := statement.SetListenerFullParams{FullSince: micros(now), FullUntil: micros(now.Add(lasting)), ValidUntil: was.ValidUntil}
		if was.FullUntil < micros(now) && was.ValidUntil < micros(now) && was.FullUntil > was.ValidUntil {
			full.ValidUntil = min(was.ValidUntil, was.FullSince) // so that listened leaves it out
		}
		if was.FullUntil >= micros(now) {
			full.FullSince = was.FullSince
			full.FullUntil = max(full.FullUntil, was.FullUntil)
		}
		return t.q.SetListenerFull(ctx, full)
	})
}
