package equinixapi

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"
)

// step is one step of provisioning: its event, and when it is done as a share of the whole.
type step struct {
	kind, body string
	at         float64
	// ipxe is set for those that a machine takes that boots a script of the customer's.
	ipxe bool
}

var steps = []step{
	{"provisioning.101", "Provisioning started", 0, true},
	{"provisioning.102", "Network configured", 0.1, true},
	{"provisioning.103", "Configuration written, restarting device", 0.2, true},
	{"provisioning.104", "Connected to magic install system", 0.35, false},
	{"provisioning.105", "Server partitions created", 0.45, false},
	{"provisioning.106", "Operating system packages installed", 0.6, false},
	{"provisioning.107", "Server networking interfaces configured", 0.75, false},
	{"provisioning.108", "Cloud-init packages installed and configured", 0.85, false},
	{"provisioning.109", "Installation finished, rebooting server", 0.9, false},
	{"provisioning.110", "Device phoned home and is ready to go", 1, true},
}

// stepsOf are the steps that a device takes.
func (d *device) stepsOf() []step {
	if d.OS != "custom_ipxe" {
		return steps
	}
	return slices.DeleteFunc(slices.Clone(steps), func(s step) bool { return !s.ipxe })
}

// done is when a step was done; ok is false while it is not.
func (d *device) done(s step, at time.Time) (time.Time, bool) {
	when := d.From.Add(time.Duration(float64(d.To.Sub(d.From)) * s.at))
	last := s.at == 1
	// The last step is done when the machine is, and a failed installation gets half way.
	if at.Before(when) || last && (d.Task != nil && d.Task.Kind != taskPowerOff && d.Task.Kind != taskPowerOn || d.State == stateFailed) ||
		d.State == stateFailed && s.at > 0.5 {
		return time.Time{}, false
	}
	return when, true
}

func (d *device) percentage(at time.Time) float64 {
	list := d.stepsOf()
	n := 0
	for _, s := range list {
		if _, ok := d.done(s, at); ok {
			n++
		}
	}
	return float64(n) * 100 / float64(len(list))
}

func (a *API) stepID(d *device, s step) string { return a.id(s.kind, d.Number*1000+d.Generation) }

// renderProvisioning lists all steps, those that are not done without ID and time. Excluded, it
// lists references to those that are done: the others have none.
func (a *API) renderProvisioning(d *device, v view, at time.Time) []obj {
	list := make([]obj, 0, len(steps))
	for _, s := range d.stepsOf() {
		if v.excludes("provisioning_events") {
			if _, ok := d.done(s, at); ok {
				list = append(list, hrefTo(Prefix+"/events/"+a.stepID(d, s)))
			}
			continue
		}
		o := obj{"id": nil, "type": s.kind, "body": s.body, "interpolated": s.body, "created_at": nil, "relationships": []obj{}, "state": nil}
		if when, ok := d.done(s, at); ok {
			o["id"], o["created_at"] = a.stepID(d, s), when
			o["href"] = Prefix + "/events/" + a.stepID(d, s)
		}
		list = append(list, o)
	}
	return list
}

func (a *API) renderEvent(e pastEvent, v view) obj {
	o := obj{
		"id": e.ID, "href": Prefix + "/events/" + e.ID, "type": e.Type, "body": e.Body, "interpolated": e.Body, "state": nil,
		"created_at": e.Created, "ip": nil, "modified_by": nil,
		"relationships": []obj{v.ref("relationships", "#"+e.device, func(v view) obj {
			if d, ok := a.deviceOf(e.device); ok {
				return a.renderDevice(d, v)
			}
			return hrefTo("#" + e.device)
		})},
	}
	if e.ByUser {
		o["ip"], o["modified_by"] = "127.0.0.1", v.embed("modified_by", a.userHref(), a.renderCreator)
	}
	return o
}

func (a *API) writeEvents(w http.ResponseWriter, r *http.Request, want func(id, project string) bool) {
	list := a.history(want)
	slices.SortFunc(list, func(x, y pastEvent) int {
		return cmp.Or(y.Created.Compare(x.Created), strings.Compare(y.Type, x.Type), strings.Compare(y.ID, x.ID))
	})
	v := viewOf(r)
	writePage(a, w, r, "events", list, func(e pastEvent) []byte { return encode(a.renderEvent(e, v)) })
}

// listDeviceEvents lists the history of a device, also of one that is gone.
func (a *API) listDeviceEvents(w http.ResponseWriter, r *http.Request) {
	wanted := r.PathValue("id")
	a.mu.RLock()
	known := a.devices[wanted] != nil || a.gone[wanted] != nil
	a.mu.RUnlock()
	if !known {
		writeError(w, errNotFound)
		return
	}
	a.writeEvents(w, r, func(id, _ string) bool { return id == wanted })
}

func (a *API) listEvents(w http.ResponseWriter, r *http.Request) {
	wanted := r.PathValue("id")
	a.writeEvents(w, r, func(_, project string) bool { return wanted == "" || project == wanted })
}

func (a *API) getEvent(w http.ResponseWriter, r *http.Request) {
	list := a.history(func(_, _ string) bool { return true })
	i := slices.IndexFunc(list, func(e pastEvent) bool { return e.ID == r.PathValue("id") })
	if i < 0 {
		writeError(w, errNotFound)
		return
	}
	writeJSON(w, http.StatusOK, a.renderEvent(list[i], viewOf(r)))
}
