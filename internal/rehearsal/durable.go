package rehearsal

import (
	"fmt"
	"math"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
)

// What the database keeps of each step: ends of work in history (I4), backoffs (I5), and what was
// acknowledged to agents (I8). It is judged after each step that may have changed it, for the
// subject of that step, and in the end for all:
//
//   - a claim brings the record of its subject along, which says nothing less than what was
//     acknowledged before. Whoever had the lane has ended;
//   - a commit that was acknowledged is in history, and its backoff is in the record;
//   - what was acknowledged to an agent is in the record at once.
//
// Two things can be judged in the end only. When a holder dies, nobody is told that its work ended:
// it may be held until somebody wants the lane, and if nobody does, only the end can tell that it
// was forgotten. And a second row for the same end may come at any time, so that only the whole
// history shows that there is none.

// acknowledged is what an agent was told is durable.
type acknowledged struct {
	reports []fleet.InstallReport
	ups     []attempt
}

// ack returns what the agent of a machine was told, to be added to.
func (w *watch) ack(machine fleet.MachineID) *acknowledged {
	if w.acks[machine] == nil {
		w.acks[machine] = new(acknowledged)
	}
	return w.acks[machine]
}

// judge judges the record of a machine: its backoffs (I5), and what was acknowledged to its agents
// (I8).
func (w *watch) judge(r fleet.Record) {
	w.backoffs(string(r.ID), r.Backoffs)
	acks := w.acks[r.ID]
	if acks == nil || r.InstallReport == nil && r.InstallAttempt == nil {
		return // it was forgotten, and adopted again
	}
	for _, want := range acks.reports {
		has := r.InstallReport
		if has == nil || has.Generation < want.Generation || has.Generation == want.Generation && has.Attempt < want.Attempt ||
			has.Generation == want.Generation && has.Attempt == want.Attempt && want.OK && !has.OK {
			w.violate("I8", "the report of install %d/%d of %s was acknowledged, and is not there", want.Generation, want.Attempt, r.ID)
		}
	}
	for _, want := range acks.ups {
		if r.Installed == nil || r.Installed.Generation < want.generation {
			w.violate("I8", "install %d/%d of %s was acknowledged as up, and is not there", want.generation, want.number, r.ID)
		}
	}
}

// judgeNow judges the record of a machine as the database has it now, unless the machine is gone.
func (w *watch) judgeNow(machine fleet.MachineID) {
	if r, there := w.record(machine); there {
		w.judge(r)
	}
}

// backoffs judges those of one subject.
func (w *watch) backoffs(subject string, backoffs map[fleet.Process]fleet.BackoffState) {
	longest := w.world.longestBackoff()
	for process, b := range backoffs {
		if b.Cause == "" && !b.NotBefore.After(w.world.now) {
			continue // a person has asked for a retry, and nothing has failed since
		}
		if b.Interval <= 0 || b.Interval%time.Second != 0 || b.Interval > longest || b.NotBefore.Sub(w.world.now) > 2*longest {
			w.violate("I5", "%s of %s waits %s, until %s", process, subject, b.Interval, b.NotBefore)
		}
	}
}

// longestBackoff is the longest that anything may wait after a failure. Where a pass was not begun,
// the loop has a backoff of its own.
func (w *world) longestBackoff() time.Duration {
	longest := time.Duration(0)
	c := w.setup
	all := []fleet.Backoff{
		c.Policy.InstallRetry, c.Initializer.StartBackoff, c.Initializer.ProviderBackoff, c.Initializer.IDBackoff, c.Recoverer.Backoff, c.Operations.Backoff,
		c.Prober.Backoff, provisioner.DefaultConfig().Backoff, updater.DefaultConfig().Backoff,
	}
	for _, p := range c.Providers {
		all = append(all, p.Provisioner.Backoff, p.Updater.Backoff)
	}
	for _, b := range all {
		longest = max(longest, b.Next(math.MaxInt64))
	}
	return longest
}

// claimed sees a claim.
func (w *watch) claimed(c *controller, work *bmdb.Work) {
	lane := work.Subject.String() + " " + string(work.Process.Lane())
	if was := w.epochs[lane]; work.Epoch <= was {
		w.violate("I3", "%s claimed epoch %d of %s after %d", c.name, work.Epoch, lane, was)
	}
	w.epochs[lane] = work.Epoch
	if before, taken := w.lanes[lane]; taken && w.claims[before].committed == nil {
		w.ended(w.claims[before]) // what was committed was judged then
	}
	w.lanes[lane] = len(w.claims)
	cause := work.Record.Backoffs[work.Process].Cause
	w.claims = append(w.claims, claimed{work.Subject, work.Process, work.Epoch, w.world.now, cause, nil})
	if work.Subject.Machine != "" {
		w.judge(work.Record)
	} else {
		w.backoffs(string(work.Subject.Provider), work.Provider.Backoffs)
	}
}

// committed sees a commit that was acknowledged.
func (w *watch) committed(t *shepherd.Task) {
	work := t.Work
	for i := len(w.claims) - 1; i >= 0; i-- {
		if c := &w.claims[i]; c.epoch == work.Epoch && c.subject == work.Subject && c.process == work.Process {
			c.committed = t.Outcome()
			w.ended(*c)
			break
		}
	}
	_, failed := t.Outcome().(shepherd.Fail)
	if !failed && !work.Failing() {
		return // its backoff is as it was: there is none
	}
	backoffs, there := w.judgedBackoffs(work.Subject)
	if !there {
		return
	}
	_, waits := backoffs[work.Process]
	if _, finished := t.Outcome().(shepherd.Finish); finished && waits {
		w.violate("I5", "%s of %s finished, and waits as after a failure", work.Process, work.Subject)
	}
	if failed && !waits && !w.overtaken(t) {
		w.violate("I5", "%s of %s failed, and does not wait", work.Process, work.Subject)
	}
}

