package rehearsal

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// provided is a provider of the world, whatever it can do.
type provided interface {
	provider.Provider
	base() *source
}

// source is what all simulated providers have in common: capacity, and devices on it.
type source struct {
	world *world
	// number of the provider, from 0.
	number int
	name   fleet.ProviderName
	list   bool
	// installs: an operating system is asked for on every machine that is created.
	installs bool

	capacity []fleet.CapacityID
	devices  []*device // in the order of their creation
	serial   int
	// stale is what lists say while they are stale; nil: they are not.
	stale []provider.Entry
	// pacer paces the calls, of which each process may have so many in flight. A page of a list has so
	// many rows. 0: no limit.
	pacer              *provider.Pacer
	inFlight, pageSize int
	// calls counts the calls of each second, for the peak.
	calls, peak int
	second      int64
	total       map[string]int
	created     []time.Time
	// paused is since when a person keeps machines from being created; zero: nobody does.
	paused time.Time
}

// device is one machine at the provider.
type device struct {
	source   *source
	id       fleet.ProviderID
	capacity fleet.CapacityID
	status   fleet.ProviderStatus
	tokens   []fleet.Token
	machine  fleet.MachineID // for which it was created
	created  time.Time
	host     *host
	gone     bool
	releases int
}

// hostname is what people call it.
func (d *device) hostname() string { return "host-" + string(d.capacity) }

func (s *source) base() *source { return s }

// metal sells machines and has every lever.
type metal struct{ *source }

// hostList is a list of hosts, which stay where they are.
type hostList struct{ *source }

var (
	_ provided             = metal{}
	_ provider.Rebooter    = metal{}
	_ provider.Powerer     = metal{}
	_ provider.Reinstaller = metal{}
	_ provider.Releaser    = metal{}
	_ provided             = hostList{}
	_ provider.Keeper      = hostList{}
)

func newSource(w *world, p Provider, machines int) provided {
	s := &source{
		world: w, number: len(w.providers), name: p.Name, list: p.List, installs: p.Provisioner.Install != nil, total: make(map[string]int),
		pacer: w.pacer(p), inFlight: p.Limits.InFlight, pageSize: p.PageSize,
	}
	for i := range machines {
		s.capacity = append(s.capacity, fleet.CapacityID(fmt.Sprintf("%s-%04d", p.Name, i)))
	}
	if !p.List {
		return metal{s}
	}
	for _, capacity := range s.capacity { // the hosts are there already
		d := s.land(capacity, "", "")
		d.status = fleet.ProviderStatusActive
	}
	return hostList{s}
}

// KeepsMachines implements provider.Keeper.
func (l hostList) KeepsMachines() bool { return true }

// Kind implements provider.Provider.
func (s *source) Kind() string {
	if s.list {
		return "simulated-list"
	}
	return "simulated"
}

// find returns a device by its ID.
func (s *source) find(id fleet.ProviderID) *device {
	for _, d := range s.devices {
		if d.id == id {
			return d
		}
	}
	return nil
}

// on returns the device on a piece of capacity.
func (s *source) on(capacity fleet.CapacityID) *device {
	for _, d := range s.devices {
		if d.capacity == capacity {
			return d
		}
	}
	return nil
}

// land makes a device.
func (s *source) land(capacity fleet.CapacityID, token fleet.Token, machine fleet.MachineID) *device {
	w := s.world
	s.serial++
	n := s.serial
	d := &device{
		source: s, id: fleet.ProviderID(fmt.Sprintf("%s-device-%d", s.name, n)), capacity: capacity, machine: machine,
		status: fleet.ProviderStatusCreating, created: w.now,
	}
	if s.list {
		d.id = fleet.ProviderID(capacity)
	}
	if token != "" {
		d.tokens = []fleet.Token{token}
	}
	s.devices = append(s.devices, d)
	d.host = newHost(w, d, n)
	return d
}

// index is the number of the device's piece of capacity.
func (d *device) index() int { return slices.Index(d.source.capacity, d.capacity) }

// racks is how many racks the machines of a provider are in.
const racks = 3

// rack is the number of the rack in which the device is, from 0. In a scenario the racks are filled
// evenly, also where max_machines leaves most of the capacity unused.
func (d *device) rack() int {
	if d.source.world.plan.Lead {
		return d.index() % racks
	}
	return d.index() * racks / len(d.source.capacity)
}

// entry is what the provider says of a device.
func (d *device) entry() provider.Entry {
	e := provider.Entry{
		Availability: fleet.AvailabilityKnownUsed, ID: d.id, Capacity: d.capacity, Status: d.status, Detail: string(d.status),
		Hostname: d.hostname(), Address: d.host.address, Location: fmt.Sprintf("rack-%d", d.rack()+1),
		Tokens: slices.Clone(d.tokens), CreatedAt: d.created,
	}
	if d.source.list {
		e.Availability, e.CreatedAt = fleet.AvailabilityPossiblyUsed, time.Time{}
	}
	return e
}

