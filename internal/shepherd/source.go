package shepherd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

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

// Look reads what the BMDB knows of the provider and then one of the provider's lists. So a list
// that fails costs one read, and no machine that the BMDB knows is newer than the list. A
// machine that the list lacks counts as Releasing also where that is so only after the list: a
// list may wait long for its turn, and the calls that give machines back have turns meanwhile. In
// a list of hosts, an entry that may be another machine's by now is Invalid.
func (s Source[C]) Look(
	ctx context.Context, db *bmdb.DB, list func(context.Context) ([]provider.Entry, error),
) ([]provider.Entry, bmdb.ProviderView, error) {
	view, err := db.ViewProvider(ctx, s.Name)
	if err != nil {
		return nil, bmdb.ProviderView{}, fmt.Errorf("view the BMDB: %w", err)
	}
	entries, err := list(ctx)
	if err != nil {
		return nil, bmdb.ProviderView{}, fmt.Errorf("list the provider: %w", err)
	}
	if err := s.excuse(ctx, db, entries, &view); err != nil {
		return nil, bmdb.ProviderView{}, fmt.Errorf("view the BMDB again: %w", err)
	}
	if provider.Keeps(s.Provider) {
		leaveRenumbered(entries, view)
	}
	return entries, view, nil
}

// leaveRenumbered makes those entries of a list of hosts Invalid whose machine is recorded with an
// address that the list gives to a host which may become another machine, or to a machine whose
// entry it makes Invalid. Perhaps somebody has renumbered the hosts, and that host is the machine.
// The records tell it, and must not be written over before the list has changed again.
func leaveRenumbered(entries []provider.Entry, view bmdb.ProviderView) {
	recorded := make(map[fleet.ProviderID]netip.Addr, len(view.Machines))
	for _, m := range view.Machines {
		recorded[m.ProviderID] = netip.Addr{}
		if m.Provided != nil {
			recorded[m.ProviderID] = m.Provided.Address
		}
	}
	left := make(map[netip.Addr][]int) // machines, by the address that their entries have no more
	var next []int                     // entries that may be another machine's
	for i, e := range entries {
		was, machine := recorded[e.ID]
		switch {
		case was.IsValid() && was != e.Address:
			left[was] = append(left[was], i)
		case !machine && !view.Penalties[e.Capacity].ForEver():
			next = append(next, i)
		}
	}
	for len(next) > 0 {
		other := entries[next[0]]
		for _, i := range left[other.Address] {
			why := fmt.Sprintf("host %q had the address %s, which the list gives to host %q now: somebody has changed their ids, perhaps", entries[i].ID, other.Address, other.ID)
			entries[i].Invalid = cmp.Or(entries[i].Invalid, why)
		}
		next = append(next[1:], left[other.Address]...)
		delete(left, other.Address)
	}
}

// excuse marks those machines as Releasing that the list lacks, and that are being given back by
// now, or are not there any more. Those that are known to be gone are none: there are some for
// weeks.
func (s Source[C]) excuse(ctx context.Context, db *bmdb.DB, entries []provider.Entry, view *bmdb.ProviderView) error {
	listed := make(map[fleet.ProviderID]bool, len(entries))
	for _, entry := range entries {
		listed[entry.ID] = true
	}
	lacks := func(m bmdb.ProviderMachine) bool {
		known := m.Provided != nil && m.Provided.Status == fleet.ProviderStatusGone
		return !m.Releasing && !known && !listed[m.ProviderID]
	}
	if !slices.ContainsFunc(view.Machines, lacks) {
		return nil
	}
	now, err := db.ViewProvider(ctx, s.Name)
	if err != nil {
		return err
	}
	stays := make(map[fleet.MachineID]bool, len(now.Machines))
	for _, m := range now.Machines {
		stays[m.ID] = !m.Releasing
	}
	for i, m := range view.Machines {
		view.Machines[i].Releasing = m.Releasing || lacks(m) && !stays[m.ID]
	}
	return nil
}

const (
	// AskLimit is how long a question about one machine may take: the wait for its turn, and the
	// provider's answer.
	AskLimit = 30 * time.Second
	// answerLimit is how long a request must have gone without an answer to blame the provider.
	answerLimit = 10 * time.Second
)

// Moved says that the list of a provider that keeps its machines gives one of them another address
// than the one that is recorded; "" when it does not. Only a pass sees whether that is another
// host, and records it if it is not (see Look): until then nothing is done there.
func (s Source[C]) Moved(was *fleet.Provided, entry provider.Entry) string {
	if !provider.Keeps(s.Provider) || entry.Invalid != "" || was == nil || !was.Address.IsValid() || entry.Address == was.Address {
		return ""
	}
	return fmt.Sprintf("the list gives it the address %s, and that is not recorded yet; if it stays so, `ironherd provider show %s` tells why", entry.Address, s.Name)
}

// Ask asks the provider for one machine. One that hangs is left, with an error of kind Timeout: it
// would keep a slot of the loop from the machines of other providers. So is a question whose turn
// does not come, or comes too late; of its error provider.WasQueued is true.
func (s Source[C]) Ask(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	late := fleet.Errorf(fleet.KindTimeout, "provider %s did not answer within %s", s.Name, AskLimit)
	limited, cancel := context.WithTimeoutCause(ctx, AskLimit, late)
	defer cancel()
	var sent atomic.Pointer[time.Time] // for the first time: what comes after it was answered badly
	limited = provider.WithBeforeSend(limited, func(context.Context) error {
		now := time.Now()
		sent.CompareAndSwap(nil, &now)
		return nil
	})
	entry, err := s.Provider.Get(limited, id)
	tooLate := func() bool {
		at := sent.Load()
		return limited.Err() != nil && at != nil && time.Since(*at) < answerLimit
	}
	switch {
	case err == nil || ctx.Err() != nil:
	case provider.WasQueued(err) || tooLate():
		err = provider.Queued(fleet.Errorf(fleet.KindTimeout, "too many calls to provider %s wait for their turn: this one did not get it in time%s", s.Name, s.paced()))
	case limited.Err() != nil && !errors.Is(err, late):
		err = fmt.Errorf("%w: %w", late, err)
	}
	return entry, err
}

// paced says how calls to the provider are paced, where that is known.
func (s Source[C]) paced() string {
	if paced, ok := s.Provider.(provider.Paced); ok {
		return " (" + paced.Pacing() + ")"
	}
	return ""
}

// Sources are the providers that a handler works at, each as the handler keeps it between two
// pieces of work.
type Sources[S any] map[fleet.ProviderName]S

// Plain makes the sources of a handler that keeps nothing between two pieces of work.
func Plain[C any](sources []Source[C]) Sources[Source[C]] {
	kept := make(Sources[Source[C]], len(sources))
	for _, source := range sources {
		kept[source.Name] = source
	}
	return kept
}

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
