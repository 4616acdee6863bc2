package rehearsal

import (
	"slices"
	"time"
)

// Shrink makes a plan that fails smaller, for as long as fails says that the smaller one fails too:
// fewer events, fewer controllers, fewer machines, less time. It asks at most so many times.
func Shrink(plan Plan, tries int, fails func(Plan) bool) Plan {
	s := shrinking{best: plan, tries: tries, fails: fails}
	for again := true; again && s.tries > 0; {
		again = s.events()
		again = s.numbers() || again
	}
	return s.best
}

type shrinking struct {
	best  Plan
	tries int
	fails func(Plan) bool
}

// try takes a plan over if it fails.
func (s *shrinking) try(p Plan) bool {
	if s.tries == 0 || p.Validate() != nil {
		return false
	}
	s.tries--
	if !s.fails(p) {
		return false
	}
	s.best = p
	return true
}

// events leaves events out: many at a time, then fewer.
func (s *shrinking) events() (less bool) {
	for size := len(s.best.Events); size > 0; size /= 2 {
		for at := 0; at < len(s.best.Events); {
			p := s.best
			p.Events = slices.Delete(slices.Clone(p.Events), at, min(at+size, len(p.Events)))
			if s.try(p) {
				less = true
			} else {
				at += size
			}
		}
	}
	return less
}

// numbers makes numbers smaller.
func (s *shrinking) numbers() (less bool) {
	for _, change := range []func(*Plan) bool{
		func(p *Plan) bool { p.Controllers--; return p.Controllers > 0 },
		func(p *Plan) bool { p.Machines /= 2; return p.Machines > 0 },
		func(p *Plan) bool { p.Machines--; return p.Machines > 0 },
		func(p *Plan) bool { was := p.Install; p.Install = false; return was },
		func(p *Plan) bool {
			last := time.Minute
			for _, e := range p.Events {
				last = max(last, e.At+e.For)
			}
			was := p.Length
			p.Length = min(p.Length, last)
			return p.Length < was
		},
	} {
		p := s.best
		for change(&p) && s.try(p) {
			less = true
			p = s.best
		}
	}
	return less
}
