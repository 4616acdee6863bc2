package sim

import (
	"context"
	"errors"
)

// World is a simulated world. Its methods may be called concurrently.
type World struct {
	cfg Config
}

// Open makes the world of cfg.Dir ready: it reads its journal, makes its images, listens. Nothing happens in it, and nobody is
// answered, before Run.
func Open(_ context.Context, cfg Config) (*World, error) {
	if cfg.Dir == "" {
		return nil, errors.New("Dir must be set")
	}
	return &World{cfg: cfg}, nil
}

// Run lets the world live until ctx ends, then stops it without a trace in its journal: what was on stays on for the next
// Open. It returns nil when ctx ended.
func (w *World) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Close stops Run, kills every process of the world, and releases its directory. It may be called more than once.
func (w *World) Close() error { return nil }

// URL is where the API is found, without a trailing slash: http://address/metal/v1.
func (w *World) URL() string { return "" }

// Token is the API key of the world's only user.
func (w *World) Token() string { return "" }

// ProjectID is the project that owns all hardware reservations.
func (w *World) ProjectID() string { return "" }

// SSHPort is the port on which every machine answers.
func (w *World) SSHPort() int { return 0 }

// Images lists what the world serves, in the order of Config.Images.
func (w *World) Images() []Image { return nil }

// Status says what is in the world and what has happened in it. The same is served as JSON at /sim/v1/status.
func (w *World) Status() Status { return Status{} }
