package equinixapi

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

var (
	hostnamePattern = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,252}[a-zA-Z0-9])?$`)
	billingCycles   = []string{"hourly", "daily", "monthly", "yearly"}
)

// nextAvailable asks for any free reservation.
const nextAvailable = "next-available"

// createRequest creates a device. Fields that are not here are accepted and mean nothing.
type createRequest struct {
	Hostname              string          `json:"hostname"`
	Plan                  string          `json:"plan"`
	OperatingSystem       string          `json:"operating_system"`
	Metro                 string          `json:"metro"`
	Facility              oneOrMore       `json:"facility"`
	HardwareReservationID string          `json:"hardware_reservation_id"`
	BillingCycle          string          `json:"billing_cycle"`
	Tags                  names           `json:"tags"`
	Description           *string         `json:"description"`
	UserData              string          `json:"userdata"`
	Locked                bool            `json:"locked"`
	AlwaysPXE             bool            `json:"always_pxe"`
	IPXEScriptURL         string          `json:"ipxe_script_url"`
	TerminationTime       *instant        `json:"termination_time"`
	NoSSHKeys             bool            `json:"no_ssh_keys"`
	NetworkFrozen         bool            `json:"network_frozen"`
	Storage               json.RawMessage `json:"storage"`
	CustomData            customData      `json:"customdata"`
	SpotInstance          bool            `json:"spot_instance"`
	SpotPriceMax          number          `json:"spot_price_max"`
	ProjectSSHKeys        names           `json:"project_ssh_keys"`
	UserSSHKeys           names           `json:"user_ssh_keys"`
	SSHKeys               []keyRequest    `json:"ssh_keys"`
	// IPAddresses are the addresses that the device gets; PublicSubnet is an older way to say how long
	// the prefix of the public IPv4 address is.
	IPAddresses  []addressRequest `json:"ip_addresses"`
	PublicSubnet int              `json:"public_ipv4_subnet_size"`

	// stolenFor is set for the device of somebody who was faster, and will be gone.
	stolenFor time.Duration
}

// validate says everything that is wrong with a request in itself.
func (q *createRequest) validate(a *API) []string {
	var wrong []string
	check := func(ok bool, message string) {
		if !ok {
			wrong = append(wrong, message)
		}
	}
	concrete := q.HardwareReservationID != "" && q.HardwareReservationID != nextAvailable
	if q.Plan == "" {
		check(concrete, "Plan can't be blank")
	} else {
		_, ok := a.planOf(q.Plan)
		check(ok, q.Plan+" is not a valid plan")
	}
	_, ok := a.systemOf(q.OperatingSystem)
	if q.OperatingSystem == "" {
		check(false, "Operating system can't be blank")
	} else {
		check(ok, q.OperatingSystem+" is not a valid operating system")
	}
	check(concrete || q.Metro != "" || len(q.Facility) > 0, "Facility can't be blank")
	if q.Metro != "" && q.Metro != "any" {
		check(slices.ContainsFunc(metros, func(m metro) bool { return q.Metro == m.code || q.Metro == m.id }),
			q.Metro+" is not a valid metro")
	}
	for _, code := range q.Facility {
		check(code == "any" || slices.ContainsFunc(metros, func(m metro) bool { return code == m.facility() }), code+" is not a valid facility")
	}
	check(q.Hostname == "" || hostnamePattern.MatchString(q.Hostname), "Hostname is not valid")
	check(q.BillingCycle == "" || slices.Contains(billingCycles, q.BillingCycle), "Billing cycle is not included in the list")
	wrong = append(wrong, q.wrongAddresses()...)
	for _, k := range q.SSHKeys {
		ok := false
		if k.Key != nil {
			_, _, _, _, err := ssh.ParseAuthorizedKey([]byte(*k.Key))
			ok = err == nil
		}
		check(ok, "Ssh keys key is not a valid SSH public key")
	}
	return wrong
}

// wantsPlace reports whether a slot is at a place that the request accepts.
func (q *createRequest) wantsPlace(s Slot) bool {
	if q.Metro != "" && q.Metro != "any" && q.Metro != s.Metro && q.Metro != metroOf(s.Metro).id {
		return false
	}
	return len(q.Facility) == 0 || slices.Contains(q.Facility, "any") || slices.Contains(q.Facility, metro{code: s.Metro}.facility())
}

// create makes a device for each request, or none. An answer other than success has changed
// nothing. What also returns is recorded with the devices, and then its function is called, both
// under the lock; also may be nil.
func (a *API) create(project string, requests []*createRequest, also func([]*device) ([]Change, func())) (made []*device, err error) {
	var wrong []string
	for _, q := range requests {
		wrong = append(wrong, q.validate(a)...)
	}
	if len(wrong) > 0 {
		return nil, unprocessable(wrong...)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.projects[project] == nil {
		return nil, errNotFound
	}
	before := a.counters
	defer func() {
		if err != nil {
			a.counters = before
			for _, d := range made {
				delete(a.bySlot, d.Slot)
			}
			made = nil
		}
	}()
	var changes []Change
	for _, q := range requests {
		d, err := a.newDevice(project, q)
		if err != nil {
			return made, err
		}
		a.bySlot[d.Slot] = d.ID // nobody sees it before the lock is released
		made, changes = append(made, d), append(changes, put("device/"+d.ID, d))
	}
	then := func() {}
	if also != nil {
		var more []Change
		more, then = also(made)
		changes = append(changes, more...)
	}
	if err := a.commit(append(changes, put("counters", a.counters))...); err != nil {
		return made, err
	}
	then()
	for _, d := range made {
		a.devices[d.ID] = d
		a.start(d.ID)
		a.vanishLater(d)
	}
	return made, nil
}

// newDevice returns a device in a slot that is free, and counts it. The caller holds the lock.
func (a *API) newDevice(project string, q *createRequest) (*device, error) {
	keys, err := a.chosenKeys(project, q)
	if err != nil {
		return nil, err
	}
	slot, reservation, err := a.chosenSlot(project, q)
	if err != nil {
		return nil, err
	}
	system, _ := a.systemOf(q.OperatingSystem) // validated
	a.counters.Devices++
	number := a.counters.Devices
	d := &device{
		ID: a.id("device", number), Number: number, Slot: slot, Reservation: reservation, Project: project,
		Hostname: q.Hostname, Description: q.Description, Plan: a.cfg.Slot(slot).Plan, OS: system.slug, BillingCycle: q.BillingCycle,
		Tags: nonNil(q.Tags), UserData: q.UserData, IPXEScriptURL: q.IPXEScriptURL, AlwaysPXE: q.AlwaysPXE, Locked: q.Locked,
		NetworkFrozen: q.NetworkFrozen, Spot: q.SpotInstance, SpotPriceMax: float64(q.SpotPriceMax), TerminationTime: q.TerminationTime.pointer(),
		CustomData: q.CustomData.object, Storage: q.Storage, Keys: keys, State: stateQueued, Created: now(), Updated: now(), Generation: 1,
		Addresses: q.addresses(), rendered: new(atomic.Pointer[rendering]),
	}
	for _, k := range q.SSHKeys {
		d.InlineKeys = append(d.InlineKeys, *k.Key)
	}
	if d.Hostname == "" {
		d.Hostname = d.ID[:8] + ".packethost.net"
	}
	if d.BillingCycle == "" {
		d.BillingCycle = "hourly"
	}
	d.WillFail = happens(a.cfg.FailProvisioning)
	d.From = d.Created.Add(a.duration(a.cfg.Durations.Queued, "queued", d.Number))
	d.To = d.From.Add(a.duration(a.cfg.Durations.Provisioning, "provisioning", d.Number))
	d.Task = &task{Kind: taskProvision, Due: d.To}
	d.vanishAfter(q.stolenFor)
	if q.stolenFor == 0 {
		d.vanishAfter(asked(a.cfg.Vanish))
	}
	return d, nil
}

// chosenKeys are the keys that a new device gets: those that were named, else all. The caller holds
// the lock.
func (a *API) chosenKeys(project string, q *createRequest) ([]string, error) {
	if q.NoSSHKeys {
		return nil, nil
	}
	all := len(q.ProjectSSHKeys)+len(q.UserSSHKeys)+len(q.SSHKeys) == 0
	var chosen []string
	for _, id := range q.ProjectSSHKeys {
		if k := a.keys[id]; k == nil || k.Project != "" && k.Project != project {
			return nil, unprocessable("Project ssh key " + id + " is not valid")
		}
		chosen = append(chosen, id)
	}
	for _, user := range q.UserSSHKeys {
		if user != a.user {
			return nil, unprocessable("User " + user + " is not a collaborator of this project")
		}
	}
	for _, k := range a.keysOf(func(k *key) bool { return k.Project == "" || k.Project == project }) {
		if all || k.Project == "" && len(q.UserSSHKeys) > 0 {
			chosen = append(chosen, k.ID)
		}
	}
	return chosen, nil
}

// chosenSlot finds the slot for a new device, and its reservation if it is reserved. The caller
// holds the lock.
func (a *API) chosenSlot(project string, q *createRequest) (slot int, reservation string, err error) {
	at := now()
	plan, _ := a.planOf(q.Plan)
	fits := func(slot int) bool {
		s := a.cfg.Slot(slot)
		return (q.Plan == "" || s.Plan == plan.Slug) && q.wantsPlace(s)
	}
	switch q.HardwareReservationID {
	case "":
		if plan.ReservedOnly {
			return 0, "", unprocessable(plan.Slug + " can only be had with a hardware reservation")
		}
		for slot := a.cfg.Reservations; slot < a.cfg.Reservations+a.cfg.OnDemand; slot++ {
			if a.slotFree(slot, at) && fits(slot) {
				return slot, "", nil
			}
		}
		return 0, "", unprocessable("There aren't available servers in that metro")
	case nextAvailable:
		for slot := range a.cfg.Reservations {
			if a.reservationProject(slot) == project && a.provisionable(slot, at) && fits(slot) {
				return slot, a.reservationID(slot), nil
			}
		}
		return 0, "", refuse(http.StatusServiceUnavailable, "There are no available hardware reservations for this project that match the request")
	}
	slot, ok := a.slotOfReservation(q.HardwareReservationID)
	switch {
	case !ok || a.reservationProject(slot) != project:
		return 0, "", errNotFound
	case !a.provisionable(slot, at):
		return 0, "", unprocessable("Server is not provisionable")
	case !fits(slot):
		return 0, "", unprocessable("Plan or location do not match the hardware reservation")
	}
	return slot, a.reservationID(slot), nil
}
