package provider

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Pacer decides when the next request may start. All callers share its bucket and the instant
// before which the provider wants no request. With a queue it shares both with other processes.
type Pacer struct {
	limits Limits
	clock  Clock
	bucket *rate.Limiter
	queue  *turnQueue // nil: it paces alone

	mu        sync.Mutex
	notBefore time.Time
}

// Clock is the time that a Pacer keeps to.
type Clock interface {
	Now() time.Time
	// Sleep waits. It returns false when ctx ends before.
	Sleep(ctx context.Context, d time.Duration) bool
}

// wallClock is the time of the host.
type wallClock struct{}

// Now implements Clock.
func (wallClock) Now() time.Time { return time.Now() }

// Sleep implements Clock.
func (wallClock) Sleep(ctx context.Context, d time.Duration) bool { return pause(ctx, d) == nil }

// NewPacer returns one for the callers of one limit that are in this process, by a clock.
func NewPacer(limits Limits, clock Clock) *Pacer {
	limits = limits.withDefaults()
	every := rate.Inf
	if limits.Spacing > 0 {
		every = rate.Every(limits.Spacing)
	}
	return &Pacer{limits: limits, clock: clock, bucket: rate.NewLimiter(every, 1)}
}

// share makes the pacer take turns with other processes. behind is how many calls there are that do
// not wait for a turn yet, but will.
func (p *Pacer) share(options Options, behind func() int) {
	if options.Turns == nil || p.limits.Limit == nil || p.limits.Spacing <= 0 {
		return
	}
	p.queue = &turnQueue{
		turns: options.Turns, name: p.limits.Limit, spacing: p.limits.Spacing, logger: options.Log(), behind: behind,
		held: p.held, hold: p.holdUntil, alone: func(alone bool) {
			if options.Observer != nil {
				options.Observer.PacedAlone(alone)
			}
		},
	}
}

// Hold keeps every request back for a while, here and in the processes that share the limit,
// because the provider asked for it.
func (p *Pacer) Hold(ctx context.Context, wait time.Duration) {
	until := p.clock.Now().Add(wait)
	p.holdUntil(until)
	if p.queue != nil {
		p.queue.tell(ctx, until)
	}
}

func (p *Pacer) holdUntil(until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until.After(p.notBefore) {
		p.notBefore = until
	}
}

// pacing says how requests are paced, in one clause.
func (p *Pacer) pacing() string {
	text := fmt.Sprintf("one call each %s, by this process", p.limits.Spacing)
	switch {
	case p.queue != nil:
		text = p.queue.pacing()
	case p.limits.Spacing <= 0:
		text = "no limit"
	}
	if held := p.held(); held > 0 {
		text += fmt.Sprintf("; the provider wants to be left alone for another %s", held.Round(time.Second))
	}
	return text
}

// Wait returns when a request may start. It fails at once when the wait could not end in time.
func (p *Pacer) Wait(ctx context.Context) error {
	for {
		if err := p.waitHeld(ctx); err != nil {
			return err
		}
		spacing := p.waitSpacing
		if p.queue != nil {
			spacing = p.queue.wait
		}
		if err := spacing(ctx); err != nil {
			return err
		}
		if p.held() <= 0 { // no other answer has asked for a pause in the meantime
			return nil
		}
	}
}

func (p *Pacer) waitHeld(ctx context.Context) error {
	held := p.held()
	if deadline, ok := ctx.Deadline(); held > p.limits.Patience || ok && deadline.Sub(p.clock.Now()) < held {
		return &fleet.Error{Kind: fleet.KindThrottled, Message: "the provider asked to be left alone", RetryAfter: held}
	}
	return p.pause(ctx, held)
}

func (p *Pacer) waitSpacing(ctx context.Context) error {
	now := p.clock.Now()
	turn := p.bucket.ReserveN(now, 1)
	delay := turn.DelayFrom(now)
	if deadline, ok := ctx.Deadline(); ok && deadline.Sub(now) < delay {
		turn.CancelAt(now)
		return fleet.Errorf(fleet.KindTimeout, "the next call may start in %s, which is too late: %w",
			delay.Round(time.Millisecond), context.DeadlineExceeded)
	}
	if err := p.pause(ctx, delay); err != nil {
		turn.CancelAt(p.clock.Now())
		return err
	}
	return nil
}

func (p *Pacer) held() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.notBefore.Sub(p.clock.Now())
}

// pause is the one below, by the pacer's clock.
func (p *Pacer) pause(ctx context.Context, wait time.Duration) error {
	if ctx.Err() != nil || wait > 0 && !p.clock.Sleep(ctx, wait) {
		return cmp.Or(fleet.ContextError(ctx), context.Canceled)
	}
	return nil
}

// pause waits, or returns the context's end as an error.
func pause(ctx context.Context, wait time.Duration) error {
	if ctx.Err() != nil {
		return fleet.ContextError(ctx)
	}
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fleet.ContextError(ctx)
	}
}
