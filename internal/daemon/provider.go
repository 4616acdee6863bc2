package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/builtin"
)

// instance is one configured provider.
type instance struct {
	config.Provider
	name     fleet.ProviderName
	provider provider.Provider
	install  *fleet.InstallRequest
}

// openProviders makes the configured providers and registers them in the database. Nobody is asked
// anything yet.
func (d *Daemon) openProviders(ctx context.Context, publicKey string) ([]instance, error) {
	var instances []instance
	for _, p := range d.config.Providers {
		i := instance{Provider: p, name: fleet.ProviderName(p.Name)}
		kind, err := builtin.Find(p.Kind)
		if err == nil {
			i.provider, err = kind.Open(p.Sections, publicKey, provider.Options{
				Logger: d.logger.With(slog.String("provider", p.Name)), Observer: d.metrics.Provider(i.name),
			})
		}
		if err != nil {
			return nil, fmt.Errorf("provider %s: %w", p.Name, err)
		}
		if p.Install != nil {
			if i.install, err = p.Install.Request("configuration of provider " + p.Name); err != nil {
				return nil, fmt.Errorf("provider %s: install: %w", p.Name, err)
			}
		}
		err = d.patiently(ctx, func() error { return d.db.RegisterProvider(ctx, i.name, p.Kind, p.Provisioner.MaxMachines) })
		if err != nil {
			return nil, fmt.Errorf("provider %s: %w", p.Name, err)
		}
		instances = append(instances, i)
	}
	return instances, nil
}

const (
	// startPatience is how long a start goes on trying what fails for the moment, such as a lock that
	// somebody who was killed still has.
	startPatience = 30 * time.Second
	// startPause is between two attempts.
	startPause = 500 * time.Millisecond
)

// patiently does something at the start, again and again while it fails for the moment.
func (d *Daemon) patiently(ctx context.Context, do func() error) error {
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
