package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// loop drives the phases of one shepherd.Loop as shepherd.Loop.Run does, one step at a time.
type loop struct {
	controller *controller
	real       *shepherd.Loop
	config     shepherd.Config
	process    fleet.Process

	holding *holding
	busy    int
	// next is the next claim; nil while all slots are taken.
	next *event
}

// holding is one session of a loop, with the work that is done through it.
type holding struct {
	loop   *loop
	holder *shepherd.Holder
	ctx    context.Context //nolint:containedctx // it lasts as long as the session
	cancel context.CancelCauseFunc
	tasks  int
	// retired: nothing more is claimed through it.
	retired bool
}

// task is a piece of work on its way.
type task struct {
	*shepherd.Task
	holding *holding
	claimed time.Time
	acting  bool
}

var errStopped = errors.New("the session was given up")

// contended is how long a loop waits after a claim that got nothing although something is due.
const contended = 250 * time.Millisecond

// open starts the loop's next session.
func (l *loop) open() {
	c := l.controller
	if l.delayed(l.open) || l.holding != nil {
		return
	}
	holder, err := l.real.Open(c.ctx)
	if err != nil {
		c.world.after(l.config.ErrorPause, l.open)
		return
	}
	h := &holding{loop: l, holder: holder}
	h.ctx, h.cancel = context.WithCancelCause(c.ctx)
	l.holding = h
	c.world.spawn(c, nil, func() {
		if err := holder.KeepAlive(h.ctx); err != nil {
			c.world.watch.lost(l, holder)
			h.giveUp(err)
		}
	})
	l.claimAfter(0)
}

// delayed puts a step off while the process stands still, and reports whether the step is not to be
// done now.
func (l *loop) delayed(step func()) bool {
	c := l.controller
	if c.dead {
		return true
	}
	pause := c.pausedFor()
	if pause > 0 {
		c.world.after(pause, step)
	}
	return pause > 0
}

func (l *loop) claimAfter(d time.Duration) {
	w := l.controller.world
	w.cancel(l.next)
	l.next = w.after(d, l.claim)
}

// claim is one claim.
func (l *loop) claim() {
	l.next = nil
	if l.delayed(func() { l.claimAfter(0) }) {
		return
	}
	h, free := l.holding, l.config.Parallelism-l.busy
	if h == nil || free < 1 {
		return
	}
	c := l.controller
	c.step()
	tasks, next, err := h.holder.Claim(c.ctx, free)
	switch {
	case c.dead:
		return
	case fleet.KindOf(err) == fleet.KindLeaseLost:
		h.giveUp(err)
		return
	case err != nil:
		l.claimAfter(l.config.ErrorPause)
		return
	}
	for _, t := range tasks {
		h.start(t)
	}
	if len(tasks) == free {
		return // the next claim comes when a slot is free
	}
	wait := l.config.Poll
	if !next.IsZero() {
		wait = min(wait, max(next.Sub(c.world.now), 0))
		if len(tasks) == 0 {
			wait = max(wait, contended)
		}
	}
	l.claimAfter(max(wait, l.config.ClaimRate.Every))
}

// woken claims at once when the BMDB has woken the process.
func (l *loop) woken() {
	if l.next == nil || l.controller.dead || l.controller.pausedFor() > 0 {
		return
	}
	select {
	case <-l.controller.db.Wake(l.process):
		if l.next.at.Sub(l.controller.world.now) > l.config.ClaimRate.Every {
			l.claimAfter(l.config.ClaimRate.Every)
		}
	default:
	}
}

// start does one task as a strand.
func (h *holding) start(real *shepherd.Task) {
	l, c := h.loop, h.loop.controller
	w := c.world
	t := &task{Task: real, holding: h, claimed: w.now}
	w.watch.claimed(c, real.Work)
	w.trace("%s %s of %s, epoch %d", c.name, l.process, w.subject(real.Work), real.Work.Epoch)
	l.busy++
	h.tasks++
	end := l.real.Begin(real)
	w.spawn(c, t, func() {
		defer func() {
			end()
			l.busy--
			h.tasks--
			h.close()
			if !c.dead {
				l.claimAfter(l.config.ClaimRate.Every)
			}
		}()
		t.acting = true
		t.Act(h.ctx)
		t.acting = false
		w.park(w.between("commit", 0, 5*time.Millisecond))
		c.step()
		if c.dead {
			return
		}
		err := t.Commit(h.ctx)
		w.trace("%s %s of %s, epoch %d: %s, %s", c.name, l.process, w.subject(real.Work), real.Work.Epoch, w.outcome(real.Outcome()), errorKind(err))
		if c.dead {
			return
		}
		if err == nil {
			w.watch.committed(real)
		}
		if err != nil && fleet.KindOf(err) != fleet.KindLeaseLost {
			h.giveUp(err)
		}
	})
}

func errorKind(err error) string {
	if err == nil {
		return "committed"
	}
	return fleet.KindOf(err).String()
}

// giveUp retires a session, and opens the next one after a pause. Its work is cancelled.
func (h *holding) giveUp(cause error) {
	l := h.loop
	if h.retired {
		return
	}
	h.retired = true
	h.cancel(fmt.Errorf("%w: %w", errStopped, cause))
	l.controller.world.trace("%s %s gives its session up", l.controller.name, l.process)
	if l.holding == h {
		l.holding = nil
		l.controller.world.cancel(l.next)
		l.next = nil
		l.controller.world.after(l.config.ErrorPause, l.open)
	}
	h.close()
}

// close closes a retired session when its last piece of work has ended.
func (h *holding) close() {
	c := h.loop.controller
	if h.retired && h.tasks == 0 && !c.dead {
		_ = h.holder.Close(c.ctx, "given up") // else it expires
	}
}
