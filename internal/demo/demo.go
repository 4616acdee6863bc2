package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/internal/sim"
	"github.com/ironherd/ironherd/internal/token"
)

// Demo is a world and its control plane, ready to run.
type Demo struct {
	options Options
	dir     string
	begun   time.Time

	world   *sim.World
	guard   *guard
	virtual *virtual
	daemon  *daemon.Daemon
	config  config.Config
	ownsDir bool
	// lock is that of a directory of its own.
	lock *os.File

	closeOnce sync.Once
	closeErr  error
}

// Open makes world and control plane. The options must be valid (see Options.Validate), and the
// caller must call Close.
func Open(ctx context.Context, options Options, logger *slog.Logger) (*Demo, error) {
	d := &Demo{options: options.withDefaults(), begun: time.Now()}
	if err := d.open(ctx, logger); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Demo) open(ctx context.Context, logger *slog.Logger) (err error) {
	if err := d.makeDir(logger); err != nil {
		return err
	}
	if d.options.Virtual > 0 {
		err = d.openVirtual(ctx)
	} else {
		err = d.openWorld(ctx, logger)
	}
	if err != nil {
		return err
	}
	d.config.OperatorAPI.Listen = d.options.Listen
	if err := d.makeToken(); err != nil {
		return err
	}
	d.daemon, err = daemon.Open(ctx, d.config, daemon.Options{
		Logger: logger, Version: d.options.Version, OperatorsKey: "--listen",
		Unsynced: d.ownsDir, // the directory is removed at the end, so nothing must survive a power cut
	})
	return err
}

// openVirtual starts virtual machines in the place of a world.
func (d *Demo) openVirtual(ctx context.Context) (err error) {
	if d.virtual, err = openVirtual(ctx, d.options.Virtual, d.dir); err != nil {
		return err
	}
	d.config, err = d.virtual.settings(filepath.Join(d.dir, "herd"), d.options.AgentExecutable)
	return err
}

func (d *Demo) openWorld(ctx context.Context, logger *slog.Logger) (err error) {
	worldConfig := d.options.worldConfig(d.dir)
	worldConfig.Logger = logger.With(slog.String("component", "world"))
	if d.options.PreloadAgent {
		if worldConfig.Preload, err = Preload(d.options.AgentExecutable); err != nil {
			return err
		}
	}
	if d.options.RealAgents > 0 {
		if d.guard, err = startGuard(worldConfig.Dir); err != nil {
			return err
		}
	}
	if d.world, err = OpenWorld(ctx, worldConfig); err != nil {
		return err
	}
	tokenFile := filepath.Join(d.dir, "world", "token")
	if err := os.WriteFile(tokenFile, []byte(d.world.Token()+"\n"), 0o600); err != nil {
		return fmt.Errorf("store the world's token: %w", err)
	}
	d.config = Settings(filepath.Join(d.dir, "herd"), d.options.AgentExecutable, d.options.Machines, Describe(d.world, tokenFile))
	d.config.Providers[0].Install.SeenUp, d.config.Providers[0].Install.Watch = d.options.SeenUp.String(), d.options.SeenUp.Watch
	return nil
}

// makeToken makes a token to look around with. A demo in a directory that is kept makes a new one
// each time.
func (d *Demo) makeToken() error {
	const name = "demo"
	tokens := d.config.OperatorAPI.TokensFile
	if err := token.Revoke(tokens, name); err != nil && fleet.KindOf(err) != fleet.KindNotFound {
		return err
	}
	text, _, err := token.Create(tokens, name, token.Viewer, 30*24*time.Hour)
	if err != nil {
		return err
	}
	if err := secret.Write(d.TokenFile(), []byte(text+"\n"), true); err != nil {
		return fmt.Errorf("store the token: %w", err)
	}
	return nil
}

// TokenFile is where the token of somebody is who may look at everything.
func (d *Demo) TokenFile() string { return filepath.Join(d.dir, "viewer.token") }

// CAFile is what callers over TLS verify the control plane by.
func (d *Demo) CAFile() string { return filepath.Join(d.config.Dir, config.OperatorCAName) }

