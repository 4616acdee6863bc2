package rehearsal

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/shepherd/janitor"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/prober"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/recoverer"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
	"github.com/ironherd/ironherd/internal/trust"
)

// controller is one process of a control plane, from its start to its end. Whoever starts after it
// is another one.
type controller struct {
	world  *world
	number int
	name   string
	ctx    context.Context //nolint:containedctx // it lasts as long as the process

	connection *connection
	clock      *trust.Clock
	db         *bmdb.DB
	loops      []*loop
	janitor    *janitor.Janitor
	listener   *listener

	strands []*strand
	slots   map[*source]*slots
	// late are the timers that came due while the process stood still.
	late []*timer

	dead        bool
	pausedUntil time.Time
	// crash and pause are those that are to come at a step.
	crash, pause *stop
}

// stop is an end, or a pause, that comes after some more steps.
type stop struct {
	steps int
	lasts time.Duration
	in    fleet.Process
}

// due counts a step of the process, and reports whether it is the one.
func (s *stop) due(w *world) bool {
	if s == nil {
		return false
	}
	if s.in != "" && (w.current == nil || w.current.task == nil || !w.current.task.acting || w.current.task.Work.Process != s.in) {
		return false
	}
	s.steps--
	return s.steps <= 0
}

// start starts a controller. It returns an error where the database cannot be reached.
func (w *world) start(number int) error {
	c := &controller{world: w, number: number, name: fmt.Sprintf("controller-%d", number), ctx: w.ctx, slots: make(map[*source]*slots)}
	c.clock = trust.NewSimulatedClock(clock{w.schedule, c})
	c.connection = &connection{Engine: w.engine, owner: c}
	db, err := bmdb.Open(w.ctx, c.connection, bmdb.Options{
		Clock: c.clock, Observer: observer{c}, Jitter: func() float64 { return w.random("jitter").Float64() },
	})
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	c.db = db
	if err := c.build(); err != nil {
		return err
	}
	w.controllers[number] = c
	w.trace("%s starts", c.name)
	for _, l := range c.loops {
		w.after(w.between("start", 0, time.Second), l.open)
	}
	c.every(w.setup.Janitor.Interval, c.tidy)
	c.listener = newListener(c)
	return nil
}

// build makes the loops, as package daemon does.
func (c *controller) build() error {
	w, setup := c.world, c.world.setup
	var creators []provisioner.Source
	var starters []initializer.Source
	var refreshers []updater.Source
	var repairers []recoverer.Source
	var doers []operations.Source
	var askers []prober.Source
	for i, p := range w.providers {
		s := setup.Providers[i]
		pace := s.Provisioner
		pace.CreateParallelism = 1 // a second hand would be a second goroutine
		creators = append(creators, provisioner.Source{Name: s.Name, Provider: p, Config: pace})
		starters = append(starters, initializer.Source{
			Name: s.Name, Provider: p, Config: initializer.ProviderConfig{TrustFirstUse: true, Takeover: initializer.TakeoverInPlace},
		})
		refreshers = append(refreshers, updater.Source{Name: s.Name, Provider: p, Config: s.Updater})
		repairers = append(repairers, recoverer.Source{Name: s.Name, Provider: p})
		doers = append(doers, operations.Source{Name: s.Name, Provider: p, Config: operations.ProviderConfig{Penalty: pace.Penalty}})
		askers = append(askers, prober.Source{Name: s.Name, Provider: p})
	}
	creator, err := provisioner.New(c.db, creators, provisioner.Options{})
	if err != nil {
		return fmt.Errorf("make the provisioner: %w", err)
	}
	starter, err := initializer.New(c.db, starters, setup.Initializer, nil, initializer.Options{Dial: c.dial})
	if err != nil {
		return fmt.Errorf("make the initializer: %w", err)
	}
	refresher, err := updater.New(c.db, refreshers, updater.Options{})
	if err != nil {
		return fmt.Errorf("make the updater: %w", err)
	}
	repairer, err := recoverer.New(c.db, repairers, setup.Recoverer, recoverer.Options{})
	if err != nil {
		return fmt.Errorf("make the recoverer: %w", err)
	}
	doer, err := operations.New(c.db, doers, setup.Operations, operations.Options{Cleaner: starter})
	if err != nil {
		return fmt.Errorf("make the operations: %w", err)
	}
	asker, err := prober.New(c.db, askers, setup.Prober, nil, prober.Options{Ask: c.probe})
	if err != nil {
		return fmt.Errorf("make the prober: %w", err)
	}
	if c.janitor, err = janitor.New(c.db, setup.Janitor, janitor.Options{}); err != nil {
		return fmt.Errorf("make the janitor: %w", err)
	}
	for _, l := range []struct {
		handler shepherd.Handler
		config  shepherd.Config
	}{
		{creator, setup.Loops.Provisioner},
		{starter, setup.Loops.Initializer},
		{refresher, setup.Loops.Updater},
		{repairer, setup.Loops.Recoverer},
		{doer, setup.Loops.Operations},
		{asker, setup.Loops.Prober},
	} {
		real, err := shepherd.New(c.db, l.handler, l.config, shepherd.Options{SessionLease: setup.SessionLease, Host: c.name})
		if err != nil {
			return fmt.Errorf("make a loop: %w", err)
		}
		c.loops = append(c.loops, &loop{controller: c, real: real, config: l.config, process: l.handler.Scope().Process})
	}
	return nil
}

