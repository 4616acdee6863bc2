// Package shepherdtest holds what the tests of several loops share: a provider that lives in memory
// and keeps the contract, with faults at every step. It is linked into no binary.
package shepherdtest

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// Point is a place in the conversation with a provider.
type Point string

// The points.
const (
	// Listing and Asking are before a list and a direct question; an error is their answer.
	Listing Point = "list"
	Asking  Point = "get"
	Finding Point = "find"
	// Creating is at the start of a creation, before anything is recorded or called.
	Creating Point = "create"
	// Sending is after the call was recorded and before it reaches the provider: an error means that
	// nobody can tell whether it did.
	Sending Point = "send"
	// Sent is after the provider did what it was asked: an error means that the reply was lost.
	Sent Point = "sent"
	// Refusing is after the call was recorded: an error is the provider's definite answer.
	Refusing Point = "refuse"
	// Created is after a creation that succeeded, before its caller knows.
	Created Point = "created"
	// Pulling is before a lever is pulled: an error is the provider's answer, and nothing happens.
	// Pulled is after it was: an error means that the reply was lost.
	Pulling Point = "pull"
	Pulled  Point = "pulled"
)

// FakeProvider is a provider in memory: reservations, and devices on them that become active after
// a while. It is safe for concurrent use. Its devices stay when the process that made them is
// killed.
type FakeProvider struct {
	// Provisioning is how long a device takes to become active.
	Provisioning time.Duration
	// Address gives the n-th device its address; nil: one of 127.0.0.0/8.
	Address func(n int) netip.Addr
	// Latency of every call.
	Latency time.Duration
	// Inject says that devices get the host keys of their requests.
	Inject bool
	// Hook, when set, is called at every point; capacity is empty where there is none.
	Hook func(point Point, capacity fleet.CapacityID) error
	// Hide leaves entries out of lists, and out of nothing else.
	Hide func(provider.Entry) bool

	// Deleting is how long a device that was released stays.
	Deleting time.Duration
	// OnRestart, when set, is called when a device was restarted.
	OnRestart func(id fleet.ProviderID)
	// RestartLag is how long after it has accepted a restart the provider makes it; negative: it never
	// does.
	RestartLag time.Duration

	mu       sync.Mutex
	pulls    []Pull
	leaving  map[fleet.ProviderID]time.Time
	capacity []fleet.CapacityID
	devices  map[fleet.ProviderID]provider.Entry
	serial   int
	creates  []time.Time
}

var (
	_ provider.Provider = (*FakeProvider)(nil)
	_ provider.Injector = (*FakeProvider)(nil)

	_ provider.Rebooter    = (*FakeProvider)(nil)
	_ provider.Powerer     = (*FakeProvider)(nil)
	_ provider.Reinstaller = (*FakeProvider)(nil)
	_ provider.Releaser    = (*FakeProvider)(nil)
)

// NewFakeProvider returns a provider with so many free reservations, named capacity-000 and on.
func NewFakeProvider(reservations int) *FakeProvider {
	p := &FakeProvider{devices: make(map[fleet.ProviderID]provider.Entry), leaving: make(map[fleet.ProviderID]time.Time)}
	for i := range reservations {
		p.capacity = append(p.capacity, fleet.CapacityID(fmt.Sprintf("capacity-%03d", i)))
	}
	return p
}

// Kind returns "fake".
func (p *FakeProvider) Kind() string { return "fake" }

// InjectsHostKey returns Inject.
func (p *FakeProvider) InjectsHostKey() bool { return p.Inject }