// OpenWorld opens a world as sim.Open does. Its errors have the kinds of package fleet.
func OpenWorld(ctx context.Context, c sim.Config) (*sim.World, error) {
	world, err := sim.Open(ctx, c)
	switch {
	case errors.Is(err, sim.ErrInUse):
		return nil, fleet.Errorf(fleet.KindInUse, "%w", err)
	case err != nil:
		return nil, fmt.Errorf("make the world: %w", err)
	}
	return world, nil
}

// Describe returns where a world is, for Settings.
func Describe(world *sim.World, tokenFile string) WorldAddress {
	w := WorldAddress{URL: world.URL(), TokenFile: tokenFile, ProjectID: world.ProjectID(), SSHPort: world.SSHPort()}
	if images := world.Images(); len(images) > 0 {
		w.Image = images[0]
	}
	return w
}

func (d *Demo) makeDir(logger *slog.Logger) (err error) {
	if d.options.Dir == "" {
		removeRemains(os.TempDir(), logger)
		d.ownsDir = true
		d.dir, d.lock, err = makeOwn(os.TempDir())
		return err
	}
	if d.dir, err = filepath.Abs(d.options.Dir); err != nil {
		return fleet.Errorf(fleet.KindInvalid, "--dir: %w", err)
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return fleet.Errorf(fleet.KindInvalid, "--dir: %w", err)
	}
	return nil
}

// Config returns the configuration of the control plane.
func (d *Demo) Config() config.Config { return d.config }

// Addresses returns where the control plane is reached.
func (d *Demo) Addresses() daemon.Addresses { return d.daemon.Addresses() }

// Consoles are the files that the serial consoles of virtual machines are written to; none of a
// simulated world.
func (d *Demo) Consoles() []string {
	if d.virtual == nil {
		return nil
	}
	return d.virtual.consoles()
}

// Dir returns where everything is kept.
func (d *Demo) Dir() string { return d.dir }

// Run runs world and control plane until ctx ends, until watch returns, or until one of them fails.
// The context of watch ends when the demo does.
func (d *Demo) Run(ctx context.Context, watch func(ctx context.Context) error) error {
	worldCtx, stopWorld := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorld()
	world := make(chan error, 1)
	go func() {
		if d.virtual != nil {
			world <- d.virtual.run(worldCtx)
		} else {
			world <- d.world.Run(worldCtx)
		}
	}()

	running, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(running)
	group.Go(func() error { return prefixed("control plane", d.daemon.Run(running, nil)) })
	group.Go(func() error {
		defer stop()
		return watch(running)
	})
	group.Go(func() error { // a world that ends by itself ends the demo
		select {
		case err := <-world:
			world <- nil
			return prefixed("world", errors.Join(err, errWorldEnded))
		case <-running.Done():
			return nil
		}
	})
	err := group.Wait() // the world outlives the control plane, which needs it to drain
	stopWorld()
	return errors.Join(err, prefixed("world", <-world))
}

var errWorldEnded = errors.New("it ended by itself")

// prefixed names the part of the demo that failed.
func prefixed(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Close ends everything and, unless the directory is the caller's, removes it.
func (d *Demo) Close() error {
	d.closeOnce.Do(func() {
		var errs []error
		if d.daemon != nil {
			errs = append(errs, d.daemon.Close())
		}
		if d.virtual != nil {
			errs = append(errs, d.virtual.close())
		}
		if d.world != nil {
			errs = append(errs, d.world.Close())
		}
		if d.guard != nil {
			d.guard.close()
		}
		if d.ownsDir && d.dir != "" {
			errs = append(errs, removeAll(d.dir))
		}
		if d.lock != nil {
			errs = append(errs, d.lock.Close())
		}
		d.closeErr = errors.Join(errs...)
	})
	return d.closeErr
}

// removeParallelism is how many machines' files are removed at the same time. A machine has
// hundreds of files, and a fleet hundreds of thousands.
const removeParallelism = 8

func removeAll(dir string) error {
	var group errgroup.Group
	group.SetLimit(removeParallelism)
	hosts, _ := filepath.Glob(filepath.Join(dir, "world", "hosts", "*")) // a fixed pattern
	for _, host := range hosts {
		group.Go(func() error { return os.RemoveAll(host) })
	}
	return errors.Join(group.Wait(), os.RemoveAll(dir))
}
