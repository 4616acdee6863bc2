package shepherdtest

import (
	"context"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// Pull is one lever that was pulled at a device, and had its effect.
type Pull struct {
	ID    fleet.ProviderID
	Lever string
	At    time.Time
}

// Pulls returns the levers that were pulled, in order.
func (p *FakeProvider) Pulls() []Pull {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.pulls)
}

// pull does what a lever does to a device, with the faults before and after it.
func (p *FakeProvider) pull(ctx context.Context, id fleet.ProviderID, lever string, restarts bool, change func(*provider.Entry) error) error {
	capacity, err := p.capacityOf(id)
	if err != nil {
		return err
	}
	if err := p.at(ctx, Pulling, capacity); err != nil {
		return err
	}
	if err := p.changeBy(id, lever, change); err != nil {
		return err
	}
	if restarts {
		p.restart(id)
	}
	return p.at(ctx, Pulled, capacity)
}

// restart restarts a device in its time.
func (p *FakeProvider) restart(id fleet.ProviderID) {
	switch {
	case p.OnRestart == nil || p.RestartLag < 0:
	case p.RestartLag > 0:
		time.AfterFunc(p.RestartLag, func() { p.OnRestart(id) })
	default:
		p.OnRestart(id)
	}
}

func (p *FakeProvider) capacityOf(id fleet.ProviderID) (fleet.CapacityID, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave()
	entry, ok := p.devices[id]
	if !ok {
		return "", fleet.Errorf(fleet.KindNotFound, "no device %s", id)
	}
	return entry.Capacity, nil
}

func (p *FakeProvider) changeBy(id fleet.ProviderID, lever string, change func(*provider.Entry) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry := p.view(id)
	if err := change(&entry); err != nil {
		return err
	}
	p.devices[id] = entry
	p.pulls = append(p.pulls, Pull{ID: id, Lever: lever, At: time.Now()})
	return nil
}

// leave removes the devices whose time to go has come. The caller has the lock.
func (p *FakeProvider) leave() {
	for id, at := range p.leaving {
		if !time.Now().Before(at) {
			delete(p.devices, id)
			delete(p.leaving, id)
		}
	}
}

// device returns a device as it was recorded last, from inside a lever.
func (p *FakeProvider) device(id fleet.ProviderID) (provider.Entry, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry, ok := p.devices[id]
	return entry, ok
}

// deviceNow returns a device as of now.
func (p *FakeProvider) deviceNow(id fleet.ProviderID) (provider.Entry, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave()
	if _, ok := p.devices[id]; !ok {
		return provider.Entry{}, false
	}
	return p.view(id), true
}

// mustBe refuses a device in another state.
func mustBe(status fleet.ProviderStatus) func(*provider.Entry) error {
	return func(entry *provider.Entry) error {
		if entry.Status != status {
			return fleet.Errorf(fleet.KindConflict, "device %s is %s", entry.ID, entry.Status)
		}
		return nil
	}
}

// Reboot restarts a device that is on.
func (p *FakeProvider) Reboot(ctx context.Context, id fleet.ProviderID) error {
	return p.pull(ctx, id, "reboot", true, mustBe(fleet.ProviderStatusActive))
}

// PowerOn switches a device on.
func (p *FakeProvider) PowerOn(ctx context.Context, id fleet.ProviderID) error {
	return p.pull(ctx, id, "power-on", true, func(entry *provider.Entry) error {
		entry.Status = fleet.ProviderStatusActive
		return nil
	})
}

// PowerOff switches a device off.
func (p *FakeProvider) PowerOff(ctx context.Context, id fleet.ProviderID) error {
	return p.pull(ctx, id, "power-off", false, func(entry *provider.Entry) error {
		entry.Status = fleet.ProviderStatusOff
		return nil
	})
}

// PowerCycle switches a device off and on. An error at Pulled leaves it off.
func (p *FakeProvider) PowerCycle(ctx context.Context, id fleet.ProviderID) error {
	err := p.pull(ctx, id, "power-cycle", false, func(entry *provider.Entry) error {
		entry.Status = fleet.ProviderStatusOff
		return nil
	})
	if err != nil {
		return err
	}
	p.Change(id, func(entry *provider.Entry) bool {
		entry.Status = fleet.ProviderStatusActive
		return true
	})
	p.restart(id)
	return nil
}

// Reinstall makes a device anew.
func (p *FakeProvider) Reinstall(ctx context.Context, id fleet.ProviderID) error {
	return p.pull(ctx, id, "reinstall", true, func(entry *provider.Entry) error {
		entry.Status, entry.CreatedAt = fleet.ProviderStatusCreating, time.Now()
		return nil
	})
}

// Release takes a device back, which is gone after Deleting.
func (p *FakeProvider) Release(ctx context.Context, id fleet.ProviderID) error {
	err := p.pull(ctx, id, "release", false, func(entry *provider.Entry) error {
		entry.Status = fleet.ProviderStatusDeleting
		p.leaving[id] = time.Now().Add(p.Deleting)
		return nil
	})
	if fleet.KindOf(err) == fleet.KindNotFound {
		return nil
	}
	return err
}
