package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/trust"
)

const (
	// askEvery is how long a reading of the server's clock is counted on from.
	askEvery = 10 * time.Second
	// wasSet is how much the server's clock must differ from what was expected to count as set by
	// somebody.
	wasSet = time.Second
)

// serverTime is database time, kept between round trips.
type serverTime struct {
	logger *slog.Logger
	clock  *trust.Clock

	mu    sync.Mutex
	asked bool
	// The server said at some moment between two readings of the clock.
	said        time.Time
	sent, heard time.Duration
	// last that was given out, as the earlier reading.
	last time.Time
}

func newServerTime(logger *slog.Logger) *serverTime {
	return &serverTime{logger: logger, clock: trust.NewClock()}
}

// fresh says whether the last round trip is recent enough.
func (s *serverTime) fresh() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked && s.clock.Elapsed()-s.heard < askEvery
}

// learn takes in an answer of the server.
func (s *serverTime) learn(ctx context.Context, said time.Time, sent, heard time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked {
		expected := s.said.Add(heard - s.heard)
		off := said.Sub(expected)
		// The answer before may have come back late, and so may this one.
		if off > wasSet+s.heard-s.sent || off < -wasSet-(heard-sent) {
			s.logger.WarnContext(ctx, "the clock of the database server was set", slog.Duration("by", off))
			s.last = time.Time{}
		}
	}
	s.asked, s.said, s.sent, s.heard = true, said, sent, heard
}

// earliest is what database time is at least. It does not go back, unless the server's clock was
// set.
func (s *serverTime) earliest() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.said.Add(s.clock.Elapsed() - s.heard).Truncate(time.Microsecond)
	if now.Before(s.last) {
		now = s.last
	}
	s.last = now
	return now
}

// latest is what database time is at most.
func (s *serverTime) latest() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said.Add(s.clock.Elapsed() - s.sent).Truncate(time.Microsecond).Add(time.Microsecond)
}

// now returns the time of a transaction that is about to begin.
func (e *Engine) now(ctx context.Context, t *transaction) (time.Time, error) {
	if t.extends || !e.time.fresh() {
		if err := e.ask(ctx, t.pool); err != nil {
			return time.Time{}, err
		}
	}
	if t.extends {
		return e.time.latest(), nil
	}
	return e.time.earliest(), nil
}

// ask asks the server for its time.
func (e *Engine) ask(ctx context.Context, p *pool) error {
	conn, err := p.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Release()
	var micros int64
	sent := e.time.clock.Elapsed()
	err = conn.QueryRow(ctx, "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)").Scan(&micros)
	if err != nil {
		return fmt.Errorf("ask the database server for its time: %w", err)
	}
	e.time.learn(ctx, time.UnixMicro(micros).UTC(), sent, e.time.clock.Elapsed())
	return nil
}
