// Package janitor keeps the BMDB in order: it ends sessions that have run out, recomputes agenda
// rows of older policies, reports install attempts that ran out of time, stops recovery when so
// many machines are silent at once that the fault is probably ours, checks what can be checked
// from rows, and deletes what is too old to keep.
//
// It has a session, which is its proof of life, and holds no lease. Each duty is made of short
// transactions that are right whoever runs them and however often, so any number of janitors may
// run at once. A duty that fails is logged, once a minute while it goes on failing, and done again
// at its next time; it does not stop the others. Failing tells which have failed for long.
package janitor

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Config is how often the duties come, and how much is kept.
type Config struct {
	// Interval is the time from one search for ended sessions, agenda rows of older policies,
	// install attempts out of time and many silent machines to the next.
	Interval time.Duration `yaml:"interval"`
	// CheckInterval is the time from one check of the database to the next. A check takes a tenth
	// of it at most, and goes on where the last one stopped. PruneInterval is the time from one
	// deletion of what is too old to the next.
	CheckInterval time.Duration `yaml:"check_interval"`
	PruneInterval time.Duration `yaml:"prune_interval"`
	// KeepHistory and KeepSessions are how long history and ended sessions are kept.
	KeepHistory  time.Duration `yaml:"keep_history"`
	KeepSessions time.Duration `yaml:"keep_sessions"`
	// KeepTokens is how long a creation that came to nothing is remembered, with the install that was
	// asked for: a machine that surfaces later with its token is reported as unknown instead of
	// adopted.
	KeepTokens time.Duration `yaml:"keep_tokens"`
	// KeepPlans is how long a plan is kept after it has expired.
	KeepPlans time.Duration `yaml:"keep_plans"`
	// Batch is how many rows one transaction changes at most.
	Batch int `yaml:"batch"`
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		Interval:      2 * time.Second,
		CheckInterval: time.Minute,
		PruneInterval: 10 * time.Minute,
		KeepHistory:   90 * 24 * time.Hour,
		KeepSessions:  7 * 24 * time.Hour,
		KeepTokens:    365 * 24 * time.Hour,
		KeepPlans:     7 * 24 * time.Hour,
		Batch:         200,
	}
}

// Validate reports every fault at once; each names its key and is of kind Invalid.
func (c Config) Validate() error {
	var faults []error
	if c.Batch < 1 {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, "batch must be at least 1, not %d", c.Batch))
	}
	return errors.Join(append(faults,
		shepherd.RequirePositive("interval", c.Interval),
		shepherd.RequirePositive("check_interval", c.CheckInterval),
		shepherd.RequirePositive("prune_interval", c.PruneInterval),
		shepherd.RequirePositive("keep_history", c.KeepHistory),
		shepherd.RequirePositive("keep_sessions", c.KeepSessions),
		shepherd.RequirePositive("keep_tokens", c.KeepTokens),
		shepherd.RequirePositive("keep_plans", c.KeepPlans))...)
}

// Duty is one thing that the janitor does.
type Duty string

// The duties.
const (
	DutyCollect   Duty = "collect-sessions"
	DutyRecompute Duty = "recompute-agenda"
	DutyExpire    Duty = "expire-installs"
	DutySilence   Duty = "watch-silence"
	DutyCheck     Duty = "check"
	DutyHistory   Duty = "prune-history"
	DutySessions  Duty = "prune-sessions"
	DutyTokens    Duty = "prune-tokens"
	DutyPlans     Duty = "prune-plans"
)

// duty is a Duty with how often it comes and what it does.
type duty struct {
	name Duty
	// every is the time from one to the next. Zero: it is done with every tick.
	every time.Duration
	// do does it, and returns how many rows it changed.
	do func(context.Context) (int, error)
}

// allDuties lists all duties in the order in which they are done.
func (j *Janitor) allDuties() []duty {
	c := j.config
	return []duty{
		{DutyCollect, 0, j.db.CollectSessions},
		{DutyRecompute, 0, j.inBatches(j.db.RecomputeAgenda)},
		{DutyExpire, 0, j.inBatches(j.db.ExpireInstalls)},
		{DutySilence, 0, j.watchSilence},
		{DutyCheck, c.CheckInterval, j.check},
		{DutyHistory, c.PruneInterval, j.inBatches(olderThan(c.KeepHistory, j.db.PruneHistory))},
		{DutySessions, c.PruneInterval, j.inBatches(olderThan(c.KeepSessions, j.db.PruneSessions))},
		{DutyTokens, c.PruneInterval, j.inBatches(olderThan(c.KeepTokens, j.db.PruneTokens))},
		{DutyPlans, c.PruneInterval, j.inBatches(olderThan(c.KeepPlans, j.db.PrunePlans))},
	}
}

