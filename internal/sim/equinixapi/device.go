package equinixapi

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
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
	a.maybeSteal(r.PathValue("id"), &request)
	made, err := a.create(r.PathValue("id"), []*createRequest{&request}, nil)
	if err != nil {
		writeError(w, err)
		return
	}
	if happens(a.cfg.LoseReply) {
		panic(http.ErrAbortHandler) // the connection is cut
	}
	// What is answered is the moment of creation, however little time is spent in the queue.
	d := made[0]
	writeJSON(w, http.StatusCreated, a.renderDeviceAt(d, viewOf(r), d.Created.Add(-1)))
}

func (a *API) getDevice(w http.ResponseWriter, r *http.Request) {
	at := now()
	d, ok := a.deviceOf(r.PathValue("id"))
	if lag := asked(a.cfg.Stale); ok && lag > 0 {
		at = at.Add(-lag)
		d, ok = d.asOf(at)
	}
	if !ok {
		writeError(w, errNotFound)
		return
	}
	writeJSON(w, http.StatusOK, a.renderDeviceAt(d, viewOf(r), at))
}

func (a *API) getUserData(w http.ResponseWriter, r *http.Request) {
	d, ok := a.deviceOf(r.PathValue("id"))
	if !ok {
		writeError(w, errNotFound)
		return
	}
	writeJSON(w, http.StatusOK, obj{"userdata": d.UserData})
}

// devicesIn lists the devices of a project, or of all projects if it is empty. It lists them in the
// order of their creation.
func (a *API) devicesIn(project string) []*device {
	a.mu.RLock()
	list := slices.Collect(maps.Values(a.devices))
	a.mu.RUnlock()
	list = slices.DeleteFunc(list, func(d *device) bool { return project != "" && d.Project != project })
	byNumber(list)
	return list
}

func (a *API) listDevices(w http.ResponseWriter, r *http.Request) {
	want, err := a.deviceFilter(r.URL.Query())
	if err != nil {
		writeError(w, err)
		return
	}
	list := slices.DeleteFunc(a.devicesIn(r.PathValue("id")), func(d *device) bool { return !want(d) })
	err = arrange(a, r, list, map[string]func(*device) string{
		"id": func(d *device) string { return d.ID }, "hostname": func(d *device) string { return d.Hostname },
		"short_id":   func(d *device) string { return d.ID },
		"state":      func(d *device) string { return d.shownState(now()) },
		"created_at": func(d *device) string { return d.Created.Format(sortable) },
		"updated_at": func(d *device) string { return d.Updated.Format(sortable) },
	})
	if err != nil {
		writeError(w, err)
		return
	}
	v := viewOf(r)
	writePage(a, w, r, "devices", list, func(d *device) []byte { return a.renderForList(d, v) })
}

// sortable is a form of times whose order as text is their order.
const sortable = "2006-01-02T15:04:05.000000000"

// deviceFilters are the filters of a list of devices.
var deviceFilters = []string{
	"search", "hostname", "tag", "facility", "metro", "reserved", "type", "categories", "categories[]", "has_termination_time", "mac_address",
}

// deviceFilter reads the filters of a list of devices.
func (a *API) deviceFilter(query url.Values) (func(*device) bool, error) {
	reserved, err := truthOf(query, "reserved")
	if err != nil {
		return nil, err
	}
	ends, err := truthOf(query, "has_termination_time")
	if err != nil {
		return nil, err
	}
	if query.Has("type") {
		if err := oneOf("type", query.Get("type"), "ondemand", "spot", "reserved"); err != nil {
			return nil, err
		}
	}
	categories := listOf(query, "categories")
	return func(d *device) bool {
		slot := a.cfg.Slot(d.Slot)
		place := metroOf(slot.Metro)
		switch {
		case !strings.Contains(d.Hostname, query.Get("hostname")),
			query.Has("tag") && !slices.Contains(d.Tags, query.Get("tag")),
			query.Has("metro") && query.Get("metro") != place.code && query.Get("metro") != place.id,
			query.Has("facility") && query.Get("facility") != place.facility() && query.Get("facility") != place.facilityID(),
			query.Has("type") && query.Get("type") != d.kind(),
			query.Has("mac_address") && !slices.Contains(slot.MACs[:], query.Get("mac_address")),
			query.Has("search") && !a.matches(d, slot, query.Get("search")),
			len(categories) > 0 && !slices.Contains(categories, category),
			reserved != nil && *reserved != (d.Reservation != ""),
			ends != nil && *ends != (d.TerminationTime != nil):
			return false
		}
		return true
	}, nil
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
	Tags            *names      `json:"tags"`
	AlwaysPXE       *bool       `json:"always_pxe"`
	IPXEScriptURL   *string     `json:"ipxe_script_url"`
	CustomData      *customData `json:"customdata"`
	BillingCycle    *string     `json:"billing_cycle"`
	NetworkFrozen   *bool       `json:"network_frozen"`
	SpotInstance    *bool       `json:"spot_instance"`
	TerminationTime *instant    `json:"termination_time"`
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
	set(&d.Tags, (*[]string)(q.Tags))
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
		d.TerminationTime = q.TerminationTime.pointer()
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
		if d == nil {
			return errNotFound
		}
		if err := d.deletable(); err != nil {
			return err
		}
		return a.forget([]*device{d})
	})
	if err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// deletable says why a device cannot be deleted, if it cannot.
func (d *device) deletable() error {
	switch {
	case d.State == stateQueued:
		return unprocessable("Cannot delete a device while it is provisioning")
	case d.State == stateReinstalling:
		return unprocessable("Cannot delete a device while it is reinstalling")
	case d.Locked:
		return unprocessable("Cannot delete a device while it is locked")
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