// every does something again and again while the process lives, and not while it stands still.
func (c *controller) every(interval time.Duration, do func()) {
	var again func()
	again = func() {
		if c.dead {
			return
		}
		if pause := c.pausedFor(); pause > 0 {
			c.world.after(pause, again)
			return
		}
		do()
		c.world.after(interval, again)
	}
	c.world.after(c.world.between("interval", 0, interval), again)
}

// tidy is a tick of the janitor.
func (c *controller) tidy() {
	for _, duty := range []janitor.Duty{janitor.DutyCollect, janitor.DutyRecompute, janitor.DutyExpire, janitor.DutySilence} {
		if c.dead {
			return
		}
		if err := c.janitor.Do(c.ctx, duty); err != nil {
			c.world.trace("%s %s: %s", c.name, duty, c.world.anonymous(err.Error()))
		}
	}
}

// pausedFor is how long the process still stands still.
func (c *controller) pausedFor() time.Duration { return c.pausedUntil.Sub(c.world.now) }

// step is one step of the process to the outside. An end, or a pause, that is due may come here.
func (c *controller) step() {
	if c.dead {
		return
	}
	if c.crash.due(c.world) {
		c.kill(c.crash.lasts)
		return
	}
	if c.pause.due(c.world) {
		lasts := c.pause.lasts
		c.pause = nil
		c.suspend(lasts)
	}
}

// kill ends the process, and starts the next one after a while.
func (c *controller) kill(lasts time.Duration) {
	w := c.world
	if c.dead {
		return
	}
	c.dead = true
	w.trace("%s is killed", c.name)
	w.note("control plane %s is killed", c.name)
	w.after(0, func() {
		for _, st := range slices.Clone(c.strands) { // what they wait for fails at once
			if w.cancel(st.wake) || !st.over {
				st.wake = nil
				w.proceed(st)
			}
		}
	})
	var again func()
	again = func() {
		if err := w.start(c.number); err != nil {
			w.after(10*time.Second, again)
			return
		}
		w.note("control plane %s is started again", c.name)
	}
	w.after(max(lasts, time.Second), again)
}

// suspend stops the process for a while. It does not know.
func (c *controller) suspend(lasts time.Duration) {
	w := c.world
	if c.dead || c.pausedFor() > 0 {
		return
	}
	c.pausedUntil = w.now.Add(lasts)
	w.trace("%s stands still for %s", c.name, lasts)
	w.note("control plane %s stands still for %s", c.name, lasts)
	w.after(lasts, func() {
		late := c.late
		c.late = nil
		for _, t := range late {
			t.fire()
		}
	})
	if st := w.current; st != nil && st.owner == c {
		w.park(lasts)
	}
}

func (c *controller) forget(st *strand) {
	c.strands = slices.DeleteFunc(c.strands, func(other *strand) bool { return other == st })
}

// observer tells the trace of each transaction.
type observer struct{ *controller }

// Transaction implements bmdb.Observer.
func (o observer) Transaction(kind string, _ time.Duration, _ int, err error) {
	if err != nil {
		o.world.trace("%s %s: %s", o.name, kind, fleet.KindOf(err))
		return
	}
	o.world.trace("%s %s", o.name, kind)
}

// Happened implements bmdb.Observer.
func (o observer) Happened(what bmdb.Happening, cause string) {
	o.world.trace("%s %s: %s", o.name, what, cause)
}

// Outcome implements bmdb.Observer.
func (o observer) Outcome(process fleet.Process, outcome string, held time.Duration) {
	o.world.trace("%s %s %s after %s", o.name, process, outcome, held)
}
