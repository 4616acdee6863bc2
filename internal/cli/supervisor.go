package cli

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// supervisor is whoever started the control plane as a service, such as systemd. It is told in the
// words of sd_notify(3) when the control plane runs, that it is alive, and when it stops.
type supervisor struct {
	// notify tells it a state; nil: nobody wants to hear.
	notify func(state string) error
	// watchdog is within which time it wants to hear a sign of life; zero: it does not.
	watchdog time.Duration
	// drain is how long an orderly stop may take.
	drain  time.Duration
	logger *slog.Logger
}

// The states.
const (
	stateReady    = "READY=1"
	stateAlive    = "WATCHDOG=1"
	stateStopping = "STOPPING=1"
)

// stopMargin is added to the time of an orderly stop, for what comes before and after the draining.
const stopMargin = 15 * time.Second

// stops is what it is told at the beginning of a stop. It waits for that long then, unless it waits
// for longer by itself (TimeoutStopSec).
func (s supervisor) stops() string {
	return fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d", stateStopping, (s.drain + stopMargin).Microseconds())
}

// readyPoll is how often it is asked whether all has been started.
const readyPoll = 50 * time.Millisecond

// serviced is the part of a control plane that its supervisor hears of.
type serviced interface {
	Running(ctx context.Context) bool
	Alive(ctx context.Context) error
}

// follow tells the supervisor of the control plane until ended is closed. stopping ends when the
// control plane is told to stop; it goes on to give signs of life while it drains.
func (s supervisor) follow(ctx, stopping context.Context, served serviced, ended <-chan struct{}) {
	if s.notify == nil {
		return
	}
	ready := time.NewTicker(readyPoll)
	defer ready.Stop()
	signs := make(<-chan time.Time)
	if s.watchdog > 0 {
		ticker := time.NewTicker(s.watchdog / 3) // one may fail, and one may be late
		defer ticker.Stop()
		signs = ticker.C
	}
	stop := stopping.Done()
	for {
		select {
		case <-ended:
			return
		case <-stop:
			stop = nil
			ready.Stop()
			s.tell(s.stops())
		case <-ready.C:
			if served.Running(ctx) {
				ready.Stop()
				s.tell(stateReady)
			}
		case <-signs:
			s.sign(ctx, served)
		}
	}
}

// sign gives a sign of life, if there is one.
func (s supervisor) sign(ctx context.Context, served serviced) {
	ctx, cancel := context.WithTimeout(ctx, s.watchdog/3)
	defer cancel()
	if err := served.Alive(ctx); err != nil {
		s.logger.WarnContext(ctx, "no sign of life is given to the supervisor", slog.Any("err", err))
		return
	}
	s.tell(stateAlive)
}

func (s supervisor) tell(state string) {
	if err := s.notify(state); err != nil {
		s.logger.Warn("the supervisor cannot be told", slog.String("state", state), slog.Any("err", err))
	}
}
