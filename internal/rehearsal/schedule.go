package rehearsal

import (
	"container/heap"
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/trust"
)

// schedule is virtual time: it does one event after the other, each at its instant. Only one
// goroutine runs at a time: the schedule's own, or a strand that it has resumed.
type schedule struct {
	now    time.Time
	queue  events
	serial uint64
	// current is the strand that runs; nil: the schedule itself does.
	current *strand
	done    int
}

// event is something that happens at an instant. Of two at the same instant, the one that was
// planned first is first.
type event struct {
	at     time.Time
	serial uint64
	do     func()
	index  int // in the queue; -1: not there
}

type events []*event

func (q events) Len() int { return len(q) }

func (q events) Less(i, j int) bool {
	if !q[i].at.Equal(q[j].at) {
		return q[i].at.Before(q[j].at)
	}
	return q[i].serial < q[j].serial
}

func (q events) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *events) Push(x any) {
	e := x.(*event) //nolint:forcetypeassert // nothing else is pushed
	e.index = len(*q)
	*q = append(*q, e)
}

func (q *events) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	e.index = -1
	return e
}

// after plans an event.
func (s *schedule) after(d time.Duration, do func()) *event {
	s.serial++
	e := &event{at: s.now.Add(max(d, 0)), serial: s.serial, do: do}
	heap.Push(&s.queue, e)
	return e
}

// cancel takes an event back, and reports whether it was still to come.
func (s *schedule) cancel(e *event) bool {
	if e == nil || e.index < 0 {
		return false
	}
	heap.Remove(&s.queue, e.index)
	return true
}

// step does the next event, unless it is later than the limit; then time goes on to the limit, and
// step returns false.
func (s *schedule) step(limit time.Time) bool {
	if len(s.queue) == 0 || s.queue[0].at.After(limit) {
		s.now = limit
		return false
	}
	e := heap.Pop(&s.queue).(*event) //nolint:forcetypeassert // nothing else is there
	s.now = e.at
	s.done++
	e.do()
	return true
}

// strand is a goroutine that runs only when the schedule resumes it, until it gives way.
type strand struct {
	schedule *schedule
	owner    *controller
	// task is what it works at; nil: nothing that was claimed.
	task           *task
	resume, parked chan struct{}
	wake           *event
	over           bool
}

// spawn makes a strand that runs do, from the next event on.
func (s *schedule) spawn(owner *controller, t *task, do func()) {
	st := &strand{schedule: s, owner: owner, task: t, resume: make(chan struct{}), parked: make(chan struct{})}
	owner.strands = append(owner.strands, st)
	go func() {
		<-st.resume
		do()
		st.over = true
		st.parked <- struct{}{}
	}()
	st.wake = s.after(0, st.wakeUp)
}

// proceed resumes a strand until it gives way.
func (s *schedule) proceed(st *strand) {
	s.current = st
	st.resume <- struct{}{}
	<-st.parked
	s.current = nil
	if st.over {
		st.owner.forget(st)
	}
}

// wakeUp resumes a strand whose time has come, unless its process stands still.
func (st *strand) wakeUp() {
	st.wake = nil
	if pause := st.owner.pausedFor(); pause > 0 {
		st.wake = st.schedule.after(pause, st.wakeUp)
		return
	}
	st.schedule.proceed(st)
}

// park lets the current strand wait for d. What belongs to a dead process does not wait.
func (s *schedule) park(d time.Duration) {
	st := s.current
	if st == nil || st.owner.dead {
		return
	}
	st.wake = s.after(d, st.wakeUp)
	s.giveWay()
}

// giveWay is park until somebody wakes the strand.
func (s *schedule) giveWay() {
	if st := s.current; st != nil && !st.owner.dead {
		st.parked <- struct{}{}
		<-st.resume
	}
}

// clock is the time of one process: trust.Simulation.
type clock struct {
	*schedule
	owner *controller
}

// Now is virtual time.
func (c clock) Now() time.Time { return c.now }

// Sleep parks the strand that asks.
func (c clock) Sleep(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	c.park(d)
	return ctx.Err() == nil && (c.current == nil || !c.current.owner.dead)
}

// AfterFunc plans a call. The timers of a process that stands still run when it goes on, before
// anything else of it.
func (c clock) AfterFunc(d time.Duration, f func()) trust.Timer {
	t := &timer{clock: c, do: f}
	t.event = c.after(d, t.fire)
	return t
}

type timer struct {
	clock clock
	do    func()
	event *event
}

func (t *timer) fire() {
	owner := t.clock.owner
	if owner != nil && owner.dead {
		return
	}
	if owner != nil {
		if pause := owner.pausedFor(); pause > 0 {
			owner.late = append(owner.late, t)
			return
		}
	}
	t.do()
}

// Stop implements trust.Timer.
func (t *timer) Stop() bool { return t.clock.cancel(t.event) }

// Reset implements trust.Timer.
func (t *timer) Reset(d time.Duration) bool {
	active := t.Stop()
	t.event = t.clock.after(d, t.fire)
	return active
}
