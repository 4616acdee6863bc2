package shepherd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// Source is one configured provider as a loop sees it.
type Source[C any] struct {
	Name     fleet.ProviderName
	Provider provider.Provider
	// Config is what the provider's configuration says to this loop.
	Config C
}

// Look lists the provider and reads what the BMDB knows of it, both at once. When one fails, the
// other is cancelled.
func (s Source[C]) Look(ctx context.Context, db *bmdb.DB) ([]provider.Entry, bmdb.ProviderView, error) {
	var entries []provider.Entry
	var view bmdb.ProviderView
	group, both := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		if entries, err = s.Provider.List(both); err != nil {
			return fmt.Errorf("list the provider: %w", err)
		}
		return nil
	})
	group.Go(func() (err error) {
		if view, err = db.ViewProvider(both, s.Name); err != nil {
			return fmt.Errorf("view the BMDB: %w", err)
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return nil, bmdb.ProviderView{}, err
	}
	return entries, view, nil
}

// Sources are the providers that a handler works at, each as the handler keeps it between two
// pieces of work.
type Sources[S any] map[fleet.ProviderName]S

// NewSources makes a handler's sources. open checks one and makes what the handler keeps of it. The
// error has every fault that open returned, with the name of the provider.
func NewSources[C, S any](sources []Source[C], open func(Source[C]) (S, error)) (Sources[S], error) {
	kept := make(Sources[S], len(sources))
	var faults []error
	for _, source := range sources {
		opened, err := open(source)
		if err != nil {
			faults = append(faults, fmt.Errorf("provider %s: %w", source.Name, err))
		}
		kept[source.Name] = opened
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return kept, nil
}

// Names lists the providers in order.
func (s Sources[S]) Names() []fleet.ProviderName { return slices.Sorted(maps.Keys(s)) }

// Of returns the source that a piece of work is about: the provider that is its subject, or that
// its machine is from. The error is of kind Invalid.
func (s Sources[S]) Of(work *bmdb.Work) (S, error) {
	name := work.Subject.Provider
	if work.Subject.Machine != "" {
		name = work.Record.Machine.Provider
	}
	source, ok := s[name]
	if !ok {
		return source, fleet.Errorf(fleet.KindInvalid, "provider %q is not configured here", name)
	}
	return source, nil
}
