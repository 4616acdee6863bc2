package equinix

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/packethost/packngo"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// reservation is a hardware reservation, with the field that packngo lacks.
type reservation struct {
	packngo.HardwareReservation
	NeedOfService bool `json:"need_of_service"`
}

// free reports whether a device could be created on the reservation.
func (r *reservation) free() bool {
	return r.Device == nil && r.Provisionable && !r.Spare && !r.NeedOfService
}

// deviceRow is one row of a list of devices: what is kept of the device, or why it cannot be
// understood.
type deviceRow struct {
	id    string
	entry provider.Entry
}

// reservationRow is one row of a list of reservations.
type reservationRow struct {
	id    string
	free  bool // a device could be created on it, or it cannot be understood
	entry provider.Entry
}

func (r deviceRow) key() string      { return r.id }
func (r reservationRow) key() string { return r.id }

func (r deviceRow) size() int      { return entrySize(r.entry) }
func (r reservationRow) size() int { return len(r.id) + entrySize(r.entry) }

// entrySize is how many bytes of the provider's are kept in an entry.
func entrySize(e provider.Entry) int {
	size := len(e.ID) + len(e.Capacity) + len(e.Hostname) + len(e.Location) + len(e.Detail) + len(e.Invalid)
	for _, token := range e.Tokens {
		size += len(token)
	}
	for _, label := range e.Labels {
		size += len(label)
	}
	return size
}

func (p *Provider) parseDevice(raw jsontext.Value) deviceRow {
	device := new(packngo.Device)
	if err := jsonv2.Unmarshal(raw, device, lenient); err != nil {
		id := rowID(raw)
		return deviceRow{id: id, entry: provider.Entry{
			Availability: fleet.AvailabilityKnownUsed, ID: fleet.ProviderID(id), Invalid: fmt.Sprintf("the device cannot be read: %v", decodeProblem(err)),
		}}
	}
	return deviceRow{id: device.ID, entry: p.deviceEntry(device)}
}

func parseReservation(raw jsontext.Value) reservationRow {
	found := new(reservation)
	if err := jsonv2.Unmarshal(raw, found, lenient); err != nil {
		id := rowID(raw)
		return reservationRow{id: id, free: true, entry: provider.Entry{
			Availability: fleet.AvailabilityKnownUnused, Capacity: fleet.CapacityID(id), Invalid: fmt.Sprintf("the reservation cannot be read: %v", decodeProblem(err)),
		}}
	}
	row := reservationRow{id: found.ID, free: found.free()}
	if row.free {
		row.entry = freeEntry(found)
	}
	return row
}

// merge returns devices and free reservations in the order of their IDs.
func merge(devices []deviceRow, reservations []reservationRow) []provider.Entry {
	entries := make([]provider.Entry, 0, len(devices)+len(reservations))
	occupied := make(map[fleet.CapacityID]bool)
	for _, row := range devices {
		entry := row.entry
		if entry.Capacity != "" {
			occupied[entry.Capacity] = true
		}
		entries = append(entries, entry)
	}
	for _, row := range reservations {
		// The list of devices is the newer one.
		if row.free && !occupied[fleet.CapacityID(row.id)] {
			entries = append(entries, row.entry)
		}
	}
	slices.SortStableFunc(entries, provider.CompareEntries)
	return entries
}

// freeEntry is a reservation that a device could be created on.
func freeEntry(r *reservation) provider.Entry {
	entry := provider.Entry{
		Availability: fleet.AvailabilityKnownUnused,
		Capacity:     fleet.CapacityID(r.ID),
		Location:     location(&r.Facility, nil),
		Detail:       printable(r.Plan.Slug),
	}
	if err := checkID("reservation", r.ID); err != nil {
		entry.Invalid = err.Error()
	}
	return entry
}

