// Package model is what the BMDB promises about sessions, lanes and backoff, in memory and small
// enough to be read in one sitting. The test beside it runs random operations of several sessions
// on every engine and on the model at once: answers must be equal between the engines and allowed
// by the model, and so must be what is in the database after every step.
//
// Modelled: sessions (start, extend, deadline, end), the host lane of machines (claim, takeover,
// epochs, finish, fail, cancel, the same end once more, a write in the middle, revocation by
// quarantine), replies that are lost, backoff to the microsecond, takeover generations, and the one
// row that history has of each work: from its start, when it is the lane that tells of it, to its
// end.
//
// Not modelled: agendas and floors (hints; but a claim that leaves out what is due is a fault
// here), which of several due machines a claim takes, which overdue sessions in its way it gets to
// end, provider lanes, installs, liveness, and concurrency: operations of several sessions are
// interleaved, not simultaneous. Package linear has the latter.
package model

import (
	"fmt"
	"slices"
	"time"
)

// Nobody holds a lane.
const Nobody = -1

// The events of work, as history has them: Started while it runs, and then how it ended.
const (
	Started   = "started"
	Finished  = "finished"
	Failed    = "failed"
	Cancelled = "cancelled"
	Expired   = "expired"
	Revoked   = "revoked"
)

// World is the whole model.
type World struct {
	Now      time.Time
	Sessions []Session
	Machines []Machine
	// Backoff of work that fails: First, doubled each time, at most Most; the wait is an eighth longer
	// (jitter one half of a quarter).
	First, Most time.Duration
}

// Session is one proof of life.
type Session struct {
	Lease    time.Duration
	Deadline time.Time
	Ended    bool
}

// Machine is one machine with its host lane.
type Machine struct {
	Epoch  int
	Holder int // a session, or Nobody
	// Unknown: the reply to the holder's claim was lost, so the holder does not know that it has the
	// lane.
	Unknown     bool
	Interval    time.Duration // of the backoff; 0: none
	NotBefore   time.Time
	Quarantined bool
	HasAgent    bool
	Takeover    int // generation
	History     []Row
}

// Row is what history says of one work.
type Row struct {
	Epoch int
	// Event is Started until the work ends, and then how it did.
	Event string
	// StartedAt is when it was claimed.
	StartedAt time.Time
}

// Work is one lease.
type Work struct{ Machine, Session, Epoch int }

// Start adds a session.
func (w *World) Start(lease time.Duration) int {
	w.Sessions = append(w.Sessions, Session{Lease: lease, Deadline: w.Now.Add(lease)})
	return len(w.Sessions) - 1
}

// Overdue says whether anybody may end the session.
func (w *World) Overdue(s int) bool {
	return !w.Sessions[s].Ended && w.Sessions[s].Deadline.Before(w.Now)
}

// Extend says whether the session lives on; then its lanes that it does not know of are handed
// back.
func (w *World) Extend(s int) bool {
	if w.Sessions[s].Ended {
		return false
	}
	w.Sessions[s].Deadline = w.Now.Add(w.Sessions[s].Lease)
	for i := range w.Machines {
		if m := &w.Machines[i]; m.Holder == s && m.Unknown {
			w.free(m, Cancelled)
		}
	}
	return true
}

// End makes the session's end a fact.
func (w *World) End(s int) { w.Sessions[s].Ended = true }

// Collect ends all that are overdue and returns how many.
func (w *World) Collect() (n int) {
	for s := range w.Sessions {
		if w.Overdue(s) {
			w.End(s)
			n++
		}
	}
	return n
}

// Wanted says whether work is due on the machine, whoever may have its lane.
func (w *World) Wanted(i int) bool {
	m := w.Machines[i]
	return !m.Quarantined && !m.HasAgent && !m.NotBefore.After(w.Now)
}

// Free says whether nobody has the lane, or somebody who is dead or may be declared so.
func (w *World) Free(i int) bool {
	h := w.Machines[i].Holder
	return h == Nobody || w.Sessions[h].Ended || w.Overdue(h)
}

