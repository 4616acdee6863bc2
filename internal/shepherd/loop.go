package shepherd

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// How long the lease of a loop's session lasts from each extension: where nobody says otherwise,
// and at least.
const (
	DefaultSessionLease = 5 * time.Second
	LeastSessionLease   = bmdb.LeastLease
)

// Loop runs the work of one handler.
type Loop struct {
	db       *bmdb.DB
	handler  Handler
	scope    Scope
	config   Config
	options  Options
	logger   *slog.Logger
	observer Observer

	limiter *Limiter
	// idled bounds the lines of the log that say why nothing can be claimed, and unclaimed those that
	// say why a claim failed. While the database is away each would come every second.
	idled, unclaimed rate.Sometimes
	// slots has one element for each piece of work under way.
	slots chan struct{}

	mu sync.Mutex
	// working is how much of that is on machines of each provider, and failing how much on machines
	// that failed lately; freed gets a hint when the latter becomes less.
	working map[fleet.ProviderName]int
	failing int
	freed   chan struct{}
}

// New returns a loop that does the work of the handler. It reports every fault of the
// configuration.
func New(db *bmdb.DB, handler Handler, config Config, options Options) (*Loop, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	if options.Observer == nil {
		options.Observer = noObserver{}
	}
	if options.SessionLease == 0 {
		options.SessionLease = DefaultSessionLease
	}
	scope := handler.Scope()
	return &Loop{
		db: db, handler: handler, scope: scope, config: config, options: options,
		logger: options.Logger.With(slog.String("process", string(scope.Process))), observer: options.Observer,
		limiter: newLimiter(config.ClaimRate, db.Clock()),
		idled:   rate.Sometimes{First: 3, Interval: time.Minute}, unclaimed: rate.Sometimes{First: 3, Interval: time.Minute},
		slots:   make(chan struct{}, config.Parallelism),
		working: make(map[fleet.ProviderName]int),
		freed:   make(chan struct{}, 1),
	}, nil
}

// forFailing is how many of the free slots machines may have that have failed lately. They may have
// every second slot, and so cannot take all for as long as they hang.
func (l *Loop) forFailing(free int) int {
	if l.scope.Process.OfProvider() {
		return free
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return min(max(l.half()-l.failing, 0), free)
}

// half is how many slots are half of them.
func (l *Loop) half() int { return (l.config.Parallelism + 1) / 2 }

// count counts work that begins (1) or ends (-1).
func (l *Loop) count(provider fleet.ProviderName, failing bool, change int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.working[provider] += change
	if failing {
		l.failing += change
	}
}

// busy returns how much work is under way on machines of each provider.
func (l *Loop) busy() map[fleet.ProviderName]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.working)
}

// turn returns the providers that do not have half of the slots, and how many pieces of their work
// may be claimed until one of them has. Where that is nobody's turn, it is everybody's.
func (l *Loop) turn(busy map[fleet.ProviderName]int, free int) ([]fleet.ProviderName, int) {
	if len(l.scope.Providers) < 2 || l.scope.Process.OfProvider() {
		return l.scope.Providers, free
	}
	var providers []fleet.ProviderName
	n := free
	for _, name := range l.scope.Providers {
		if room := l.half() - busy[name]; room > 0 {
			providers, n = append(providers, name), min(n, room)
		}
	}
	if len(providers) == 0 {
		return l.scope.Providers, free
	}
	return providers, n
}

// Run works until ctx ends, and returns nil when everything that it held is finished or handed
// back. It is called once at a time.
func (l *Loop) Run(ctx context.Context) error {
	var retiring sync.WaitGroup
	defer retiring.Wait()
	for ctx.Err() == nil {
		holder, err := l.openExtended(ctx)
		if err != nil {
			if ctx.Err() == nil {
				l.idled.Do(func() { l.logger.ErrorContext(ctx, "session could not be started", slog.Any("err", err)) })
				l.sleep(ctx, l.config.ErrorPause)
			}
			continue
		}
		err = l.dispatch(ctx, holder)
		if err != nil && ctx.Err() == nil {
			l.logger.ErrorContext(ctx, "session is given up", slog.String("session", string(holder.Session())), slog.Any("err", err))
			holder.giveUp(err)
		}
		retiring.Go(func() { holder.retire(ctx) })
		if err != nil {
			l.sleep(ctx, l.config.ErrorPause)
		}
	}
	return nil
}

// dispatch claims and starts work through one holder. It returns nil when ctx ends, and why the
// session cannot be used any more otherwise.
func (l *Loop) dispatch(ctx context.Context, holder *Holder) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	//nolint:contextcheck // the session outlives the loop's context
	defer context.AfterFunc(holder.over, func() { stop(context.Cause(holder.over)) })()

	if len(l.scope.Providers) == 0 {
		<-ctx.Done() // no provider is configured, and a claim with an empty list means all providers
		return stopCause(ctx)
	}
	for {
		free, err := l.waitToClaim(ctx)
		if err != nil {
			return stopCause(ctx)
		}
		tasks, next, err := holder.Claim(ctx, free)
		switch {
		case ctx.Err() != nil:
			for _, task := range tasks {
				task.handBack(ctx)
			}
			return stopCause(ctx)
		case errors.Is(err, fleet.ErrLeaseLost):
			return err
		case err != nil:
			l.unclaimed.Do(func() { l.logger.ErrorContext(ctx, "claim failed", slog.Any("err", err)) })
			l.sleep(ctx, l.config.ErrorPause)
			continue
		}
		for _, task := range tasks {
			l.slots <- struct{}{} // never blocks: nobody else takes slots
			holder.start(task)
		}
		if len(tasks) < free && !l.waitForWork(ctx, next, len(tasks) > 0) {
			return stopCause(ctx)
		}
	}
}

// stopCause returns why a dispatch ended: nil when the loop stops.
func stopCause(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == context.Canceled { //nolint:errorlint // the loop's own context has no other cause
		return nil
	}
	return cause
}

// waitToClaim waits for a free slot and for the claim rate, and returns how many slots are free.
func (l *Loop) waitToClaim(ctx context.Context) (int, error) {
	select {
	case l.slots <- struct{}{}:
		<-l.slots
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if err := l.limiter.Wait(ctx); err != nil {
		return 0, err
	}
	return cap(l.slots) - len(l.slots), nil
}

// contendedWait is how long the loop waits after a claim that got nothing although something is
// due: somebody else is about to claim it, or its lane is held.
const contendedWait = 250 * time.Millisecond

// waitForWork waits until there may be something to claim: the next row of the agenda is due, the
// BMDB wakes the process, or the poll comes. It returns false when ctx ends.
func (l *Loop) waitForWork(ctx context.Context, next time.Time, claimed bool) bool {
	wait := l.config.Poll
	if !next.IsZero() {
		if now, err := l.db.Now(ctx); err == nil {
			wait = min(wait, max(next.Sub(now), 0))
		}
		if !claimed {
			wait = max(wait, contendedWait)
		}
	}
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.db.Wake(l.scope.Process):
	case <-l.freed:
	case <-ctx.Done():
		return false
	}
	return true
}
