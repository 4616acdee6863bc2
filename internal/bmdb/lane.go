package bmdb

import (
	"fmt"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// lane is who holds a subject, for what, as it stands in the subject's row. It belongs to whoever
// has that row locked.
type lane struct {
	epoch   fleet.Epoch
	session fleet.SessionID // "": nobody holds it
	process fleet.Process
	since   int64
	why     string
	holder  holder
	// was is what the row says, which each write of it names.
	was fence
}

// fence is what tells one state of a lane from all others.
type fence struct {
	epoch, revision int64
	session         string
}

// holder is the session that holds a lane.
type holder struct {
	component, host     string
	deadlineAt, endedAt int64
}

// dead says that the holder's session has ended.
func (l *lane) dead() bool { return l.session != "" && l.holder.endedAt != 0 }

// heldBy says whether that work still has the lane.
func (l *lane) heldBy(w *Work) bool {
	return l.session == w.Session && l.epoch == w.Epoch && l.process == w.Process && l.holder.endedAt == 0
}

// hold is what lifecycle is told of the lane: only a session that has not ended holds anything.
func (l *lane) hold() (fleet.Hold, bool) {
	if l.session == "" || l.dead() {
		return fleet.Hold{}, false
	}
	return fleet.Hold{
		Session: l.session, Component: l.holder.component, Host: l.holder.host, Process: l.process, Epoch: l.epoch, Since: instant(l.since),
		Deadline: instant(l.holder.deadlineAt),
	}, true
}

func (l *lane) byLane(kind fleet.Lane) map[fleet.Lane]fleet.Hold {
	holds := make(map[fleet.Lane]fleet.Hold)
	if h, held := l.hold(); held {
		holds[kind] = h
	}
	return holds
}

// take gives the lane to a session, under the next epoch.
func (l *lane) take(s *Session, process fleet.Process, since int64, why string, deadline int64) {
	l.epoch++
	l.session, l.process, l.since, l.why = s.id, process, since, why
	l.holder = holder{component: s.opts.Component, host: s.opts.Host, deadlineAt: deadline}
}

// free gives the lane up. Its epoch stays: the next holder gets the one after it.
func (l *lane) free() {
	l.session, l.process, l.since, l.why, l.holder = "", "", 0, "", holder{}
}

// end frees the lane of a subject and writes the one row of history of its work (I4): how it ended,
// with when and why it had started.
func (t *transaction) end(subject fleet.Subject, l *lane, h history) {
	h.subject, h.process, h.epoch, h.session, h.startedAt, h.why = subject, l.process, l.epoch, l.session, l.since, l.why
	t.addHistory(h)
	t.endQuietly(l, h.event)
}

// actorBMDB is who history names where the BMDB itself did something.
const actorBMDB = fleet.ActorBMDB

// expire ends the work of a session that has ended.
func (t *transaction) expire(subject fleet.Subject, l *lane) {
	t.end(subject, l, history{
		actor: actorBMDB, event: fleet.EventExpired, detail: fmt.Sprintf("session %s ended before the work did", l.session),
	})
}

// vacate ends the work in a lane, if there is some: that of a live session as revoked, that of one
// that has ended as expired.
func (t *transaction) vacate(subject fleet.Subject, l *lane, actor, why string) {
	switch {
	case l.dead():
		t.expire(subject, l)
	case l.session != "":
		t.end(subject, l, history{actor: actor, event: fleet.EventRevoked, detail: why})
	}
}

// revoke makes the epoch of a machine's lane grow, and so voids whatever is being done there (rule
// 8: people win). The machine's row is locked.
func (t *transaction) revoke(m *machineRecord, actor, why string) {
	t.vacate(fleet.Subject{Machine: m.facts.ID}, &m.lane, actor, why)
	m.lane.epoch++
	t.buffer.machine(m)
}

// laneOf returns the lane of a machine as its row says.
func laneOf(r statement.MachineRecord) lane {
	return lane{
		epoch: fleet.Epoch(r.Epoch), session: fleet.SessionID(r.Session), process: fleet.Process(r.Process), since: r.Since, why: r.Why,
		was: fence{epoch: r.Epoch, session: r.Session, revision: r.Revision},
		holder: holder{
			component: r.SessionComponent, host: r.SessionHost, deadlineAt: r.SessionDeadlineAt, endedAt: r.SessionEndedAt,
		},
	}
}