func (p *FakeProvider) at(ctx context.Context, point Point, capacity fleet.CapacityID) error {
	if p.Latency > 0 && (point == Listing || point == Asking || point == Finding || point == Sending) {
		select {
		case <-time.After(p.Latency):
		case <-ctx.Done():
		}
	}
	if p.Hook != nil {
		if err := p.Hook(point, capacity); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// List returns the devices and the free reservations.
func (p *FakeProvider) List(ctx context.Context) ([]provider.Entry, error) {
	if err := p.at(ctx, Listing, ""); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave()
	var entries []provider.Entry
	taken := make(map[fleet.CapacityID]bool)
	for id := range p.devices {
		entry := p.view(id)
		taken[entry.Capacity] = true
		entries = append(entries, entry)
	}
	for _, capacity := range p.capacity {
		if !taken[capacity] {
			entries = append(entries, provider.Entry{Availability: fleet.AvailabilityKnownUnused, Capacity: capacity})
		}
	}
	if p.Hide != nil {
		entries = slices.DeleteFunc(entries, p.Hide)
	}
	slices.SortFunc(entries, provider.CompareEntries)
	return entries, nil
}

// ListMachines returns the devices.
func (p *FakeProvider) ListMachines(ctx context.Context) ([]provider.Entry, error) {
	entries, err := p.List(ctx)
	return provider.Machines(entries), err
}

// view is a device as of now. The caller has the lock.
func (p *FakeProvider) view(id fleet.ProviderID) provider.Entry {
	entry := p.devices[id]
	if entry.Status == fleet.ProviderStatusCreating && time.Since(entry.CreatedAt) >= p.Provisioning {
		entry.Status = fleet.ProviderStatusActive
	}
	entry.Tokens = slices.Clone(entry.Tokens)
	return entry
}

// Get returns a device.
func (p *FakeProvider) Get(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	if err := p.at(ctx, Asking, ""); err != nil {
		return provider.Entry{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave()
	if _, ok := p.devices[id]; !ok {
		return provider.Entry{}, fleet.Errorf(fleet.KindNotFound, "no device %s", id)
	}
	return p.view(id), nil
}

// FindByToken returns the device with the token.
func (p *FakeProvider) FindByToken(ctx context.Context, capacity fleet.CapacityID, token fleet.Token) (provider.Entry, error) {
	if err := p.at(ctx, Finding, capacity); err != nil {
		return provider.Entry{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, device := range p.devices {
		if slices.Contains(device.Tokens, token) {
			return p.view(id), nil
		}
	}
	return provider.Entry{}, fleet.Errorf(fleet.KindNotFound, "no device carries %s", token)
}

// Create puts a device on a reservation.
func (p *FakeProvider) Create(ctx context.Context, request provider.CreateRequest) (provider.Entry, error) {
	if err := p.at(ctx, Creating, request.Capacity); err != nil {
		return provider.Entry{}, err
	}
	if entry, ok := p.On(request.Capacity); ok {
		if slices.Contains(entry.Tokens, request.Token) {
			return entry, p.at(ctx, Created, request.Capacity)
		}
		return provider.Entry{}, fleet.Errorf(fleet.KindRaceLost, "%s is occupied by %s", request.Capacity, entry.ID)
	}
	if err := BeforeCall(ctx, request); err != nil {
		return provider.Entry{}, err
	}
	for _, point := range []Point{Refusing, Sending} {
		if err := p.at(ctx, point, request.Capacity); err != nil {
			return provider.Entry{}, err
		}
	}
	entry, err := p.Land(request.Capacity, request.Token)
	if err != nil {
		return provider.Entry{}, err
	}
	for _, point := range []Point{Sent, Created} {
		if err := p.at(ctx, point, request.Capacity); err != nil {
			return provider.Entry{}, err
		}
	}
	return entry, nil
}

// BeforeCall calls the one of the request, until it does not put the call off any more.
func BeforeCall(ctx context.Context, request provider.CreateRequest) error {
	for {
		err := request.BeforeCall(ctx)
		wait, off := provider.PutOffBy(err)
		if !off {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return provider.Queued(fleet.ContextError(ctx))
		}
	}
}

// Land is a request for a device that reaches the provider, now or late. Without a token it is
// somebody else's.
func (p *FakeProvider) Land(capacity fleet.CapacityID, tokens ...fleet.Token) (provider.Entry, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.capacity, capacity) {
		return provider.Entry{}, fleet.Errorf(fleet.KindNotFound, "no reservation %s", capacity)
	}
	for _, device := range p.devices {
		if device.Capacity == capacity {
			return provider.Entry{}, fleet.Errorf(fleet.KindConflict, "%s is not free", capacity)
		}
	}
	now := time.Now()
	p.serial++
	address := p.Address
	if address == nil {
		address = loopback
	}
	p.creates = append(p.creates, now)
	id := fleet.ProviderID(fmt.Sprintf("device-%03d", p.serial))
	p.devices[id] = provider.Entry{
		Availability: fleet.AvailabilityKnownUsed, ID: id, Capacity: capacity, Status: fleet.ProviderStatusCreating,
		Hostname: "host-" + string(id), Address: address(p.serial), Tokens: slices.Clone(tokens), CreatedAt: now,
	}
	return p.view(id), nil
}

func loopback(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(n >> 16), byte(n >> 8), byte(n)})
}

// On returns the device on a reservation.
func (p *FakeProvider) On(capacity fleet.CapacityID) (provider.Entry, bool) {
	for _, device := range p.Devices() {
		if device.Capacity == capacity {
			return device, true
		}
	}
	return provider.Entry{}, false
}

// Devices returns all devices in the order of their creation.
func (p *FakeProvider) Devices() []provider.Entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	var devices []provider.Entry
	for id := range p.devices {
		devices = append(devices, p.view(id))
	}
	slices.SortFunc(devices, func(a, b provider.Entry) int { return cmp.Compare(a.ID, b.ID) })
	return devices
}

// Change changes a device; false from change deletes it.
func (p *FakeProvider) Change(id fleet.ProviderID, change func(*provider.Entry) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry := p.view(id)
	if change(&entry) {
		p.devices[id] = entry
	} else {
		delete(p.devices, id)
	}
}

// RemoveCapacity takes a reservation away; a device on it stays.
func (p *FakeProvider) RemoveCapacity(capacity fleet.CapacityID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.capacity = slices.DeleteFunc(p.capacity, func(c fleet.CapacityID) bool { return c == capacity })
}

// Creates returns when each device was created.
func (p *FakeProvider) Creates() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.creates)
}