// entries is the whole list.
func (s *source) entries() []provider.Entry {
	taken := make(map[fleet.CapacityID]bool)
	var list []provider.Entry
	for _, d := range s.devices {
		taken[d.capacity] = true
		list = append(list, d.entry())
	}
	for _, capacity := range s.capacity {
		if !taken[capacity] {
			list = append(list, provider.Entry{Availability: fleet.AvailabilityKnownUnused, Capacity: capacity})
		}
	}
	slices.SortFunc(list, provider.CompareEntries)
	return list
}

// List implements provider.Provider.
func (s *source) List(ctx context.Context) (list []provider.Entry, err error) {
	return s.inPages(ctx, s.pages(len(s.capacity))+s.pages(len(s.devices)))
}

// inPages reads the list in so many calls, besides others. What the last one sees counts.
func (s *source) inPages(ctx context.Context, pages int) (list []provider.Entry, err error) {
	w := s.world
	for range pages - 1 {
		if err := s.call(ctx, "list", unseen, func() error { return nil }); err != nil {
			return nil, err
		}
	}
	err = s.call(ctx, "list", unseen, func() error {
		switch {
		case w.on(StaleList) && s.stale != nil:
			list = slices.Clone(s.stale)
		case w.on(PartialList):
			list = s.entries()
			list = list[:len(list)/4]
		default:
			list = s.entries()
		}
		if w.on(DoubleList) {
			list = append(list, list...)
			slices.SortStableFunc(list, provider.CompareEntries)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// ListMachines implements provider.Provider.
func (s *source) ListMachines(ctx context.Context) ([]provider.Entry, error) {
	entries, err := s.inPages(ctx, s.pages(len(s.devices)))
	return provider.Machines(entries), err
}

// Get implements provider.Provider.
func (s *source) Get(ctx context.Context, id fleet.ProviderID) (entry provider.Entry, err error) {
	ctx = until{ctx, s.world.now.Add(shepherd.AskLimit)}
	err = s.call(ctx, "get", unseen, func() error { //nolint:contextcheck // it is that one, with another end
		d := s.find(id)
		if d == nil {
			return fleet.Errorf(fleet.KindNotFound, "there is no device %s", id)
		}
		entry = d.entry()
		return nil
	})
	if err != nil {
		return provider.Entry{}, err
	}
	return entry, nil
}

// FindByToken implements provider.Provider.
func (s *source) FindByToken(ctx context.Context, _ fleet.CapacityID, token fleet.Token) (entry provider.Entry, err error) {
	err = s.call(ctx, "find", unseen, func() error {
		for _, d := range s.devices {
			if slices.Contains(d.tokens, token) {
				entry = d.entry()
				return nil
			}
		}
		return fleet.Errorf(fleet.KindNotFound, "no device carries the token")
	})
	if err != nil {
		return provider.Entry{}, err
	}
	return entry, nil
}

// Create implements provider.Provider.
func (s *source) Create(ctx context.Context, request provider.CreateRequest) (entry provider.Entry, err error) {
	if s.list {
		return s.Get(ctx, fleet.ProviderID(request.Capacity))
	}
	if seen, err := s.FindByToken(ctx, request.Capacity, request.Token); err == nil {
		return seen, nil
	} else if fleet.KindOf(err) != fleet.KindNotFound {
		return provider.Entry{}, err
	}
	ctx = provider.WithBeforeSend(ctx, request.BeforeCall)
	err = s.call(ctx, "create", func() { s.world.watch.effect(ctx, "create", nil) }, func() error {
		d := s.on(request.Capacity)
		switch {
		case !slices.Contains(s.capacity, request.Capacity):
			return fleet.Errorf(fleet.KindNotFound, "there is no capacity %s", request.Capacity)
		case d != nil && slices.Contains(d.tokens, request.Token):
		case d != nil:
			return fleet.Errorf(fleet.KindConflict, "%s is not free", request.Capacity)
		default:
			d = s.land(request.Capacity, request.Token, request.Machine)
			s.world.watch.landed(s, d)
			s.provision(d)
		}
		entry = d.entry()
		return nil
	})
	if err != nil {
		return provider.Entry{}, err
	}
	return entry, nil
}

// provision brings a device up, or gives it up.
func (s *source) provision(d *device) {
	w := s.world
	d.status = fleet.ProviderStatusCreating
	fails := w.hits(CreateFails, "device")
	w.after(w.between("provisioning", 90*time.Second, 5*time.Minute), func() {
		switch {
		case d.gone || d.status != fleet.ProviderStatusCreating:
		case fails:
			d.status, d.host.sick = fleet.ProviderStatusFailed, true
		default:
			d.status = fleet.ProviderStatusActive
			d.host.boot(0)
		}
	})
}

// pull is a lever that is pulled at a device.
func (s *source) pull(ctx context.Context, what string, id fleet.ProviderID, do func(d *device) error) error {
	notCounted := func() {}
	sent := func() { notCounted = s.world.watch.pulled(ctx, what, s.find(id)) }
	err := s.call(ctx, what, sent, func() error {
		d := s.find(id)
		if d == nil {
			return fleet.Errorf(fleet.KindNotFound, "there is no device %s", id)
		}
		if d.status == fleet.ProviderStatusDeleting && what != "release" {
			return fleet.Errorf(fleet.KindConflict, "device %s is being deleted", id)
		}
		s.world.trace("%s: %s", d.capacity, what)
		return do(d)
	})
	if fleet.KindOf(err) == fleet.KindThrottled {
		notCounted()
	}
	return err
}

// restart restarts a device that is on, in its time: at once, late, or never.
func (d *device) restart(why string) {
	w := d.source.world
	if !w.hits(SlowRestarts, "restart") {
		d.host.restart(why)
		return
	}
	if w.chance("restart is lost", 15) {
		w.trace("%s: %s is lost", d.capacity, why)
		return
	}
	late, boots := w.between("restart is late", 5*time.Second, 4*time.Minute), d.host.boots
	d.host.cut = w.now.Add(late)
	w.after(late, func() {
		if !d.gone && d.status == fleet.ProviderStatusActive && d.host.boots == boots {
			d.host.restart(why)
		}
	})
}

// Reboot implements provider.Rebooter.
func (m metal) Reboot(ctx context.Context, id fleet.ProviderID) error {
	return m.pull(ctx, "reboot", id, func(d *device) error {
		if d.status != fleet.ProviderStatusActive {
			return fleet.Errorf(fleet.KindConflict, "device %s is %s", id, d.status)
		}
		d.restart("reboot")
		return nil
	})
}

// PowerOn implements provider.Powerer.
func (m metal) PowerOn(ctx context.Context, id fleet.ProviderID) error {
	return m.pull(ctx, "power-on", id, func(d *device) error {
		if d.status == fleet.ProviderStatusOff {
			d.status = fleet.ProviderStatusActive
			d.host.restart("power-on")
		}
		return nil
	})
}

// PowerOff implements provider.Powerer.
func (m metal) PowerOff(ctx context.Context, id fleet.ProviderID) error {
	return m.pull(ctx, "power-off", id, func(d *device) error {
		if d.status == fleet.ProviderStatusActive {
			d.status = fleet.ProviderStatusOff
			d.host.halt()
		}
		return nil
	})
}

// PowerCycle implements provider.Powerer.
func (m metal) PowerCycle(ctx context.Context, id fleet.ProviderID) error {
	return m.pull(ctx, "power-cycle", id, func(d *device) error {
		if d.status != fleet.ProviderStatusActive && d.status != fleet.ProviderStatusOff {
			return fleet.Errorf(fleet.KindConflict, "device %s is %s", id, d.status)
		}
		off := d.status == fleet.ProviderStatusOff
		d.status = fleet.ProviderStatusActive
		if off { // it does not come on by itself
			d.host.restart("power-cycle")
			return nil
		}
		d.restart("power-cycle")
		return nil
	})
}

// Reinstall implements provider.Reinstaller.
func (m metal) Reinstall(ctx context.Context, id fleet.ProviderID) error {
	return m.pull(ctx, "reinstall", id, func(d *device) error {
		m.world.watch.restarted(d.host, "reinstall")
		d.host.wipe()
		m.provision(d)
		return nil
	})
}

// Release implements provider.Releaser.
func (m metal) Release(ctx context.Context, id fleet.ProviderID) error {
	err := m.pull(ctx, "release", id, func(d *device) error {
		d.releases++
		m.world.watch.released(d)
		if d.status == fleet.ProviderStatusDeleting {
			return nil
		}
		d.status = fleet.ProviderStatusDeleting
		d.host.halt()
		m.world.after(m.world.between("deleting", 20*time.Second, 3*time.Minute), func() { m.remove(d) })
		return nil
	})
	if fleet.KindOf(err) == fleet.KindNotFound {
		return nil
	}
	return err
}

func (s *source) remove(d *device) {
	d.gone = true
	d.host.halt()
	s.devices = slices.DeleteFunc(s.devices, func(other *device) bool { return other == d })
}

// addressOf is the address of the n-th host of a provider.
func addressOf(provider, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(provider), byte(n >> 8), byte(n)})
}
