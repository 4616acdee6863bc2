package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/thejerf/suture/v4"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Stage says when a component is stopped.
type Stage int

// The stages, in the order of stopping. Starting goes the other way round.
const (
	// Loops claim and do work.
	Loops Stage = iota
	// Listeners answer agents and operators.
	Listeners
	// State is what the others rest on.
	State
	stages
)

// Component is one long-lived part of a process.
type Component struct {
	// Name for people; unique within a tree.
	Name  string
	Stage Stage
	// Serve runs until ctx ends. An error has it called again; nil with ctx alive means that there is
	// nothing left to do. Calls never overlap.
	Serve func(ctx context.Context) error
	// Check asks whether it works, beyond running; may be nil. It is called by whoever asks for
	// health.
	Check func(ctx context.Context) error
}

// Condition is the state of a component.
type Condition string

// The conditions.
const (
	Waiting    Condition = "waiting"
	Running    Condition = "running"
	Restarting Condition = "restarting"
	Stopped    Condition = "stopped"
)

// Health is how one component is.
type Health struct {
	Name      string    `json:"name"`
	Condition Condition `json:"condition"`
	// Healthy: it runs, has run for a moment since it last failed, and its check passed.
	Healthy  bool      `json:"healthy"`
	Since    time.Time `json:"since"`
	Restarts int       `json:"restarts"`
	// Error is what it last failed with, or what its check says.
	Error string `json:"error,omitempty"`
	// works: it runs and its check passed, however short a while ago it failed; or it has nothing left
	// to do.
	works bool
}

// settled is how long a component must have run after a failure before it counts as healthy again.
const settled = 10 * time.Second

// member is a component in a tree.
type member struct {
	Component
	logger *slog.Logger

	mu     sync.Mutex
	health Health
}

// String names the component to suture.
func (m *member) String() string { return m.Name }

// Serve implements suture.Service.
func (m *member) Serve(ctx context.Context) error {
	m.turn(Running, nil)
	err := m.guarded(ctx)
	switch {
	case ctx.Err() != nil:
		m.turn(Stopped, nil)
		if err != nil && !errors.Is(err, context.Canceled) {
			m.logger.Warn("component did not stop cleanly", slog.String("component", m.Name), slog.Any("err", err))
		}
		return ctx.Err()
	case err == nil:
		m.turn(Stopped, nil)
		return suture.ErrDoNotRestart
	}
	m.turn(Restarting, err)
	m.logger.Error("component failed and is started again", slog.String("component", m.Name), slog.Any("err", err))
	return err
}

// guarded turns a panic into an error.
func (m *member) guarded(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
			m.logger.Error("component panicked", slog.String("component", m.Name), slog.Any("err", err),
				slog.String("stack", string(debug.Stack())))
		}
	}()
	return m.Component.Serve(ctx)
}

func (m *member) turn(to Condition, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.health.Condition, m.health.Since = to, time.Now()
	if to == Restarting {
		m.health.Restarts++
	}
	if err != nil {
		m.health.Error = err.Error()
	}
}

// current asks the check, too, unless the component has just failed.
func (m *member) current(ctx context.Context) Health {
	m.mu.Lock()
	h := m.health
	m.mu.Unlock()
	switch h.Condition {
	case Stopped:
		h.Healthy, h.works = true, true
	case Running:
		h.works = true
		h.Healthy = h.Restarts == 0 || time.Since(h.Since) >= settled
		if h.Healthy {
			h.Error = ""
		}
	}
	if h.Condition == Running && m.Check != nil {
		if err := m.Check(ctx); err != nil {
			h.Healthy, h.works, h.Error = false, false, err.Error()
		}
	}
	return h
}

func (c Component) validate() error {
	switch {
	case c.Name == "":
		return fleet.Errorf(fleet.KindInvalid, "a component needs a name")
	case c.Serve == nil:
		return fleet.Errorf(fleet.KindInvalid, "component %s has nothing to run", c.Name)
	case c.Stage < 0 || c.Stage >= stages:
		return fleet.Errorf(fleet.KindInvalid, "component %s has no stage", c.Name)
	}
	return nil
}
