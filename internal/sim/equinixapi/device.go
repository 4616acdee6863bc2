package equinixapi

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

func deviceHref(id string) string { return Prefix + "/devices/" + id }

func (a *API) deviceOf(id string) (*device, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	d, ok := a.devices[id]
	return d, ok
}

// byNumber sorts devices in the order of their creation.
func byNumber(list []*device) {
	slices.SortFunc(list, func(x, y *device) int { return cmp.Compare(x.Number, y.Number) })
}

func (a *API) createDevice(w http.ResponseWriter, r *http.Request) {
	var request createRequest
	if err := readJSON(w, r, &request); err != nil {
		writeError(w, err)
		return
	}
	d, err := a.create(r.PathValue("id"), &request)
	if err != nil {
		writeError(w, err)
		return
	}
	if a.cfg.LoseReply != nil && a.cfg.LoseReply() {
		panic(http.ErrAbortHandler) // the connection is cut
	}
	// What is answered is the moment of creation, however little time is spent in the queue.
	writeJSON(w, http.StatusCreated, a.renderDeviceAt(d, viewOf(r), d.Created.Add(-1)))
}

func (a *API) getDevice(w http.ResponseWriter, r *http.Request) {
	d, ok := a.deviceOf(r.PathValue("id"))
	if !ok {
		writeError(w, errNotFound)
		return
	}
	writeJSON(w, http.StatusOK, a.renderDevice(d, viewOf(r)))
}

func (a *API) getUserData(w http.ResponseWriter, r *http.Request) {
	d, ok := a.deviceOf(r.PathValue("id"))
	if !ok {
		writeError(w, errNotFound)
		return
	}
	writeJSON(w, http.StatusOK, obj{"userdata": d.UserData})
}

func (a *API) listDevices(w http.ResponseWriter, r *http.Request) {
	want := a.deviceFilter(r)
	a.mu.RLock()
	list := slices.Collect(maps.Values(a.devices))
	a.mu.RUnlock()
	list = slices.DeleteFunc(list, func(d *device) bool { return !want(d) })
	byNumber(list)
	arrange(a, r, list, map[string]func(*device) string{
		"id": func(d *device) string { return d.ID }, "hostname": func(d *device) string { return d.Hostname },
		"state":      func(d *device) string { return d.shownState(now()) },
		"created_at": func(d *device) string { return d.Created.Format(sortable) },
		"updated_at": func(d *device) string { return d.Updated.Format(sortable) },
	})
	v := viewOf(r)
	writePage(a, w, r, "devices", list, func(d *device) []byte { return a.renderForList(d, v) })
}

// sortable is a form of times whose order as text is their order.
const sortable = "2006-01-02T15:04:05.000000000"

// deviceFilter reads the filters of a list of devices.
func (a *API) deviceFilter(r *http.Request) func(*device) bool {
	project, query := r.PathValue("id"), r.URL.Query()
	return func(d *device) bool {
		slot := a.cfg.Slot(d.Slot)
		switch {
		case project != "" && d.Project != project,
			!strings.Contains(d.Hostname, query.Get("hostname")),
			query.Has("tag") && !slices.Contains(d.Tags, query.Get("tag")),
			query.Has("metro") && query.Get("metro") != slot.Metro,
			query.Has("facility") && query.Get("facility") != metro{code: slot.Metro}.facility(),
			query.Has("type") && query.Get("type") != d.kind(),
			query.Has("mac_address") && !slices.Contains(slot.MACs[:], query.Get("mac_address")),
			query.Has("search") && !a.matches(d, slot, query.Get("search")):
			return false
		}
		if reserved, err := strconv.ParseBool(query.Get("reserved")); err == nil && reserved != (d.Reservation != "") {
			return false
		}
		if ends, err := strconv.ParseBool(query.Get("has_termination_time")); err == nil && ends != (d.TerminationTime != nil) {
			return false
		}
		return true
	}
}

// kind is how a device is paid for.
func (d *device) kind() string {
	switch {
	case d.Reservation != "":
		return "reserved"
	case d.Spot:
		return "spot"
	}
	return "ondemand"
}

// matches is the search over everything that identifies a device.
func (a *API) matches(d *device, slot Slot, text string) bool {
	text = strings.ToLower(text)
	fields := []string{
		d.Hostname, d.ID, d.ID[:8], d.Plan, d.OS, d.Reservation, slot.PublicV4.String(), slot.PrivateV4.String(), slot.PublicV6.String(),
		metro{code: slot.Metro}.facility(),
	}
	if d.Description != nil {
		fields = append(fields, *d.Description)
	}
	return slices.ContainsFunc(append(fields, d.Tags...), func(field string) bool {
		return strings.Contains(strings.ToLower(field), text)
	})
}

