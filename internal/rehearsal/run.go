package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/trust"
)

// Options is what does not change what happens.
type Options struct {
	// KeepTrace keeps the whole trace, and not its end alone.
	KeepTrace bool
	// Progress, when set, is called now and then with the virtual time that has passed: until the
	// fleet is there, and since then.
	Progress func(there bool, passed time.Duration)
}

func (o Options) progress(there bool, passed time.Duration) {
	if o.Progress != nil {
		o.Progress(there, passed)
	}
}

// Report is what happened.
type Report struct {
	Plan Plan
	// Digest of the trace: two runs that give the same did the same.
	Digest string
	// Violations are the invariants that were seen to be broken. The rehearsal ends with the first.
	Violations []Violation
	// Settled is since when nothing was left to do; zero: something always was. Every machine is well
	// then, or somebody has to see to it (see States and Unwatched). With Plan.Lead it is known to the
	// minute; without, it is not before the faults have stopped.
	Settled time.Duration
	// Left says what was left to do.
	Left string
	// Elapsed is how much virtual time passed, in so many steps.
	Elapsed time.Duration
	Steps   int
	// Trace is the end of the trace, or all of it.
	Trace []string
	// Timeline is what people want to know of.
	Timeline []Moment
	// Restarts counts the restarts of machines by their reason, reinstalls by the provider included.
	Restarts map[string]int
	// Created and Released count the machines that were created, and that were given back.
	Created, Released int
	// Calls are those of each provider.
	Calls []Calls
	// States are those of the machines in the end.
	States map[fleet.State]int
	// Unwatched counts the installed machines that do not answer in the end, and of which nobody ever
	// finds that.
	Unwatched int
}

// Calls counts the calls of one provider.
type Calls struct {
	Provider fleet.ProviderName `json:"provider"`
	Total    map[string]int     `json:"total"`
	// Peak is the most in one second.
	Peak int `json:"peak_per_second"`
}

// Failed reports whether the rehearsal found something.
func (r Report) Failed() bool { return len(r.Violations) > 0 || r.Left != "" }

// dawn is when each rehearsal begins.
var dawn = time.Date(2026, time.January, 5, 6, 0, 0, 0, time.UTC)