// overtaken reports whether the work was the start of an agent that is to stay, and that was heard
// since it was claimed.
func (w *watch) overtaken(t *shepherd.Task) bool {
	r, there := w.record(t.Work.Subject.Machine)
	return there && t.Work.Process == fleet.ProcessAgentStart && r.AgentSeen != nil && !lifecycle.Returning(r) &&
		(t.Work.Record.AgentSeen == nil || r.AgentSeen.LastAt.After(t.Work.Record.AgentSeen.LastAt))
}

// judgedBackoffs returns the backoffs of a subject as the database has them now, after it has
// judged its record.
func (w *watch) judgedBackoffs(subject fleet.Subject) (backoffs map[fleet.Process]fleet.BackoffState, there bool) {
	if subject.Machine != "" {
		r, there := w.record(subject.Machine)
		if there {
			w.judge(r)
		}
		return r.Backoffs, there
	}
	all, err := w.world.db.Providers(w.world.ctx)
	if err != nil {
		w.failed = err
		return nil, false
	}
	for _, p := range all {
		if p.Name == subject.Provider {
			w.backoffs(string(p.Name), p.Backoffs)
			return p.Backoffs, true
		}
	}
	return nil, false
}

// newest is how many rows of history are enough to find an end that has just come.
const newest = 12

// ended judges work that has ended by now (I4).
func (w *watch) ended(c claimed) {
	for _, limit := range []int{newest, 1_000_000} {
		ends, _, err := w.ends(c.subject, limit)
		if err != nil {
			w.failed = err
			return
		}
		if limit == newest && len(ends[c.id()]) == 0 {
			continue
		}
		w.judgeEnds(c, ends[c.id()])
		return
	}
}

// piece identifies a piece of work on a subject.
type piece struct {
	process fleet.Process
	epoch   fleet.Epoch
}

func (c claimed) id() piece { return piece{c.process, c.epoch} }

// ends returns how work on a subject has ended by the newest rows of its history, and what is held.
func (w *watch) ends(subject fleet.Subject, limit int) (ends map[piece][]fleet.Event, held map[piece]bool, err error) {
	var rows []bmdb.HistoryRow
	if subject.Machine != "" {
		rows, err = w.world.db.History(w.world.ctx, subject.Machine, limit)
	} else {
		rows, err = w.world.db.ProviderHistory(w.world.ctx, subject.Provider, limit, false)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read history: %w", err)
	}
	ends, held = make(map[piece][]fleet.Event), make(map[piece]bool)
	for _, row := range rows {
		switch id := (piece{row.Process, row.Epoch}); row.Event {
		case fleet.EventStarted:
			held[id] = true
		case fleet.EventFinished, fleet.EventFailed, fleet.EventCancelled, fleet.EventExpired, fleet.EventRevoked:
			ends[id] = append(ends[id], row.Event)
		}
	}
	return ends, held, nil
}

// judgeEnds judges the ends of a piece of work that is not held any more.
func (w *watch) judgeEnds(c claimed, ends []fleet.Event) {
	switch {
	case c.process == fleet.ProcessProbe && len(ends) == 0 && c.mayBeQuiet():
		// its fact or its backoff stands in for it
	case len(ends) != 1:
		w.violate("I4", "%s of %s under epoch %d has %d ends in history", c.process, c.subject, c.epoch, len(ends))
	case c.committed != nil && ends[0] != eventOf(c.committed):
		w.violate("I4", "%s of %s under epoch %d was committed as %s, and history says %s", c.process, c.subject, c.epoch, eventOf(c.committed), ends[0])
	}
}

// checkHistory looks for the end of every work in the whole of history.
func (w *watch) checkHistory() error {
	type subject struct {
		ends map[piece][]fleet.Event
		held map[piece]bool
	}
	known := make(map[fleet.Subject]subject)
	for _, c := range w.claims {
		s, read := known[c.subject]
		if !read {
			var err error
			if s.ends, s.held, err = w.ends(c.subject, 1_000_000); err != nil {
				return err
			}
			known[c.subject] = s
		}
		if ends := s.ends[c.id()]; !s.held[c.id()] || len(ends) > 0 || c.committed != nil {
			w.judgeEnds(c, ends)
		}
	}
	return nil
}

// mayBeQuiet reports whether a probe may have ended without a row of its own: it was committed as
// finished, or as failed for the cause that it had failed for before or without being tried, or
// nobody knows.
func (c claimed) mayBeQuiet() bool {
	switch o := c.committed.(type) {
	case nil, shepherd.Finish:
		return true
	case shepherd.Fail:
		return shepherd.WasQueued(o.Err) || shepherd.Cause(o.Err) == c.cause
	}
	return false
}

func eventOf(o shepherd.Outcome) fleet.Event {
	switch o.(type) {
	case shepherd.Finish:
		return fleet.EventFinished
	case shepherd.Fail:
		return fleet.EventFailed
	}
	return fleet.EventCancelled
}

// checkRecords judges the records of all machines and providers.
func (w *world) checkRecords() error {
	providers, err := w.db.Providers(w.ctx)
	if err != nil {
		return fmt.Errorf("list the providers: %w", err)
	}
	for _, p := range providers {
		w.watch.backoffs(string(p.Name), p.Backoffs)
	}
	rows, err := w.machines()
	if err != nil {
		return err
	}
	for _, row := range rows {
		r, err := w.db.Machine(w.ctx, row.ID)
		if err != nil {
			return fmt.Errorf("read a machine: %w", err)
		}
		w.watch.judge(r)
	}
	return nil
}
