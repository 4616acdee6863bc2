package shepherd

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Holder is one session of a loop and the work that is done through it.
type Holder struct {
	loop    *Loop
	session *bmdb.Session

	// Only Loop.Run uses the rest.

	// tasks counts the work under way.
	tasks sync.WaitGroup
	// over ends when the session is lost or must not be used any more; its cause says why.
	over   context.Context //nolint:containedctx // it lasts as long as the session
	giveUp context.CancelCauseFunc
	// acting is the context of all work of this session.
	acting context.Context //nolint:containedctx // it lasts as long as the session
	cancel context.CancelCauseFunc
	// stopExtending ends the extensions, and returns when they have ended.
	stopExtending func()
}

// Open starts a session. Nobody extends it: Loop.Run does that for its own; others call KeepAlive,
// or Extend.
func (l *Loop) Open(ctx context.Context) (*Holder, error) {
	// No providers are not nil, which means all.
	providers := append([]fleet.ProviderName{}, l.scope.Providers...)
	session, err := l.db.StartSession(ctx, bmdb.SessionOptions{
		Component: string(l.scope.Process), Host: l.options.Host, PID: l.options.PID, Providers: providers, Lease: l.options.SessionLease,
	})
	if err != nil {
		return nil, err
	}
	for _, name := range session.Unregistered() {
		l.logger.ErrorContext(ctx, "provider is not registered in the database (it was forgotten there, or the database is an older one), and is not looked after "+
			"until this control plane starts again", slog.String("provider", string(name)), slog.String("session", string(session.ID())))
	}
	return &Holder{loop: l, session: session}, nil
}

// Session returns the ID of the session.
func (h *Holder) Session() fleet.SessionID { return h.session.ID() }

// Extend extends the session once. ErrLeaseLost: it has ended.
func (h *Holder) Extend(ctx context.Context) error { return h.session.Extend(ctx) }

// KeepAlive extends the session until ctx ends (nil) or it is lost (ErrLeaseLost).
func (h *Holder) KeepAlive(ctx context.Context) error { return h.session.Run(ctx) }

// Trusted reports whether an effect may start under the session.
func (h *Holder) Trusted() bool { return h.session.Trusted() }

// Claim claims up to limit pieces of work. While machines that failed lately have every second slot
// of the loop, it claims no more of them. While machines of one provider have every second slot, it
// claims more of them only when nothing is due at the others: that provider may hang. It also
// returns when the next one is due in the time of the BMDB; zero: none is.
//
// When it fails nothing is held: what the claim had taken is handed back with the next extension.
func (h *Holder) Claim(ctx context.Context, limit int) ([]*Task, time.Time, error) {
	l := h.loop
	all, busy, forFailing := l.scope.Providers, l.busy(), l.forFailing(limit)
	var tasks []*Task
	claim := func(providers []fleet.ProviderName, n int) (bmdb.Claim, error) {
		start := time.Now()
		claim, err := h.session.Claim(ctx, bmdb.ClaimRequest{
			Process: l.scope.Process, Providers: providers, Limit: n, Kept: n - min(n, max(forFailing, 0)),
		})
		l.observer.Claimed(l.scope.Process, len(claim.Works), time.Since(start), err)
		for _, work := range claim.Works {
			tasks = append(tasks, &Task{Work: work, holder: h})
			busy[work.Record.Machine.Provider]++
			if work.Failing() {
				forFailing--
			}
		}
		return claim, err
	}
	for {
		providers, n := l.turn(busy, limit-len(tasks))
		got, err := claim(providers, n)
		if err == nil && len(got.Works) < n && len(providers) < len(all) {
			providers, n = all, limit-len(tasks)
			got, err = claim(providers, n)
		}
		switch {
		case err != nil && len(tasks) == 0:
			return nil, time.Time{}, err
		case err != nil: // the next claim meets it, too
			return tasks, time.Time{}, nil //nolint:nilerr // see above
		case len(got.Works) < n || len(tasks) == limit:
			return tasks, got.NextDue, nil
		}
	}
}

// Close ends the session; what is still held through it is free at once.
func (h *Holder) Close(ctx context.Context, cause string) error { return h.session.Close(ctx, cause) }

// openExtended starts a session that a goroutine extends until the holder retires.
func (l *Loop) openExtended(ctx context.Context) (*Holder, error) {
	h, err := l.Open(ctx)
	if err != nil {
		return nil, err
	}
	background := context.WithoutCancel(ctx)
	h.over, h.giveUp = context.WithCancelCause(background)
	h.acting, h.cancel = context.WithCancelCause(background)

	extending, stop := context.WithCancel(background)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := h.KeepAlive(extending); err != nil {
			h.giveUp(err)
		}
	}()
	h.stopExtending = func() { stop(); <-stopped }
	return h, nil
}

// start does one task in the background, and frees the slot that the caller has taken for it.
func (h *Holder) start(task *Task) {
	l := h.loop
	end := l.Begin(task)
	h.tasks.Go(func() {
		defer func() { <-l.slots }()
		defer end()
		task.Act(h.acting)
		if err := task.Commit(h.acting); err != nil && fleet.KindOf(err) != fleet.KindLeaseLost {
			h.giveUp(err)
		}
	})
}

// Begin counts a task as under way, until end is called: it decides how much is claimed of what
// failed lately, and of its provider.
func (l *Loop) Begin(task *Task) (end func()) {
	provider, failing := task.Work.Record.Machine.Provider, task.Work.Failing()
	l.count(provider, failing, 1)
	return func() {
		l.count(provider, failing, -1)
		if !failing {
			return
		}
		select {
		case l.freed <- struct{}{}:
		default:
		}
	}
}

// retire ends a holder. Running work may finish while the session is good and the loop goes on, and
// during the grace period when the loop stops. ctx is the loop's.
func (h *Holder) retire(ctx context.Context) {
	l := h.loop
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		h.tasks.Wait()
	}()

	cause := h.wait(ctx, idle)
	h.cancel(cause)
	patience := time.NewTimer(commitPatience + commitAttempt)
	defer patience.Stop()
	select {
	case <-idle:
	case <-patience.C:
		l.logger.ErrorContext(ctx, "work ignores its end; its session is left to expire", slog.String("session", string(h.Session())))
		h.stopExtending()
		return
	}
	h.stopExtending()
	closing, done := context.WithTimeout(context.WithoutCancel(ctx), commitAttempt)
	defer done()
	var err error
	if fleet.KindOf(cause) == fleet.KindLeaseLost {
		err = h.session.CloseLost(closing)
	} else {
		err = h.Close(closing, Cause(cause))
	}
	if err != nil {
		l.logger.WarnContext(ctx, "session could not be closed", slog.String("session", string(h.Session())), slog.Any("err", err))
	}
}

// wait returns when the work is done or has to end, and why it has to.
//
//nolint:contextcheck // the session outlives the loop's context
func (h *Holder) wait(ctx context.Context, idle <-chan struct{}) error {
	select {
	case <-idle:
		return errStopping
	case <-h.over.Done():
		return context.Cause(h.over)
	case <-ctx.Done():
	}
	grace := time.NewTimer(h.loop.config.Grace)
	defer grace.Stop()
	select {
	case <-idle:
	case <-h.over.Done():
		return context.Cause(h.over)
	case <-grace.C:
	}
	return errStopping
}
