package lifecycle

import (
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Verdict is a decision in one word.
type Verdict int

// The verdicts.
const (
	// NotWanted: nothing is to be done, and nothing is expected to change that.
	NotWanted Verdict = iota
	// Waiting: an event must happen first. The event is a write of facts.
	Waiting
	// Later: to be done at DueAt.
	Later
	// Due: to be done now; it has been since DueAt.
	Due
	// Running: a session holds the lane. DueAt is its deadline.
	Running
)

var verdictNames = [...]string{"not-wanted", "waiting", "later", "due", "running"}

// String returns the verdict as people see it.
func (v Verdict) String() string { return verdictNames[v] }

// Scheduled reports whether the decision has a row in the agenda.
func (v Verdict) Scheduled() bool { return v >= Later }

// Decision is what is decided about one process.
type Decision struct {
	Process fleet.Process
	Verdict Verdict
	// DueAt is set exactly when the verdict is scheduled.
	DueAt time.Time
	// Reason is one clause in words.
	Reason string
	// Hold is who holds the lane; set when the verdict is Running.
	Hold *fleet.Hold
	// Rung is the step that recovery takes at DueAt; empty for other processes, and where it waits.
	Rung fleet.Rung
	// Deadline: it is done only if nothing is heard of the machine until DueAt.
	Deadline bool
	// Backoff is set while the process waits because it failed.
	Backoff *fleet.BackoffState
}

// Plan is what is decided about one machine.
type Plan struct {
	State fleet.State
	// Reason says why the machine is in that state, in one clause.
	Reason string
	// Decisions has one entry for each process that concerns a machine, in the order of
	// fleet.Processes.
	Decisions []Decision
}

// For returns the decision on a process; NotWanted for a process that does not concern machines.
func (p Plan) For(process fleet.Process) Decision {
	for _, d := range p.Decisions {
		if d.Process == process {
			return d
		}
	}
	return Decision{Process: process, Verdict: NotWanted, Reason: "does not concern machines"}
}

// Next returns the decision that people should see first: what runs, else what has been due for
// longest, else what comes next, else what waits. It returns false when nothing is wanted.
func (p Plan) Next() (Decision, bool) {
	var best Decision
	for _, d := range p.Decisions {
		switch {
		case d.Verdict == NotWanted:
		case best.Verdict == NotWanted,
			p.rank(d) > p.rank(best),
			p.rank(d) == p.rank(best) && d.Verdict.Scheduled() && d.DueAt.Before(best.DueAt):
			best = d
		}
	}
	return best, best.Verdict != NotWanted
}

// rank orders decisions by how much they tell. A deadline that is to come tells little. An install
// that is due on a machine whose agent is silent, or was before it was worked on, comes last:
// nothing is handed to it before it speaks.
func (p Plan) rank(d Decision) int {
	switch {
	case d.Process == fleet.ProcessInstall && d.Verdict == Due && (p.State == fleet.StateSilent || p.State == fleet.StateStarted):
		return -1
	case d.Deadline && d.Verdict == Later:
		return 0
	}
	switch d.Verdict {
	case Running:
		return 4
	case Due:
		return 3
	case Later:
		return 2
	}
	return 1
}
