package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/builtin"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/prober"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
)

// instance is one configured provider.
type instance struct {
	config   config.Provider
	name     fleet.ProviderName
	provider provider.Provider
	source   string // what its machines belong to
	install  *fleet.InstallRequest
	readAt   time.Time // database time when the configuration had just been read
}

func (i instance) forProvisioner() provisioner.Config {
	c := i.config.Provisioner
	c.Install, c.ReadAt = i.install, i.readAt
	return c
}

func (i instance) forInitializer() initializer.ProviderConfig {
	return initializer.ProviderConfig{TrustFirstUse: i.config.TrustFirstUse, Takeover: i.config.Takeover}
}

func (i instance) forUpdater() updater.Config { return i.config.Updater }

func (i instance) forRecoverer() struct{} { return struct{}{} }

func (i instance) forOperations() operations.ProviderConfig {
	return operations.ProviderConfig{Penalty: i.config.Provisioner.Penalty}
}

func (i instance) forProber() prober.ProviderConfig {
	kind, err := builtin.Find(i.config.Kind)
	return prober.ProviderConfig{List: err == nil && kind.IsList}
}

// sources returns the providers as a loop sees them. configOf picks what concerns the loop.
func sources[C any](providers []instance, configOf func(instance) C) []shepherd.Source[C] {
	all := make([]shepherd.Source[C], len(providers))
	for n, i := range providers {
		all[n] = shepherd.Source[C]{Name: i.name, Provider: i.provider, Config: configOf(i)}
	}
	return all
}

// openProviders makes the configured providers. It asks no provider anything, and leaves the
// database as it is.
func (d *Daemon) openProviders(ctx context.Context, publicKey string) ([]instance, error) {
	var all []instance
	for _, c := range d.config.Providers {
		i, err := d.openProvider(ctx, c, publicKey)
		if err != nil {
			return nil, fmt.Errorf("provider %s: %w", c.Name, err)
		}
		all = append(all, i)
	}
	return all, nil
}

func (d *Daemon) openProvider(ctx context.Context, c config.Provider, publicKey string) (instance, error) {
	i := instance{config: c, name: fleet.ProviderName(c.Name)}
	kind, err := builtin.Find(c.Kind)
	if err != nil {
		return i, err
	}
	i.source = kind.Section(c.Sections).Identity()
	i.provider, err = kind.Open(c.Sections, publicKey, provider.Options{
		Logger: d.logger.With(slog.String("provider", c.Name)), Observer: d.metrics.Provider(i.name), Turns: d.db,
	})
	if err != nil {
		return i, err
	}
	if c.Install != nil {
		if i.install, err = c.Install.Request(fleet.ConfigurationOf(i.name), d.config.Catalogue()); err != nil {
			return i, fmt.Errorf("install: %w", err)
		}
	}
	if !d.worksAtProviders() {
		return i, nil
	}
	err = d.retryAtStart(ctx, func() (err error) {
		if i.readAt, err = d.db.Now(ctx); err != nil {
			return err
		}
		return d.db.CheckProvider(ctx, i.name, c.Kind, i.source)
	})
	return i, err
}

func (d *Daemon) worksAtProviders() bool {
	return slices.ContainsFunc(fleet.Roles(), func(r fleet.Role) bool { return r.AtProviders() && d.config.Has(r) })
}

// registerProviders makes the providers known to the database, where this process works at them:
// who does not brings nothing back that was forgotten.
func (d *Daemon) registerProviders(ctx context.Context) error {
	if !d.worksAtProviders() {
		return nil
	}
	for _, i := range d.providers {
		err := d.retryAtStart(ctx, func() error {
			if err := d.db.RegisterProvider(ctx, i.name, i.config.Kind, i.config.Provisioner.MaxMachines); err != nil {
				return err
			}
			if err := d.db.SetSource(ctx, i.name, i.source); err != nil {
				return err
			}
			return d.db.SetLevers(ctx, i.name, provider.Levers(i.provider))
		})
		if err != nil {
			return fmt.Errorf("provider %s: %w", i.name, err)
		}
	}
	return nil
}

// pacingOf says how calls to a provider are paced; "" for one that is not called.
func pacingOf(providers []instance, name fleet.ProviderName) string {
	for _, i := range providers {
		if paced, ok := i.provider.(provider.Paced); ok && i.name == name {
			return paced.Pacing()
		}
	}
	return ""
}

const (
	// startPatience is how long a start repeats what fails for the moment. A process that was killed
	// may still have a lock, for example.
	startPatience = 30 * time.Second
	// startPause is the wait between two attempts.
	startPause = 500 * time.Millisecond
)

// retryAtStart repeats what fails for the moment, while a start lasts.
func (d *Daemon) retryAtStart(ctx context.Context, do func() error) error {
	began := time.Now()
	for {
		err := do()
		if fleet.KindOf(err) != fleet.KindTemporary || time.Since(began) > startPatience || ctx.Err() != nil {
			return err
		}
		d.logger.WarnContext(ctx, "the database is busy; the start goes on when it is not", slog.Any("err", err))
		timer := time.NewTimer(startPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}