// deviceEntry is a device as the contract has it.
func (p *Provider) deviceEntry(device *packngo.Device) provider.Entry {
	entry := provider.Entry{
		Availability: fleet.AvailabilityKnownUsed,
		ID:           fleet.ProviderID(device.ID),
		Detail:       detail(device),
		Hostname:     printable(device.Hostname),
		Location:     location(device.Facility, device.Metro),
		Labels:       labels(device.Tags),
		Tokens:       provider.Tokens(device.Tags),
		CreatedAt:    parseTime(device.Created),
	}
	if device.HardwareReservation != nil {
		entry.Capacity = fleet.CapacityID(referenceID(device.HardwareReservation.ID, device.HardwareReservation.Href))
	}
	status, known := statuses[device.State]
	address, addressProblem := address(device.Network, p.here)
	entry.Status, entry.Address = status, address
	if err := checkID("device", device.ID); err != nil {
		entry.Invalid = err.Error()
	} else if !known {
		entry.Invalid = fmt.Sprintf("device %s is in the state %.40q, which is not known here", device.ID, device.State)
	} else if addressProblem != "" {
		entry.Invalid = fmt.Sprintf("device %s: %s", device.ID, addressProblem)
	}
	return entry
}

// labels are the tags that people gave a device: one without an equals sign is a label without a
// value. What cannot be a label is left out, and so is what is beyond their number.
func labels(tags []string) (labels []string) {
	for _, tag := range tags {
		name, value, _ := strings.Cut(tag, "=")
		label, err := fleet.NewLabel(name, value)
		if err == nil && tag != managedTag && len(provider.Tokens([]string{tag})) == 0 {
			labels = append(labels, label)
		}
	}
	slices.Sort(labels)
	labels = slices.Compact(labels)
	return labels[:min(len(labels), fleet.MaxLabels)]
}

// statuses maps the API's device states (all ten of them).
var statuses = map[string]fleet.ProviderStatus{
	"queued":         fleet.ProviderStatusCreating,
	"provisioning":   fleet.ProviderStatusCreating,
	"reinstalling":   fleet.ProviderStatusCreating,
	"active":         fleet.ProviderStatusActive,
	"inactive":       fleet.ProviderStatusOff,
	"powering_on":    fleet.ProviderStatusPowering,
	"powering_off":   fleet.ProviderStatusPowering,
	"failed":         fleet.ProviderStatusFailed,
	"deprovisioning": fleet.ProviderStatusDeleting,
	"deleted":        fleet.ProviderStatusGone,
}

// detail is the API's word for the state, with progress where there is some.
func detail(device *packngo.Device) string {
	if device.State == "provisioning" && device.ProvisionPer > 0 && device.ProvisionPer <= 100 {
		return fmt.Sprintf("provisioning, %.0f %%", device.ProvisionPer)
	}
	return printable(device.State)
}

// address returns the public IPv4 address, else the public IPv6 address. The API marks a device's
// own addresses as management. Others were attached later, and the host may not know them; they
// count only where none is marked. None leads to this host or its link, unless the API is here,
// too: whoever answers as the API must not aim our SSH at what only this host reaches.
func address(assigned []*packngo.IPAddressAssignment, here bool) (netip.Addr, string) {
	for _, want := range []struct {
		management bool
		family     int
	}{{true, 4}, {true, 6}, {false, 4}, {false, 6}} {
		for _, ip := range assigned {
			if ip == nil || !ip.Public || ip.Management != want.management || ip.AddressFamily != want.family {
				continue
			}
			parsed, err := netip.ParseAddr(ip.Address)
			if err != nil || parsed.Is4() != (want.family == 4) || parsed.IsUnspecified() {
				return netip.Addr{}, fmt.Sprintf("its public IPv%d address %.64q makes no sense", want.family, ip.Address)
			}
			if near := parsed.Unmap(); !here && (near.IsLoopback() || near.IsLinkLocalUnicast() || near.IsMulticast()) {
				return netip.Addr{}, fmt.Sprintf("its public IPv%d address %s would lead to this host or its link", want.family, parsed)
			}
			return parsed, ""
		}
	}
	return netip.Addr{}, ""
}

// location is the facility, else the metro.
func location(facility *packngo.Facility, metro *packngo.Metro) string {
	if facility != nil && facility.Code != "" {
		return printable(facility.Code)
	}
	if metro != nil {
		return printable(metro.Code)
	}
	return ""
}

// referenceID returns the ID of a thing that may be given by reference only; empty when neither
// tells it.
func referenceID(id, href string) string {
	if id != "" {
		return id
	}
	if last := path.Base(strings.TrimRight(href, "/")); uuid.Validate(last) == nil {
		return last
	}
	return ""
}
