package equinixapi

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

func reservationHref(id string) string { return Prefix + "/hardware-reservations/" + id }

func (a *API) reservationID(slot int) string { return a.id("reservation", slot) }

// slotOfReservation finds the slot of a reservation.
func (a *API) slotOfReservation(id string) (int, bool) {
	slot, ok := a.reservations[id]
	return slot, ok
}

// slotFree reports whether nothing is in a slot or being removed from it. The caller holds the
// lock.
func (a *API) slotFree(slot int, at time.Time) bool {
	s := a.slots[slot]
	return a.bySlot[slot] == "" && (s == nil || !at.Before(s.FreeAt))
}

// spare reports whether a reservation is a spare that nobody has activated. The caller holds the
// lock.
func (a *API) spare(slot int) bool {
	s := a.slots[slot]
	return slot >= a.cfg.Reservations-a.cfg.Spares && (s == nil || !s.Activated)
}

// provisionable reports whether a device can be created on a reservation. The caller holds the
// lock.
func (a *API) provisionable(slot int, at time.Time) bool {
	return a.slotFree(slot, at) && !a.spare(slot)
}

// reservationProject is the project that a reservation belongs to. The caller holds the lock.
func (a *API) reservationProject(slot int) string {
	if s := a.slots[slot]; s != nil && a.projects[s.Project] != nil {
		return s.Project
	}
	return a.project
}

// reservation is what is known of one at an instant.
type reservation struct {
	slot                 int
	project              string
	device               *device
	named                string // a device that is gone, and that the reservation still names
	provisionable, spare bool
}

// reservationAt looks at a reservation. The caller holds the lock.
func (a *API) reservationAt(slot int, at time.Time) reservation {
	r := reservation{
		slot: slot, project: a.reservationProject(slot), device: a.devices[a.bySlot[slot]],
		provisionable: a.provisionable(slot, at), spare: a.spare(slot),
	}
	if s := a.slots[slot]; s != nil && r.device == nil && !a.slotFree(slot, at) {
		r.named = s.Named
	}
	return r
}

func (a *API) renderReservation(r reservation, v view) obj {
	slot := a.cfg.Slot(r.slot)
	id := a.reservationID(r.slot)
	plan, _ := a.planOf(slot.Plan)
	place := metroOf(slot.Metro)
	o := obj{
		"id": id, "short_id": id[:8], "href": reservationHref(id), "created_at": epoch, "termination_time": nil,
		"provisionable": r.provisionable, "spare": r.spare, "need_of_service": false, "switch_uuid": a.switchOf(r.slot),
		"custom_rate": 0.0, "intervals": 12, "current_period": 1,
		"plan":     a.embedPlan(plan, v),
		"facility": a.embedFacility(place, v),
		"metro":    a.embedMetro(place, v),
		"project":  v.ref("project", projectHref(r.project), a.renderProjectOf(r.project)),
		"device":   nil,
	}
	if r.named != "" {
		o["device"] = hrefTo(deviceHref(r.named)) // nothing more is known of it
	}
	if r.device != nil {
		o["device"] = hrefTo(deviceHref(r.device.ID))
		if _, included := v.include["device"]; included {
			o["device"] = raw(a.renderForList(r.device, v.below("device")))
		}
	}
	return o
}

// renderProjectOf renders a project by ID, if it is still there.
func (a *API) renderProjectOf(id string) func(view) obj {
	return func(v view) obj {
		p, ok := a.projectOf(id)
		if !ok {
			return hrefTo(projectHref(id))
		}
		return a.renderProject(p, v)
	}
}

// switchOf is the short ID of the switch that a slot is connected to: one for each forty.
func (a *API) switchOf(slot int) string { return a.id("switch", slot/40)[:8] }