// Options is what a Janitor is built with besides its configuration.
type Options struct {
	// Logger receives what an operator should know. Nil: nothing is logged.
	Logger *slog.Logger
	// Observed is told of every duty: how many rows it changed (of a check: found wrong), how long it
	// took, how it failed. It must not block. Nil: nobody is told.
	Observed func(duty Duty, rows int, took time.Duration, err error)
	// Host and PID of the process: for people.
	Host string
	PID  int
}

// Janitor does the duties.
type Janitor struct {
	db      *bmdb.DB
	config  Config
	options Options
	duties  []duty

	// failures bound the lines of the log about each duty that fails, and unproven those about the
	// session. While the database is away each would come with every tick.
	failures map[Duty]*rate.Sometimes
	unproven rate.Sometimes

	// checked is the last machine of the round of checks that is under way.
	checked fleet.MachineID

	mu sync.Mutex
	// failing are the duties that failed when they were done last.
	failing  map[Duty]failure
	findings []bmdb.Finding
	// round are the findings of the round that is under way, and whole says that nothing failed or was
	// passed in it. A round is the checks from one end of the fleet to the other.
	round []bmdb.Finding
	whole bool
}

// failure is since when a duty has failed each time, and why it did so last.
type failure struct {
	since time.Time
	cause string
}

// New returns a janitor. It reports every fault of the configuration.
func New(db *bmdb.DB, config Config, options Options) (*Janitor, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	j := &Janitor{
		db: db, config: config, options: options,
		failures: make(map[Duty]*rate.Sometimes), unproven: rate.Sometimes{First: 3, Interval: time.Minute},
		failing: make(map[Duty]failure),
	}
	j.duties = j.allDuties()
	for _, duty := range j.duties {
		j.failures[duty.name] = &rate.Sometimes{First: 3, Interval: time.Minute}
	}
	return j, nil
}

