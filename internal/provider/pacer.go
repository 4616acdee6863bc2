package provider

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironherd/ironherd/internal/fleet"
)

// pacer decides when the next request may start. All callers share its bucket and the instant
// before which the provider wants no request.
type pacer struct {
	bucket   *rate.Limiter
	patience time.Duration

	mu        sync.Mutex
	notBefore time.Time
}

func newPacer(limits Limits) *pacer {
	every := rate.Inf
	if limits.Spacing > 0 {
		every = rate.Every(limits.Spacing)
	}
	return &pacer{bucket: rate.NewLimiter(every, 1), patience: limits.Patience}
}

// hold keeps every request back for a while, because the provider asked for it.
func (p *pacer) hold(wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := time.Now().Add(wait); until.After(p.notBefore) {
		p.notBefore = until
	}
}

// wait returns when a request may start. It fails at once when the wait could not end in time.
func (p *pacer) wait(ctx context.Context) error {
	for {
		if err := p.waitHeld(ctx); err != nil {
			return err
		}
		if err := p.waitSpacing(ctx); err != nil {
			return err
		}
		if p.held() <= 0 { // no other answer has asked for a pause in the meantime
			return nil
		}
	}
}

func (p *pacer) waitHeld(ctx context.Context) error {
	held := p.held()
	if deadline, ok := ctx.Deadline(); held > p.patience || ok && time.Until(deadline) < held {
		return &fleet.Error{Kind: fleet.KindThrottled, Message: "the provider asked to be left alone", RetryAfter: held}
	}
	return pause(ctx, held)
}

func (p *pacer) waitSpacing(ctx context.Context) error {
	turn := p.bucket.Reserve()
	delay := turn.Delay()
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < delay {
		turn.Cancel()
		return fleet.Errorf(fleet.KindTimeout, "the next call may start in %s, which is too late: %w",
			delay.Round(time.Millisecond), context.DeadlineExceeded)
	}
	if err := pause(ctx, delay); err != nil {
		turn.Cancel()
		return err
	}
	return nil
}

func (p *pacer) held() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Until(p.notBefore)
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
