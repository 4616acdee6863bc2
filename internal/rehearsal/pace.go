package rehearsal

import (
	"context"
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// pacer returns what paces the calls of a provider, and those of others with its account. It is
// that of one process which makes the calls of all: as they pace together through the database, if
// that took no time.
func (w *world) pacer(p Provider) *provider.Pacer {
	name := "provider " + string(p.Name)
	if p.Account != "" {
		name = "account " + p.Account
	}
	pacer := w.pacers[name]
	if pacer == nil {
		limits := p.Limits
		for _, other := range w.setup.Providers { // the slowest of an account is what all of it comes to
			if p.Account != "" && other.Account == p.Account {
				limits.Spacing = max(limits.Spacing, other.Limits.Spacing)
			}
		}
		pacer = provider.NewPacer(limits, clock{schedule: w.schedule})
		w.pacers[name] = pacer
	}
	return pacer
}

// slots are the calls to one provider that one process may have under way at once.
type slots struct {
	taken   int
	waiting []*strand
}

// slotsOf returns those of the process that runs.
func (s *source) slotsOf(owner *controller) *slots {
	of := owner.slots[s]
	if of == nil {
		of = &slots{}
		owner.slots[s] = of
	}
	return of
}

// take waits for a slot in the order of the calls. It has none where the process is dead.
func (of *slots) take(w *world, most int) {
	if most == 0 || of.taken < most {
		of.taken++
		return
	}
	of.waiting = append(of.waiting, w.current)
	w.giveWay()
}

// leave gives a slot to whoever waits longest.
func (of *slots) leave(w *world, owner *controller) {
	if owner.dead {
		return // and so are they
	}
	if len(of.waiting) == 0 {
		of.taken--
		return
	}
	first := of.waiting[0]
	of.waiting = of.waiting[1:]
	first.wake = w.after(0, first.wakeUp)
}

// over is why whoever makes a call may not go on with it; nil: it may.
func over(ctx context.Context, owner *controller) error {
	switch {
	case owner.dead:
		return errDead
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return nil
}

// inTurn makes a call with a slot and in its turn, as provider.Transport does.
func (s *source) inTurn(ctx context.Context, call func() error) error {
	w, owner := s.world, s.world.current.owner
	of := s.slotsOf(owner)
	for {
		of.take(w, s.inFlight)
		err := s.mayCall(ctx, owner)
		if err == nil {
			err = call()
		}
		of.leave(w, owner)
		wait, off := provider.PutOffBy(err)
		if !off {
			return err
		}
		w.park(wait)
	}
}

// mayCall waits for the turn of a call that has its slot.
func (s *source) mayCall(ctx context.Context, owner *controller) error {
	if err := over(ctx, owner); err != nil {
		return err
	}
	waited := s.pacer.Wait(ctx)
	if err := over(ctx, owner); err != nil {
		return err
	}
	if waited != nil {
		err := provider.BeforeSending(fmt.Errorf("wait for its turn: %w", waited))
		if fleet.KindOf(waited) != fleet.KindThrottled {
			err = provider.Queued(err)
		}
		return err
	}
	if err := provider.BeforeSend(ctx); err != nil {
		return provider.BeforeSending(fmt.Errorf("before the call: %w", err))
	}
	owner.step() // the process may end, or stand still, between its last look and what it sends
	return over(ctx, owner)
}

// until is a context for calls whose turn must come until then, in virtual time; zero: whenever it
// comes. Deadlines of the host's time mean nothing here.
type until struct {
	context.Context //nolint:containedctx // it is one
	end             time.Time
}

// Deadline implements context.Context.
func (u until) Deadline() (time.Time, bool) { return u.end, !u.end.IsZero() }

// pages is how many pages a list of so many rows has, the last of which may be empty; 0: it has
// none.
func (s *source) pages(rows int) int {
	if s.pageSize == 0 {
		return 0
	}
	return max((rows+s.pageSize-1)/s.pageSize, 1)
}