// Run does each duty in its time until ctx ends, and returns nil then.
func (j *Janitor) Run(ctx context.Context) error {
	var proving sync.WaitGroup
	defer proving.Wait()
	proving.Go(func() { j.prove(ctx) })
	next := make(map[Duty]time.Time)
	for _, duty := range []Duty{DutyHistory, DutySessions} { // neither is urgent at a start
		next[duty] = time.Now().Add(j.config.PruneInterval)
	}
	ticker := time.NewTicker(j.config.Interval)
	defer ticker.Stop()
	for {
		for _, duty := range j.duties {
			if now := time.Now(); ctx.Err() == nil && !now.Before(next[duty.name]) {
				next[duty.name] = now.Add(duty.every)
				if err := j.Do(ctx, duty.name); err != nil { // logged there
					next[duty.name] = now.Add(min(duty.every, retryAfter))
				}
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

const (
	// sessionLease is longer than that of a loop: nothing is held through the session, so nobody waits
	// for its end.
	sessionLease = 30 * time.Second
	// retryAfter is when a duty that failed comes again, if not sooner: who is told that it fails for
	// long is to hear soon when it does not any more.
	retryAfter = time.Minute
	// closePatience bounds the end of the session.
	closePatience = 5 * time.Second
)

// prove keeps a session until ctx ends, and starts another one when it is lost. The duties do not
// depend on it: without one it is only not known that anybody does them.
func (j *Janitor) prove(ctx context.Context) {
	for ctx.Err() == nil {
		err := j.session(ctx)
		if ctx.Err() != nil {
			return
		}
		j.unproven.Do(func() {
			j.options.Logger.WarnContext(ctx, "the janitor has no session; it starts another one", slog.Any("err", err))
		})
		j.db.Clock().Sleep(ctx, j.config.Interval)
	}
}

// session has one session until ctx ends (nil) or it is lost.
func (j *Janitor) session(ctx context.Context) error {
	session, err := j.db.StartSession(ctx, bmdb.SessionOptions{
		Component: fleet.RoleJanitor.Component(), Host: j.options.Host, PID: j.options.PID, Lease: sessionLease,
	})
	if err != nil {
		return err
	}
	if err := session.Run(ctx); err != nil {
		return err
	}
	closing, done := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
	defer done()
	return session.Close(closing, "its process stops")
}

// Do does one duty now.
func (j *Janitor) Do(ctx context.Context, duty Duty) error {
	start := time.Now()
	rows, err := j.do(ctx, duty)
	if ctx.Err() != nil {
		return err
	}
	j.note(duty, start, err)
	switch {
	case err != nil && j.failures[duty] != nil:
		j.failures[duty].Do(func() {
			j.options.Logger.ErrorContext(ctx, "janitor failed", slog.String("duty", string(duty)), slog.Any("err", err))
		})
	case rows > 0 && duty != DutyCheck && duty != DutySilence:
		j.options.Logger.InfoContext(ctx, "janitor cleaned up", slog.String("duty", string(duty)), slog.Int("rows", rows))
	}
	if j.options.Observed != nil {
		j.options.Observed(duty, rows, time.Since(start), err)
	}
	return err
}

func (j *Janitor) do(ctx context.Context, name Duty) (int, error) {
	for _, duty := range j.duties {
		if duty.name == name {
			return duty.do(ctx)
		}
	}
	return 0, fleet.Errorf(fleet.KindInvalid, "the janitor has no duty %q", name)
}

// note takes in how a duty that began then has ended.
func (j *Janitor) note(duty Duty, began time.Time, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		delete(j.failing, duty)
		return
	}
	if earlier, failed := j.failing[duty]; failed {
		began = earlier.since
	}
	j.failing[duty] = failure{since: began, cause: shepherd.Cause(err)}
}

// Failing returns the duties that have failed each time since before an instant, the one that does
// so for longest first; of that one also since when, and why it failed last.
func (j *Janitor) Failing(before time.Time) (duties []string, since time.Time, cause string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, duty := range j.duties {
		if f, failed := j.failing[duty.name]; failed && f.since.Before(before) {
			duties = append(duties, string(duty.name))
		}
	}
	if len(duties) == 0 {
		return nil, time.Time{}, ""
	}
	slices.SortStableFunc(duties, func(a, b string) int { return j.failing[Duty(a)].since.Compare(j.failing[Duty(b)].since) })
	first := j.failing[Duty(duties[0])]
	return duties, first.since, first.cause
}

// batchesAtOnce bounds how many batches a duty does in a row, so that it does not keep the others
// from their work. The rest is done the next time.
const batchesAtOnce = 50

// inBatches does a duty in batches, and stops after the first that is not full.
func (j *Janitor) inBatches(batch func(ctx context.Context, limit int) (int, error)) func(context.Context) (int, error) {
	return func(ctx context.Context) (total int, err error) {
		for range batchesAtOnce {
			n, err := batch(ctx, j.config.Batch)
			total += n
			if err != nil || n < j.config.Batch {
				return total, err
			}
		}
		return total, nil
	}
}

// olderThan returns what deletes what is older than that, in batches.
func olderThan(
	age time.Duration, prune func(ctx context.Context, age time.Duration, limit int) (int, error),
) func(ctx context.Context, limit int) (int, error) {
	return func(ctx context.Context, limit int) (int, error) { return prune(ctx, age, limit) }
}

// watchSilence stops recovery, or lets it go on, and returns 1 when it did.
func (j *Janitor) watchSilence(ctx context.Context) (int, error) {
	did, err := j.db.WatchSilence(ctx)
	if err != nil || did == "" {
		return 0, err
	}
	j.options.Logger.WarnContext(ctx, "recovery is stopped, or goes on", slog.String("what", did))
	return 1, nil
}

// checkShare is the part of the interval that a check may take: a tenth. A large fleet needs
// several checks for a round.
const checkShare = 10

// check looks for violated invariants in the next part of the fleet. The janitor logs a finding
// when it is new, and forgets it when a whole round has not found it any more. A machine that
// somebody else has locked ends the check, and the next one goes on behind it.
func (j *Janitor) check(ctx context.Context) (int, error) {
	n, complete := 0, false
	for began := time.Now(); !complete && time.Since(began) < j.config.CheckInterval/checkShare; {
		after := j.checked
		found, next, err := j.db.CheckAfter(ctx, after, j.config.Batch)
		j.checked, complete = next, next == ""
		n += len(found)
		j.record(ctx, found, after, next, err == nil)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// record adds the findings of one check to those of its round, and logs the new ones.
func (j *Janitor) record(ctx context.Context, found []bmdb.Finding, after, next fleet.MachineID, whole bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if after == "" {
		j.round, j.whole = nil, true
	}
	j.whole = j.whole && whole
	for _, finding := range found {
		if !slices.Contains(j.findings, finding) {
			j.options.Logger.ErrorContext(ctx, "invariant is violated", slog.String("invariant", finding.Invariant),
				slog.String("subject", finding.Subject), slog.String("detail", finding.Detail))
			j.findings = append(j.findings, finding)
		}
	}
	if j.round = append(j.round, found...); next == "" && j.whole {
		j.findings, j.round = j.round, nil
	}
}

// Findings returns what the last whole round of checks found, and what the present one has found so
// far. It is empty while all is well, and while nothing was checked yet.
func (j *Janitor) Findings() []bmdb.Finding {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]bmdb.Finding(nil), j.findings...)
}