// Claim takes a claim's answer: what it took, and which sessions it ended, being in its way.
func (w *World) Claim(s, limit int, taken []Work, ended []int, replyLost bool) error {
	for _, e := range ended {
		if !w.Overdue(e) {
			return fmt.Errorf("the claim ended session %d, whose deadline is %s", e, w.Sessions[e].Deadline)
		}
		w.End(e)
	}
	if len(taken) > 0 && w.Sessions[s].Ended {
		return fmt.Errorf("session %d has ended and took %v", s, taken)
	}
	if len(taken) > limit {
		return fmt.Errorf("took %d, asked for %d", len(taken), limit)
	}
	for _, t := range taken {
		m := &w.Machines[t.Machine]
		switch {
		case m.Holder != Nobody && !w.Sessions[m.Holder].Ended:
			return fmt.Errorf("took machine %d from session %d, which has not ended", t.Machine, m.Holder)
		case !w.Wanted(t.Machine):
			return fmt.Errorf("took machine %d, on which nothing is due", t.Machine)
		case t.Epoch != m.Epoch+1:
			return fmt.Errorf("took machine %d with epoch %d after epoch %d", t.Machine, t.Epoch, m.Epoch)
		}
		w.bury(m)
		m.Epoch, m.Holder, m.Unknown = t.Epoch, s, replyLost
		m.History = append(m.History, Row{m.Epoch, Started, w.Now})
	}
	for i := range w.Machines {
		if len(taken) < limit && !w.Sessions[s].Ended && !replyLost && w.Wanted(i) && w.Free(i) {
			return fmt.Errorf("took %d of %d and left machine %d behind", len(taken), limit, i)
		}
	}
	return nil
}

// Holds says whether a commit of this work succeeds.
func (w *World) Holds(l Work) bool {
	m := w.Machines[l.Machine]
	return m.Holder == l.Session && m.Epoch == l.Epoch && !w.Sessions[l.Session].Ended
}

// Finish ends the work by a commit and says whether that succeeds; the same end once more does.
func (w *World) Finish(l Work, event string) bool {
	m := &w.Machines[l.Machine]
	if !w.Holds(l) {
		return slices.ContainsFunc(m.History, func(r Row) bool { return r.Epoch == l.Epoch && r.Event == event })
	}
	switch event {
	case Finished:
		m.Interval, m.NotBefore = 0, time.Time{}
	case Failed:
		m.Interval = min(max(2*m.Interval, w.First), w.Most)
		m.NotBefore = w.Now.Add(m.Interval + m.Interval/8)
	}
	w.free(m, event)
	return true
}

// TakeOver mints a takeover generation and, by a second commit, records that its agent was started.
func (w *World) TakeOver(l Work) bool {
	if !w.Holds(l) {
		return false
	}
	m := &w.Machines[l.Machine]
	m.Takeover++
	m.HasAgent = true
	return w.Finish(l, Finished)
}

// Retry ends the backoff and says whether there was one.
func (w *World) Retry(i int) bool {
	was := w.Machines[i].Interval > 0
	w.Machines[i].Interval, w.Machines[i].NotBefore = 0, time.Time{}
	return was
}

// Quarantine keeps work away and voids what there is.
func (w *World) Quarantine(i int) {
	m := &w.Machines[i]
	w.bury(m)
	if m.Holder != Nobody {
		w.free(m, Revoked)
	}
	m.Quarantined = true
	m.Epoch++
}

// Unquarantine lets work come back, without backoff; false when there is nothing to end.
func (w *World) Unquarantine(i int) bool {
	was := w.Machines[i].Quarantined
	if was {
		w.Machines[i].Quarantined = false
		w.Retry(i)
	}
	return was
}

// bury ends, as expired, the work of a dead holder.
func (w *World) bury(m *Machine) {
	if m.Holder != Nobody && w.Sessions[m.Holder].Ended {
		w.free(m, Expired)
	}
}

func (w *World) free(m *Machine, event string) {
	m.History[len(m.History)-1].Event = event // the work that runs is the newest
	m.Holder, m.Unknown = Nobody, false
}
