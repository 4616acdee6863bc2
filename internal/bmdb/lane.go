package bmdb

import (
	"context"
	"fmt"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// held is a lane that somebody has.
type held struct {
	subject fleet.Subject
	lane    fleet.Lane
	epoch   fleet.Epoch
	session fleet.SessionID
	process fleet.Process
	since   int64
}

// end frees a lane and writes the one end of its work (I4). The subject's row is locked.
func (t *transaction) end(ctx context.Context, h held, end history) error {
	n, err := t.q.FreeLane(ctx, statement.FreeLaneParams{Subject: subjectKey(h.subject), Lane: string(h.lane), Epoch: int64(h.epoch)})
	if err != nil {
		return fmt.Errorf("free the %s lane of %s: %w", h.lane, h.subject, err)
	}
	if n == 0 {
		return fleet.Errorf(fleet.KindLeaseLost, "the %s lane of %s was freed by somebody else", h.lane, h.subject)
	}
	end.subject, end.lane, end.epoch, end.session, end.process = h.subject, h.lane, h.epoch, h.session, h.process
	end.edge = edgeEnd
	if err := t.record(ctx, end); err != nil {
		return err
	}
	t.outcomes = append(t.outcomes, observed{h.process, string(end.event), t.Now().Sub(instant(h.since))})
	return nil
}

// freeDeadLane ends, as expired, the work of a session that has ended. The machine's row is locked.
func (t *transaction) freeDeadLane(ctx context.Context, j *judged) error {
	if !j.heldByTheDead() {
		return nil
	}
	h := j.hold()
	if err := t.expire(ctx, h); err != nil {
		return err
	}
	j.row.LaneSession = ""
	return nil
}

// hold returns the host lane of the machine as it was loaded; only meaningful while its session is
// set.
func (j *judged) hold() held {
	return held{
		subject: fleet.Subject{Machine: j.record.ID}, lane: fleet.LaneHost, epoch: fleet.Epoch(j.row.LaneEpoch),
		session: fleet.SessionID(j.row.LaneSession), process: fleet.Process(j.row.LaneProcess), since: j.row.LaneSince,
	}
}

func (t *transaction) expire(ctx context.Context, h held) error {
	return t.end(ctx, h, history{
		actor: actorBMDB, event: fleet.EventExpired, detail: fmt.Sprintf("session %s ended before the work did", h.session),
	})
}

// actorBMDB is who history names where the BMDB itself did something.
const actorBMDB = "bmdb"

// revoke makes the epoch of a machine's host lane grow, and so voids whatever is being done there
// (rule 8: people win). The machine's row is locked.
func (t *transaction) revoke(ctx context.Context, j *judged, actor, why string) error {
	if err := t.freeDeadLane(ctx, j); err != nil {
		return err
	}
	if j.row.LaneSession != "" {
		if err := t.end(ctx, j.hold(), history{actor: actor, event: fleet.EventRevoked, detail: why}); err != nil {
			return err
		}
	}
	err := t.q.BumpLane(ctx, statement.BumpLaneParams{
		Subject: machineSubject(j.record.ID), Lane: string(fleet.LaneHost), Since: micros(t.Now()),
	})
	if err != nil {
		return fmt.Errorf("void the work on machine %s: %w", j.record.ID, err)
	}
	return nil
}