// Run runs a plan. An error means that the rehearsal itself failed.
func Run(ctx context.Context, plan Plan, setup Setup, options Options) (report Report, err error) {
	if err := plan.Validate(); err != nil {
		return Report{}, err
	}
	directory, err := os.MkdirTemp("", "ironherd-rehearsal-")
	if err != nil {
		return Report{}, fmt.Errorf("make a directory for the database: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	w := &world{
		schedule: &schedule{now: dawn}, ctx: ctx, plan: plan, setup: setup, began: dawn, randoms: make(map[string]*rand.Rand),
		names: make(map[string]string), pacers: make(map[string]*provider.Pacer), wanted: make(map[fleet.MachineID]bool), mayBeOff: make(map[fleet.MachineID]bool),
		digest: newDigest(), keepAll: options.KeepTrace, controllers: make([]*controller, plan.Controllers),
	}
	w.watch = newWatch(w)
	if err := w.open(directory); err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.run(options); err != nil {
		return Report{}, err
	}
	return w.report(), nil
}

// open makes the database, the providers and the controllers.
func (w *world) open(directory string) error {
	path := filepath.Join(directory, "bmdb")
	if err := newDatabase(w.ctx, path); err != nil {
		return err
	}
	own := trust.NewSimulatedClock(clock{schedule: w.schedule})
	engine, err := sqlite.Open(w.ctx, path, sqlite.Options{Unsynced: true, Clock: own, Readers: 2})
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	w.engine = engine
	if w.db, err = bmdb.Open(w.ctx, engine, bmdb.Options{Clock: own, Jitter: func() float64 { return w.random("jitter").Float64() }}); err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	if _, err := w.db.SetPolicy(w.ctx, w.setup.Policy); err != nil {
		return fmt.Errorf("set the policy: %w", err)
	}
	if err := os.WriteFile(filepath.Join(directory, "agent"), []byte(simulatedAgent), 0o600); err != nil {
		return fmt.Errorf("make the agent: %w", err)
	}
	w.setup.Initializer.AgentExecutable, w.setup.Initializer.OtherAgentExecutables = filepath.Join(directory, "agent"), nil
	w.setup.Initializer.EndpointCA = ""
	w.setup.Providers = slices.Clone(w.setup.Providers)
	for i := range w.setup.Providers {
		p := &w.setup.Providers[i]
		if w.plan.Install && p.Provisioner.Install == nil {
			p.Provisioner.Install = w.setup.install("configuration")
		}
		w.providers = append(w.providers, newSource(w, *p, w.plan.Machines))
		if err := w.db.RegisterProvider(w.ctx, p.Name, w.providers[i].Kind(), p.Provisioner.MaxMachines); err != nil {
			return fmt.Errorf("register the provider: %w", err)
		}
		if err := w.db.SetLevers(w.ctx, p.Name, provider.Levers(w.providers[i])); err != nil {
			return fmt.Errorf("register the provider's levers: %w", err)
		}
	}
	for n := range w.controllers {
		if err := w.start(n); err != nil {
			return err
		}
	}
	return nil
}

// close ends all strands, and then the database.
func (w *world) close() error {
	for _, c := range w.controllers {
		if c == nil {
			continue
		}
		c.dead = true
		for _, st := range slices.Clone(c.strands) {
			w.cancel(st.wake)
			w.proceed(st)
		}
	}
	if w.db == nil {
		return nil
	}
	return w.db.Close()
}

// template is the file of a database that has the schema.
var template struct {
	sync.Mutex
	file []byte
}

// newDatabase makes an empty database.
func newDatabase(ctx context.Context, path string) error {
	template.Lock()
	defer template.Unlock()
	if template.file != nil {
		if err := os.WriteFile(path, template.file, 0o600); err != nil {
			return fmt.Errorf("make the database: %w", err)
		}
		return nil
	}
	engine, err := sqlite.Open(ctx, path, sqlite.Options{Unsynced: true})
	if err != nil {
		return fmt.Errorf("make the database: %w", err)
	}
	if err := errors.Join(engine.Migrate(ctx), engine.Close()); err != nil {
		return fmt.Errorf("make the database: %w", err)
	}
	if template.file, err = os.ReadFile(path); err != nil {
		return fmt.Errorf("make the database: %w", err)
	}
	return nil
}

const (
	// checkEvery is how often the database is checked, and lookEvery how often it is asked whether all
	// is well.
	checkEvery = 15 * time.Minute
	lookEvery  = time.Minute
)

// run lets time pass until all is well, something is found, or the time is over.
func (w *world) run(options Options) error {
	if w.plan.Lead {
		if err := w.lead(options); err != nil {
			return err
		}
	}
	for _, e := range w.plan.Events {
		w.after(e.At, func() { w.happen(e) })
	}
	w.after(w.plan.Length, w.calm)
	var failed error
	var checks func()
	checks = func() {
		options.progress(true, w.elapsed())
		failed = errors.Join(failed, w.checkDatabase())
		w.after(checkEvery, checks)
	}
	w.after(checkEvery, checks)
	if w.plan.Lead {
		w.followStates()
	}

	look := w.began.Add(w.plan.Length)
	end := look.Add(w.plan.Settle)
	for {
		for w.step(look) {
			w.wake()
			if len(w.watch.violations) > 0 || failed != nil || w.watch.failed != nil || w.ctx.Err() != nil {
				return errors.Join(failed, w.watch.failed, w.ctx.Err())
			}
		}
		left, err := w.left()
		if err != nil {
			return err
		}
		if left == "" || !w.now.Before(end) {
			return w.finish(left)
		}
		look = look.Add(lookEvery)
	}
}

// followStates notes the states of the machines while they change, and since when nothing is left
// to do.
func (w *world) followStates() {
	w.after(lookEvery, func() {
		if env, err := w.db.Environment(w.ctx); err == nil {
			w.noteHold(env.RecoveryHold)
		}
		if left, err := w.left(); err == nil {
			w.noteStates()
			switch {
			case left != "" || w.ails():
				w.quiet = time.Time{}
			case w.quiet.IsZero():
				w.quiet = w.now
			}
		}
		w.followStates()
	})
}

// noteHold notes that recovery has stopped, or goes on. A hold whose time is over is none.
func (w *world) noteHold(h *fleet.RecoveryHold) {
	var cause fleet.StopCause
	if h != nil && (h.Until == nil || h.Until.After(w.now)) {
		cause = h.Cause
	}
	switch cause {
	case w.stopped:
	case "":
		w.note("recovery goes on")
	default:
		w.note("recovery stops (%s): %s", cause, w.anonymous(h.Reason))
	}
	w.stopped = cause
}

// ails reports whether something of the plan is still to come, or lasts. The fleet may be well
// while its provider does not serve: then machines alone tell.
func (w *world) ails() bool {
	return slices.ContainsFunc(w.plan.Events, func(e Event) bool {
		ends := e.At
		if e.What != Throttled && e.What != ProviderOutage {
			ends += e.For
		}
		return w.elapsed() < ends
	})
}

// wake lets loops claim that the BMDB has woken.
func (w *world) wake() {
	for _, c := range w.controllers {
		if c.dead {
			continue
		}
		for _, l := range c.loops {
			l.woken()
		}
	}
}

// calm ends what faults still last.
func (w *world) calm() {
	w.active = nil
	for _, p := range w.providers {
		p.base().stale = nil
	}
	for _, c := range w.controllers {
		c.crash, c.pause = nil, nil
	}
	w.trace("the faults are over")
}

func (w *world) report() Report {
	r := Report{
		Plan: w.plan, Digest: w.sum(), Violations: w.watch.violations, Settled: w.settled, Left: w.unsettled, Elapsed: w.elapsed(), Steps: w.done,
		Trace: w.lines, Timeline: w.timeline, Restarts: w.watch.restarts, Created: w.watch.creates,
		Released: w.watch.releases, States: w.states, Unwatched: w.unwatched,
	}
	for _, p := range w.providers {
		s := p.base()
		r.Calls = append(r.Calls, Calls{Provider: s.name, Total: s.total, Peak: s.peak})
	}
	return r
}
