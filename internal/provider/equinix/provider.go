// Package equinix is the provider for the Equinix Metal API and whatever is compatible with it: one
// project, whose hardware reservations are the capacity and whose devices are the machines.
//
// packngo speaks the API. Package provider does pacing, retries, budgets and metrics. The rest is
// here:
//
//   - The provider reads a list page by page. The list counts only when it is whole: every page
//     gives the same total, and there are so many distinct IDs. The API's default order is not
//     stable, so duplicates and gaps are normal, and the provider reads the list again. One that
//     shrinks is read from its end, which passes over no row; what only the reading before has
//     counts as there, too. Where devices come and go all the time, List and ListMachines return
//     what any reading has. A row that it does not understand becomes an entry that says so; the
//     others are not affected.
//   - It believes that a thing does not exist only when the API itself says so, not when a proxy
//     does, and while the API answers about the project: one that was retired, or that api_url
//     misses, has nothing at all.
//   - A create names a concrete reservation and carries the caller's token as a tag. Before it, the
//     provider asks the reservation who occupies it, because the API's lists lag. An earlier create
//     whose reply was lost shows there as our own device. The provider makes one call, and never
//     repeats it.
//   - A create carries the host key that the device is to have, as cloud-config user data
//     (inject_host_key). The API shows user data to whoever has its token, and the device's
//     metadata service to every process on the device: such a key tells a device from a host in
//     between, and ends with the system that the provider delivered.
//   - An action on a device (reboot, power, reinstall) is asked for once. The API refuses one that
//     would change nothing; then the device's state says whether the refusal matters. A DELETE may
//     be repeated by the transport: after a refusal, Release asks whether the device is gone.
//   - A refusal (403) to show a device may mean that the project does not have it any more. So may
//     one to act on it; then the device is asked for. A whole list of the project's devices, begun
//     after the refusal to show it, and not before the question was asked first
//     (provider.WithAskedFor), tells; without one, it stays Forbidden, or, of a release, Temporary.
//     Such a list is made for all devices together, with a minute between two; one that takes
//     longer than the question answers a later try.
//   - The token of a user shows a device that was moved to another project of the user. It is not
//     there any more, as far as the provider is asked: where the answer names another project, it
//     counts as one that the project does not have (NotFound), and that was moved
//     (provider.WasMoved): a release of it fails.
//   - Calls with one token count against one limit, whatever provider instance of whichever process
//     makes them.
//
// The provider remembers the ID of its SSH key, and which devices it was refused. A restart forgets
// both, and loses nothing by it.
package equinix

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/packethost/packngo"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// managedTag is on every device that was created here, for people.
const managedTag = "managed-by-ironherd"

// Provider is one project at one API. It is safe for concurrent use.
type Provider struct {
	config    Config
	logger    *slog.Logger
	transport *provider.Transport
	base      string
	key       keyMemo
	limit     limitMemo
	absent    absentMemo
	// here: the API is on this host, and so may its machines be.
	here bool
	// answered is when the API last told something of the project.
	answered atomic.Pointer[time.Time]
	// sunsets has the calls that the API says are going away, with when.
	sunsets sync.Map
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.Injector = (*Provider)(nil)
)

// New returns a provider for a valid configuration. It reads the token file, to fail early, and
// makes no call.
func New(config Config, options provider.Options) (*Provider, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	token, err := readToken(config.TokenFile)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindOf(err), "token_file: %w", err)
	}
	// With this set, packngo prints whole requests and answers, and with them host keys.
	if err := os.Unsetenv("PACKNGO_DEBUG"); err != nil {
		return nil, fleet.Errorf(fleet.KindUnknown, "keep secrets out of packngo's output: %w", err)
	}
	p := &Provider{
		config: config, logger: options.Log(),
		base: strings.TrimRight(config.APIURL, "/") + "/", // packngo resolves against it
		key:  keyMemo{turn: make(chan struct{}, 1)}, absent: absentMemo{refused: make(map[string]hidden)}, here: config.Elsewhere() == "",
	}
	p.limit.host = host(p.base)
	p.limit.of(token)
	limits := config.Limits()
	limits.Limit = p.limit.name
	p.transport = provider.NewTransport(limits, p.endpoint, options)
	return p, nil
}

// Pacing says how calls are paced, in one clause.
func (p *Provider) Pacing() string { return p.transport.Pacing() }

// Kind returns "equinix".
func (p *Provider) Kind() string { return "equinix" }

// CloseIdleConnections closes the connections that no call uses.
func (p *Provider) CloseIdleConnections() { p.transport.CloseIdleConnections() }

// List returns the project's devices and its free reservations.
func (p *Provider) List(ctx context.Context) ([]provider.Entry, error) {
	// Reservations come first: when one is taken in between, the later list of devices shows it.
	reservations, err := p.listReservations(ctx)
	if err != nil {
		return nil, err
	}
	devices, _, err := p.listDevices(ctx, nil, true)
	if err != nil {
		return nil, err
	}
	return merge(devices, reservations), nil
}

// ListMachines returns the project's devices. It asks for no reservations, which saves half of the
// calls of List.
func (p *Provider) ListMachines(ctx context.Context) ([]provider.Entry, error) {
	devices, _, err := p.listDevices(ctx, nil, true)
	if err != nil {
		return nil, err
	}
	p.absent.listed(devices)
	return provider.Machines(merge(devices, nil)), nil
}

// Get returns a device. It may list all devices to find out that there is none.
func (p *Provider) Get(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	if err := checkID("device", string(id)); err != nil {
		return provider.Entry{}, err
	}
	device, err := p.getDevice(ctx, string(id))
	if err = p.judge(ctx, string(id), err); err != nil {
		return provider.Entry{}, err
	}
	entry := p.deviceEntry(device)
	entry.InjectedKey = injectedKey(device.UserData)
	return entry, nil
}

