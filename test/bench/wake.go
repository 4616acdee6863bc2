package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// parker is a handler that says when it was started and puts the machine away for a day.
type parker struct{ started chan time.Time }

// Scope implements shepherd.Handler.
func (p *parker) Scope() shepherd.Scope {
	return shepherd.Scope{Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{provider}, Backoff: longBackoff}
}

// Act implements shepherd.Handler.
func (p *parker) Act(context.Context, *bmdb.Work) shepherd.Outcome {
	p.started <- time.Now()
	return shepherd.Fail{Err: fmt.Errorf("parked"), Backoff: longBackoff}
}

// wakes measures, between two processes, how long it takes from the commit that makes something due
// to its start by a loop of the other one, with and without notifications.
func wakes(ctx context.Context, b *bench) error {
	for _, silent := range []bool{false, true} {
		took, err := b.wakesOnce(ctx, silent)
		if err != nil {
			return err
		}
		p50, p99 := median(took), quantile(took, 0.99)
		what, goal, met := "due to started, with NOTIFY: p50, p99", "≤ 5 ms, ≤ 20 ms", yes(p50 <= 5*time.Millisecond && p99 <= 20*time.Millisecond)
		if silent {
			what, goal, met = "due to started, by polls alone: p50, p99", "", ""
		}
		b.table.add(row{what: what, goal: goal, ours: short(p50) + ", " + short(p99), met: met})
	}
	return nil
}

// maxPolling bounds the measurement without notifications. Each try waits for a poll of the other
// process, which may be a long wait.
const maxPolling = 3 * time.Minute

func (b *bench) wakesOnce(ctx context.Context, silent bool) (took []time.Duration, err error) {
	s, err := b.cycleSubject(ctx, 2*b.batch)
	if err != nil {
		return nil, err
	}
	if err := b.park(ctx, s); err != nil {
		return nil, err
	}
	page, err := s.db.ListMachines(ctx, bmdb.MachineFilter{Limit: 1})
	if err != nil {
		return nil, err
	}
	other, err := open(ctx, b.pg.URL(s.name), postgres.Options{Silent: silent}, false)
	if err != nil {
		return nil, err
	}
	handler := &parker{started: make(chan time.Time, 1)}
	config := shepherd.DefaultConfig()
	config.ClaimRate = fleet.Rate{Every: 10 * time.Millisecond, Burst: 100} // not what is measured
	loop, err := shepherd.New(other, handler, config, shepherd.Options{Host: "there"})
	if err != nil {
		return nil, err
	}
	loopCtx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- loop.Run(loopCtx) }()
	began := time.Now()
	for range b.wakes {
		if silent && time.Since(began) > maxPolling {
			break
		}
		// A random pause, so that the tries do not fall into step with the polls.
		if err := pause(ctx, time.Duration(50+rand.IntN(100))*time.Millisecond); err != nil {
			break
		}
		if _, err := s.db.Retry(ctx, "bench", page[0].ID, ""); err != nil {
			stop()
			return nil, err
		}
		committed := time.Now()
		select {
		case started := <-handler.started:
			took = append(took, max(started.Sub(committed), 0))
		case <-ctx.Done():
		}
	}
	stop()
	if err := <-ended; err != nil {
		return nil, err
	}
	if err := other.Close(); err != nil {
		return nil, err
	}
	b.say("due to started (silent: %t): p50 %s, p99 %s of %d", silent, short(median(took)), short(quantile(took, 0.99)), len(took))
	return took, s.close(ctx, b)
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