// updateRequest changes a device.
type updateRequest struct {
	Hostname        *string     `json:"hostname"`
	Description     *string     `json:"description"`
	UserData        *string     `json:"userdata"`
	Locked          *bool       `json:"locked"`
	Tags            *[]string   `json:"tags"`
	AlwaysPXE       *bool       `json:"always_pxe"`
	IPXEScriptURL   *string     `json:"ipxe_script_url"`
	CustomData      *customData `json:"customdata"`
	BillingCycle    *string     `json:"billing_cycle"`
	NetworkFrozen   *bool       `json:"network_frozen"`
	SpotInstance    *bool       `json:"spot_instance"`
	TerminationTime *time.Time  `json:"termination_time"`
}

func (a *API) updateDevice(w http.ResponseWriter, r *http.Request) {
	var request updateRequest
	if err := readJSON(w, r, &request); err != nil {
		writeError(w, err)
		return
	}
	var d *device
	err := a.locked(func() (err error) {
		d, err = a.change(r.PathValue("id"), request.apply)
		return err
	})
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, a.renderDevice(d, viewOf(r)))
}

func (q *updateRequest) apply(d *device) error {
	set(&d.Hostname, q.Hostname)
	set(&d.UserData, q.UserData)
	set(&d.Locked, q.Locked)
	set(&d.Tags, q.Tags)
	set(&d.AlwaysPXE, q.AlwaysPXE)
	set(&d.IPXEScriptURL, q.IPXEScriptURL)
	set(&d.BillingCycle, q.BillingCycle)
	set(&d.NetworkFrozen, q.NetworkFrozen)
	set(&d.Spot, q.SpotInstance)
	if q.Description != nil {
		d.Description = q.Description
	}
	if q.CustomData != nil {
		d.CustomData = q.CustomData.object
	}
	if q.TerminationTime != nil {
		d.TerminationTime = q.TerminationTime
	}
	if q.Hostname != nil && !hostnamePattern.MatchString(d.Hostname) {
		return unprocessable("Hostname is not valid")
	}
	if !slices.Contains(billingCycles, d.BillingCycle) {
		return unprocessable("Billing cycle is not included in the list")
	}
	return nil
}

func set[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

func (a *API) deleteDevice(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Force bool `json:"force_delete"`
	}
	// A body is optional, and what it says changes nothing here: there are no volumes that a delete
	// could fail on.
	if err := readJSON(w, r, &request); err != nil {
		writeError(w, err)
		return
	}
	id := r.PathValue("id")
	err := a.locked(func() error {
		d := a.devices[id]
		switch {
		case d == nil:
			return errNotFound
		case d.State == stateQueued:
			return unprocessable("Cannot delete a device while it is provisioning")
		case d.State == stateReinstalling:
			return unprocessable("Cannot delete a device while it is reinstalling")
		case d.Locked:
			return unprocessable("Cannot delete a device while it is locked")
		}
		return a.forget(d, Change{})
	})
	if err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// forget deletes a device and begins to deprovision its slot. The caller holds the lock.
func (a *API) forget(d *device, extra Change) error {
	slot := slotState{}
	if old := a.slots[d.Slot]; old != nil {
		slot = *old
	}
	slot.FreeAt = now().Add(a.duration(a.cfg.Durations.Deprovisioning, "deprovisioning", d.Number))
	changes := []Change{{Key: "device/" + d.ID}, put("slot/"+strconv.Itoa(d.Slot), &slot)}
	if extra.Key != "" {
		changes = append(changes, extra)
	}
	if err := a.commit(changes...); err != nil {
		return err
	}
	delete(a.devices, d.ID)
	delete(a.bySlot, d.Slot)
	a.slots[d.Slot] = &slot
	if a.spawn != nil {
		a.spawn(func(ctx context.Context) { a.remove(ctx, d.ID) })
	}
	return nil
}

// remove removes the machine of a deleted device.
func (a *API) remove(ctx context.Context, id string) {
	if err := a.cfg.Hardware.Remove(ctx, id); err != nil && ctx.Err() == nil {
		a.cfg.Logger.Error("machine could not be removed", slog.String("device", id), slog.Any("err", err))
	}
}

// Devices lists the IDs of all devices that exist and have a machine, or are to get one.
func (a *API) Devices() []string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Collect(maps.Keys(a.devices))
}