// FindByToken asks the reservation, then lists by tag, then lists everything, because a filter uses
// a search index, which may lag.
func (p *Provider) FindByToken(ctx context.Context, capacity fleet.CapacityID, token fleet.Token) (provider.Entry, error) {
	if err := checkID("reservation", string(capacity)); err != nil {
		return provider.Entry{}, err
	}
	if token == "" {
		return provider.Entry{}, fleet.Errorf(fleet.KindInvalid, "a token is needed to find a device by")
	}
	_, device, err := p.occupant(ctx, capacity)
	switch kind := fleet.KindOf(err); {
	case err == nil, kind == fleet.KindNotFound, kind == fleet.KindForbidden, kind == fleet.KindConflict:
		// A reservation that was moved to another project leaves its device behind. One that cannot be
		// seen, or that names a device which cannot be seen, may stay like that for ever.
	default:
		return provider.Entry{}, err
	}
	if device != nil && slices.Contains(device.Tags, string(token)) {
		return p.deviceEntry(device), nil
	}
	for _, filter := range []map[string]string{{"tag": string(token)}, nil} {
		rows, _, err := p.listDevices(ctx, filter, false)
		if err != nil {
			return provider.Entry{}, err
		}
		for _, row := range rows {
			if slices.Contains(row.entry.Tokens, token) {
				return row.entry, nil
			}
		}
	}
	return provider.Entry{}, fleet.Errorf(fleet.KindNotFound, "no device of project %s carries the token %s", p.config.Project, token)
}

// getDevice returns a device with its reservation. One of another project is NotFound: the token of
// a user shows the devices of all projects of that user.
func (p *Provider) getDevice(ctx context.Context, id string) (*packngo.Device, error) {
	what := "get device " + id
	client, err := p.client(ctx, what)
	if err != nil {
		return nil, err
	}
	device, response, err := client.Devices.Get(id, &packngo.GetOptions{Includes: []string{"hardware_reservation"}})
	if err := classify(what, response, err); err != nil {
		return nil, err
	}
	if !strings.EqualFold(device.ID, id) {
		return nil, fleet.Errorf(fleet.KindUnknown, "%s: the answer is about %.64q", what, device.ID)
	}
	if err := p.elsewhere(device); err != nil {
		return nil, err
	}
	return device, nil
}

// elsewhere returns an error of kind NotFound when a device names another project than ours. One
// that names none, or not by a UUID, may be ours.
func (p *Provider) elsewhere(device *packngo.Device) error {
	if device.Project == nil {
		return nil
	}
	theirs, named := parseUUID(referenceID(device.Project.ID, device.Project.URL))
	if ours, known := parseUUID(p.config.Project); !named || !known || ours == theirs {
		return nil
	}
	return provider.Moved(fleet.Errorf(fleet.KindNotFound, "device %s is in project %s, and not in %s", device.ID, theirs, p.config.Project))
}

func parseUUID(text string) (id uuid.UUID, ok bool) {
	id, err := uuid.Parse(text)
	return id, err == nil
}

// occupant returns a reservation and the device on it; nil when there is none. An answer may give
// nothing of the device but its reference, even when asked for more. Then the device is asked
// itself. A device that the project does not have holds the reservation all the same: the error is
// of kind Conflict.
func (p *Provider) occupant(ctx context.Context, capacity fleet.CapacityID) (*reservation, *packngo.Device, error) {
	what := "get reservation " + string(capacity)
	client, err := p.client(ctx, what)
	if err != nil {
		return nil, nil, err
	}
	found := new(reservation)
	options := &packngo.GetOptions{Includes: []string{"device"}}
	response, err := client.DoRequest(http.MethodGet, options.WithQuery("hardware-reservations/"+string(capacity)), nil, found)
	if err := classify(what, response, err); err != nil {
		return nil, nil, err
	}
	if !strings.EqualFold(found.ID, string(capacity)) {
		return nil, nil, fleet.Errorf(fleet.KindUnknown, "%s: the answer is about %.64q", what, found.ID)
	}
	if found.Device == nil {
		return found, nil, nil
	}
	if found.Device.ID != "" && found.Device.State != "" {
		device := *found.Device
		device.HardwareReservation = &packngo.HardwareReservation{ID: found.ID}
		if err := p.elsewhere(&device); err != nil {
			return nil, nil, stillHeld(capacity, device.ID, err)
		}
		return found, &device, nil
	}
	id := referenceID(found.Device.ID, found.Device.Href)
	if id == "" {
		return nil, nil, fleet.Errorf(fleet.KindUnknown, "%s: it names a device without an ID", what)
	}
	device, err := p.getDevice(ctx, id)
	switch fleet.KindOf(err) {
	case fleet.KindNotFound, fleet.KindForbidden:
		// A device on its way out is named for a little longer than it can be seen.
		return nil, nil, stillHeld(capacity, id, err)
	}
	if err != nil {
		return nil, nil, err
	}
	return found, device, nil
}

func stillHeld(capacity fleet.CapacityID, device string, why error) error {
	return fleet.Errorf(fleet.KindConflict, "reservation %s is still held by device %s, which is not the project's or cannot be seen: %w", capacity, device, why)
}

// checkID refuses what cannot be an ID before it becomes part of a URL.
func checkID(what, id string) error {
	if len(id) != 36 || uuid.Validate(id) != nil {
		return fleet.Errorf(fleet.KindInvalid, "%.64q is not the ID of a %s: a UUID is expected", id, what)
	}
	return nil
}

// parseTime reads an instant as the API writes it; zero when it does not say.
func parseTime(text string) time.Time {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return at.UTC()
}
