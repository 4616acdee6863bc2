package equinixapi

import (
	"context"
	"slices"
	"strconv"
	"time"
)

// goneDevice is what is kept of a device that was deleted, or that failed and vanished: its
// history.
type goneDevice struct {
	ID      string `json:"id"`
	Project string `json:"project"`
	// Number counts the devices that are gone, from 1.
	Number int     `json:"number"`
	Events []event `json:"events"`
}

// forget deletes devices and begins to deprovision their slots. extra is recorded with that. The
// caller holds the lock.
func (a *API) forget(devices []*device, extra ...Change) (err error) {
	before := a.counters
	defer func() {
		if err != nil {
			a.counters = before
		}
	}()
	changes := extra
	var gone []*goneDevice
	slots := map[int]*slotState{}
	at := now()
	for _, d := range devices {
		last := *d
		a.addEvent(&last, "deprovisioning.started", "Deprovisioning started", true)
		a.counters.Gone++
		g := &goneDevice{ID: d.ID, Project: d.Project, Number: a.counters.Gone, Events: a.eventsOf(&last, at)}
		slot := slotState{}
		if old := a.slots[d.Slot]; old != nil {
			slot = *old
		}
		slot.FreeAt = at.Add(a.duration(a.cfg.Durations.Deprovisioning, "deprovisioning", d.Number))
		slot.Named = ""
		if d.Reservation != "" && happens(a.cfg.NameLate) {
			slot.Named = d.ID
		}
		gone, slots[d.Slot] = append(gone, g), &slot
		changes = append(changes, Change{Key: "device/" + d.ID}, put("gone/"+d.ID, g), put("slot/"+strconv.Itoa(d.Slot), &slot))
	}
	var old []string
	for id, g := range a.gone {
		if g.Number <= a.counters.Gone-a.cfg.MaxGone {
			old, changes = append(old, id), append(changes, Change{Key: "gone/" + id})
		}
	}
	if err := a.commit(append(changes, put("counters", a.counters))...); err != nil {
		return err
	}
	for _, id := range old {
		delete(a.gone, id)
	}
	for i, d := range devices {
		delete(a.devices, d.ID)
		delete(a.bySlot, d.Slot)
		a.slots[d.Slot], a.gone[d.ID] = slots[d.Slot], gone[i]
		if a.spawn != nil {
			a.spawn(func(ctx context.Context) { a.remove(ctx, d.ID) })
		}
	}
	return nil
}

// stepsAsEvents are the steps of the newest installation that are done.
func (a *API) stepsAsEvents(d *device, at time.Time) []event {
	var list []event
	for _, s := range d.stepsOf() {
		if when, ok := d.done(s, at); ok {
			list = append(list, event{ID: a.stepID(d, s), Type: s.kind, Body: s.body, Created: when})
		}
	}
	return list
}

// eventsOf lists what has happened to a device.
func (a *API) eventsOf(d *device, at time.Time) []event {
	return slices.Concat(a.stepsAsEvents(d, at), d.Events)
}

// pastEvent is an event of a device as it is listed.
type pastEvent struct {
	event
	device string
}

// history lists the events of the devices that are wanted, also of those that are gone.
func (a *API) history(want func(id, project string) bool) []pastEvent {
	at := now()
	var list []pastEvent
	add := func(id, project string, events func() []event) {
		if want(id, project) {
			for _, e := range events() {
				list = append(list, pastEvent{e, id})
			}
		}
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	for id, d := range a.devices {
		add(id, d.Project, func() []event { return a.eventsOf(d, at) })
	}
	for id, g := range a.gone {
		add(id, g.Project, func() []event { return g.Events })
	}
	return list
}
