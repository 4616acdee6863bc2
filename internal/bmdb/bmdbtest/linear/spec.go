// Package linear says what sessions and lanes of the BMDB look like to clients that use them at the
// same time: as if each operation happened at one instant between its call and its return. The test
// beside it lets clients loose on every engine, with replies that are lost and connections that
// break, and has porcupine (github.com/anishathalye/porcupine) look for such instants.
//
// What is one operation: each lease that a claim takes is one (a claim of several is several
// transactions by design), a commit with all its repetitions until its outcome is known is one, an
// extension likewise. A claim that failed may have taken leases that nobody learned of; what it
// took is read afterwards, from history and from the lanes, and must fit in like everything else.
//
// The end of an overdue session may be written by anybody who comes across it, unseen by the
// others. It is therefore taken to have happened when somebody first sees it: from becoming overdue
// until then, nothing that the session did can have succeeded.
//
// Left to other suites: that a claim finds everything that is due, and backoff.
package linear

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// Kind of an operation.
type Kind string

// The operations.
const (
	// Start of a session.
	Start Kind = "start"
	// Extend a session.
	Extend Kind = "extend"
	// Close a session.
	Close Kind = "close"
	// Advance the time past the deadline of every session there is.
	Advance Kind = "advance"
	// Take a lane. Always done: what was not taken is no operation.
	Take Kind = "take"
	// Vanish is a Take whose reply was lost: it is handed back, or void, before anybody does anything
	// with it.
	Vanish Kind = "vanish"
	// Refused is a claim that was told that its session has ended.
	Refused Kind = "refused"
	// Note writes in the middle of work.
	Note Kind = "note"
	// Finish ends work, in whatever way.
	Finish Kind = "finish"
)

// Limits of a history.
const (
	MaxMachines = 8
	MaxSessions = 512
)

// Op is one operation; porcupine's input. The output is whether it was done (else: the lease or the
// session was lost).
type Op struct {
	Kind Kind
	// Session counts from 1.
	Session int
	Machine int
	Epoch   int
}

// state is comparable, as porcupine wants it.
type state struct {
	epoch  [MaxMachines]int
	holder [MaxMachines]int // 0: nobody
	// overdue sessions may be ended by anybody; ended ones have been.
	overdue, ended set
}

type set [MaxSessions / 64]uint64

func (s *set) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

func (s *set) put(i int, in bool) {
	if in {
		s[i/64] |= 1 << (i % 64)
	} else {
		s[i/64] &^= 1 << (i % 64)
	}
}

// Spec is the sequential specification.
var Spec = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(s, input, output any) (bool, any) { return step(s.(state), input.(Op), output.(bool)) },
	Hash: func(s any) uint64 {
		var h uint64
		st := s.(state)
		for i, e := range st.epoch {
			h = h*1099511628211 + uint64(e)*31 + uint64(st.holder[i])
		}
		return h
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %t", input, output) },
}

func step(s state, op Op, done bool) (bool, state) {
	switch op.Kind {
	case Start:
		s.overdue.put(op.Session, false)
		return done, s
	case Advance:
		for i := range s.overdue {
			s.overdue[i] = ^uint64(0)
		}
		return done, s
	case Extend:
		if !done {
			return s.found(op.Session), s
		}
		s.overdue.put(op.Session, false)
		return !s.ended.has(op.Session), s
	case Close:
		s.ended.put(op.Session, true)
		return done, s
	case Refused:
		return s.found(op.Session), s
	case Take, Vanish:
		return done && s.take(op), s
	case Note, Finish:
		return s.commit(op, done), s
	}
	return false, s
}

// found says whether the session can be found to have ended; it has from now on.
func (s *state) found(session int) bool {
	if !s.ended.has(session) && !s.overdue.has(session) {
		return false
	}
	s.ended.put(session, true)
	return true
}

func (s *state) take(op Op) bool {
	was := s.holder[op.Machine]
	if was != 0 && (was == op.Session || !s.found(was)) || s.ended.has(op.Session) || op.Epoch != s.epoch[op.Machine]+1 {
		return false
	}
	s.epoch[op.Machine], s.holder[op.Machine] = op.Epoch, op.Session
	if op.Kind == Vanish {
		s.holder[op.Machine] = 0
	}
	return true
}

func (s *state) commit(op Op, done bool) bool {
	ours := s.holder[op.Machine] == op.Session && s.epoch[op.Machine] == op.Epoch
	if done {
		if op.Kind == Finish {
			s.holder[op.Machine] = 0
		}
		return ours && !s.ended.has(op.Session)
	}
	return !ours || s.found(op.Session)
}