func (a *API) listReservations(w http.ResponseWriter, r *http.Request) {
	project, query := r.PathValue("id"), r.URL.Query()
	if err := wrongReservationFilter(query); err != nil {
		writeError(w, err)
		return
	}
	at := now().Add(asked(a.cfg.Early))
	list := make([]reservation, 0, a.cfg.Reservations)
	a.mu.RLock()
	for slot := range a.cfg.Reservations {
		if res := a.reservationAt(slot, at); project == "" || res.project == project {
			list = append(list, res)
		}
	}
	a.mu.RUnlock()
	kept := list[:0]
	search := cmp.Or(query.Get("query"), query.Get("search"))
	for _, res := range list {
		state := query.Get("state")
		if query.Get("provisionable") == "only" && !res.provisionable ||
			state == "active" && res.spare || state == "spare" && !res.spare || state == "need_of_service" ||
			!a.reservationMatches(res, search) {
			continue
		}
		kept = append(kept, res)
	}
	err := arrange(a, r, kept, map[string]func(reservation) string{
		"id":         func(res reservation) string { return a.reservationID(res.slot) },
		"short_id":   func(res reservation) string { return a.reservationID(res.slot) },
		"created_at": func(res reservation) string { return strconv.Itoa(1_000_000 + res.slot) },
	})
	if err != nil {
		writeError(w, err)
		return
	}
	v := viewOf(r)
	writePage(a, w, r, "hardware_reservations", kept, func(res reservation) []byte { return encode(a.renderReservation(res, v)) })
}

func wrongReservationFilter(query url.Values) error {
	if query.Has("provisionable") {
		if err := oneOf("provisionable", query.Get("provisionable"), "only"); err != nil {
			return err
		}
	}
	if query.Has("state") {
		return oneOf("state", query.Get("state"), "active", "spare", "need_of_service")
	}
	return nil
}

func (a *API) reservationMatches(r reservation, text string) bool {
	slot := a.cfg.Slot(r.slot)
	return strings.Contains(a.reservationID(r.slot), text) || strings.Contains(slot.Plan, text) ||
		r.device != nil && strings.Contains(r.device.Hostname, text)
}

func (a *API) getReservation(w http.ResponseWriter, r *http.Request) {
	slot, ok := a.slotOfReservation(r.PathValue("id"))
	if !ok {
		writeError(w, errNotFound)
		return
	}
	a.mu.RLock()
	res := a.reservationAt(slot, now())
	a.mu.RUnlock()
	writeJSON(w, http.StatusOK, a.renderReservation(res, viewOf(r)))
}

func (a *API) moveReservation(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Project string `json:"project_id"`
	}
	if err := readJSON(w, r, &request); err != nil {
		writeError(w, err)
		return
	}
	a.changeSlot(w, r, func(slot int, s *slotState) error {
		switch {
		case a.projects[request.Project] == nil:
			return unprocessable("Project is not valid")
		case a.bySlot[slot] != "":
			return unprocessable("Cannot move a hardware reservation that has a device")
		}
		s.Project = request.Project
		return nil
	})
}

func (a *API) activateReservation(w http.ResponseWriter, r *http.Request) {
	a.changeSlot(w, r, func(slot int, s *slotState) error {
		if !a.spare(slot) {
			return unprocessable("Only spare hardware reservations can be activated")
		}
		s.Activated = true
		return nil
	})
}

func (a *API) changeSlot(w http.ResponseWriter, r *http.Request, edit func(int, *slotState) error) {
	slot, ok := a.slotOfReservation(r.PathValue("id"))
	if !ok {
		writeError(w, errNotFound)
		return
	}
	var res reservation
	err := a.locked(func() error {
		next := slotState{}
		if old := a.slots[slot]; old != nil {
			next = *old
		}
		if err := edit(slot, &next); err != nil {
			return err
		}
		if err := a.commit(put("slot/"+strconv.Itoa(slot), &next)); err != nil {
			return err
		}
		a.slots[slot] = &next
		res = a.reservationAt(slot, now())
		return nil
	})
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusCreated, a.renderReservation(res, viewOf(r)))
}
