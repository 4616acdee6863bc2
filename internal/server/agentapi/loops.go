package agentapi

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	aliveInterval = 5 * time.Second
	// aliveTimeout bounds one attempt to record that. What is recorded holds for as long.
	aliveTimeout = 3 * aliveInterval
	// cutOffAfter is for how long nothing can be recorded until agents are to call another process. A
	// failover of PostgreSQL is over by then as a rule.
	cutOffAfter   = time.Minute
	sweepSpacing  = time.Second      // the least from one sweep to the next
	sweepInterval = 30 * time.Second // the most
	sweepPage     = 1000
	forgetAfter   = 10 * time.Minute
	// callAgain is how long it may take until an agent has called that did not get through: gRPC
	// connects again at the latest after 144 s, the agent calls again at the latest after 30 s.
	callAgain = 4 * time.Minute
)

// flushEvery flushes again and again until ctx ends.
func (s *Server) flushEvery(ctx context.Context) {
	ticker := time.NewTicker(s.config.FlushInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.flush(ctx)
		}
	}
}

// flush writes the liveness that is in memory, in one batch. A batch that fails is written with the
// next one.
func (s *Server) flush(ctx context.Context) {
	taken := s.agents.takeUnflushed()
	if len(taken) == 0 {
		return
	}
	start := time.Now()
	err := s.db.FlushSeen(ctx, s.agents.seen(taken))
	s.observer.AgentFlush(len(taken), time.Since(start), err)
	if err != nil {
		s.agents.restoreUnflushed(taken)
		s.unflushed.Do(func() {
			s.options.Logger.Warn("cannot write the liveness of agents; it is kept", slog.Int("agents", len(taken)), slog.Any("err", err))
		})
	}
}

// aliveEvery records until ctx ends that agents can reach this process. One that could not for
// cutOffAfter stops serving, so that its agents call another process: while that one records that
// it is up, their silence counts. When this one could record it again, it returns an error, and
// Serve is to be called anew. Until then nothing is recorded: agents do not reach it.
func (s *Server) aliveEvery(ctx context.Context, stopServing context.CancelFunc) error {
	ticker := time.NewTicker(aliveInterval)
	defer ticker.Stop()
	unrecorded := rate.Sometimes{First: 3, Interval: time.Minute}
	var failing time.Time // since then; zero: the last attempt did not fail
	cutOff := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		began := time.Now()
		err := s.aliveOr(ctx, cutOff)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && cutOff:
			return fmt.Errorf("agent API: the database is within reach again, after %s; the port was closed to agents", time.Since(failing).Round(time.Second))
		case err == nil:
			failing = time.Time{}
			continue
		case failing.IsZero():
			failing = began
		}
		unrecorded.Do(func() { s.options.Logger.Warn("cannot record that the agent API is up", slog.Any("err", err)) })
		if !cutOff && s.db.Shared() && time.Since(failing) >= cutOffAfter {
			s.options.Logger.Error("the port for agents is closed until the database is within reach, so that they call another control plane", slog.Any("err", err))
			cutOff = true
			stopServing()
		}
	}
}

// aliveOr makes one attempt of aliveEvery. Of a process that has stopped serving it only finds out
// whether it could record anything.
func (s *Server) aliveOr(ctx context.Context, cutOff bool) error {
	if !cutOff {
		return s.alive(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, aliveTimeout)
	defer cancel()
	return s.db.TryCommit(ctx)
}

// alive follows the policy and the size of the fleet, and records what agents are promised. Whoever
// connects refuses a certificate that has expired. A process that knows that of its own is no
// listener, so that it is not the machines that count as silent. Nor do they while another process
// listens, because they may not reach that one, or while this one has no room for all.
func (s *Server) alive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, aliveTimeout)
	defer cancel()
	env, err := s.db.Environment(ctx)
	if err != nil {
		return err
	}
	if s.agents.noteRestored(env.Restored) {
		s.options.Logger.Warn("the database may have lost what agents were told is recorded: each is to report again", slog.String("evidence", env.Restored))
	}
	agents, installing := s.agents.dropSilent(max(forgetAfter, 4*s.pace.promised()), s.lately())
	s.pace.set(env.Policy.HeartbeatInterval, agents, installing)
	// Agents go by their own clocks: a clock of this host that is wrong says nothing of them.
	now, err := s.db.Now(ctx)
	if err != nil {
		return err
	}
	if fault := s.options.Certificates.Fault(now); fault != "" {
		s.invalid.Do(func() {
			s.options.Logger.Error("agents cannot connect, and their silence does not count", slog.String("cause", fault))
		})
		return s.db.ListenerFull(ctx, callAgain)
	}
	if s.full = s.refusals.Full() || s.full; s.full {
		if err := s.db.ListenerFull(ctx, callAgain); err != nil {
			return err
		}
		s.full = false
	}
	return s.db.ListenerAlive(ctx, aliveInterval, s.pace.promised())
}

// sweepEvery sweeps until ctx ends: soon after the BMDB says that an install became due, and every
// half minute besides.
func (s *Server) sweepEvery(ctx context.Context) {
	var soon <-chan struct{}
	timer := time.NewTimer(sweepSpacing)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-soon:
		}
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil {
			s.options.Logger.Warn("cannot look for machines that want an install", slog.Any("err", err))
		}
		timer.Reset(sweepSpacing)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(sweepInterval - sweepSpacing)
		soon = s.db.Wake(fleet.ProcessInstall)
	}
}

// sweep marks the agents whose machines want an install, and those that may be wanted to leave. It
// reads by the index over states, a page at a time, so its cost grows with the number of machines
// that are being installed or given back, whose agents refuse to install or were not heard yet, or
// that are in quarantine: that state hides the others.
func (s *Server) sweep(ctx context.Context) error {
	if err := s.mark(ctx, hintInstall, fleet.StateInstalling, fleet.StateRefused, fleet.StateStarted); err != nil {
		return err
	}
	return s.mark(ctx, hintLeave, fleet.StateReturning, fleet.StateReleasing, fleet.StateQuarantined)
}

// mark gives the agents of the machines that are in one of the states a hint, a page at a time.
func (s *Server) mark(ctx context.Context, h hint, states ...fleet.State) error {
	filter := bmdb.MachineFilter{States: states, Limit: sweepPage}
	for {
		rows, err := s.db.ListMachines(ctx, filter)
		if err != nil {
			return err
		}
		ids := make([]fleet.MachineID, len(rows))
		for i, row := range rows {
			ids[i] = row.ID
		}
		s.agents.mark(h, ids)
		if len(rows) < sweepPage {
			return nil
		}
		filter.After = ids[len(ids)-1]
	}
}
