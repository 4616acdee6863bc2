package equinixapi

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// The states of a device.
const (
	stateQueued       = "queued"
	stateProvisioning = "provisioning"
	stateActive       = "active"
	stateInactive     = "inactive"
	statePoweringOn   = "powering_on"
	statePoweringOff  = "powering_off"
	stateReinstalling = "reinstalling"
	stateFailed       = "failed"
)

// device is one device. A value is never changed once others can see it: a change makes a new one.
type device struct {
	ID string `json:"id"`
	// Number counts the devices that were ever created, from 1.
	Number      int    `json:"number"`
	Slot        int    `json:"slot"`
	Reservation string `json:"reservation,omitempty"`
	Project     string `json:"project"`

	Hostname        string          `json:"hostname"`
	Description     *string         `json:"description,omitempty"`
	Plan            string          `json:"plan"`
	OS              string          `json:"os"`
	BillingCycle    string          `json:"billing_cycle"`
	Tags            []string        `json:"tags"`
	UserData        string          `json:"userdata,omitempty"`
	IPXEScriptURL   string          `json:"ipxe_script_url,omitempty"`
	AlwaysPXE       bool            `json:"always_pxe,omitempty"`
	Locked          bool            `json:"locked,omitempty"`
	NetworkFrozen   bool            `json:"network_frozen,omitempty"`
	Spot            bool            `json:"spot,omitempty"`
	SpotPriceMax    float64         `json:"spot_price_max,omitempty"`
	TerminationTime *time.Time      `json:"termination_time,omitempty"`
	CustomData      json.RawMessage `json:"customdata,omitempty"`
	Storage         json.RawMessage `json:"storage,omitempty"`
	// Keys are the SSH keys that were chosen at creation; InlineKeys were in the request.
	Keys       []string `json:"keys,omitempty"`
	InlineKeys []string `json:"inline_keys,omitempty"`
	// Addresses are the kinds of address that it has.
	Addresses []address `json:"addresses,omitempty"`

	State   string    `json:"state"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
	// From and To bound the newest installation of the provider's operating system; before From it is
	// queued.
	From       time.Time `json:"from"`
	To         time.Time `json:"to"`
	Generation int       `json:"generation"`
	WillFail   bool      `json:"will_fail,omitempty"`
	// Task is what is under way; nil in a state that stays.
	Task   *task   `json:"task,omitempty"`
	Events []event `json:"events,omitempty"`
	// Vanishes is when it is gone without anybody having asked; nil: never.
	Vanishes *time.Time `json:"vanishes,omitempty"`
	// Reboot is the one that is asked for and has not begun. It is no task: the device stays active.
	Reboot *reboot `json:"reboot,omitempty"`

	// before is the device as it was before its newest change, as far as that is remembered. It is no
	// part of the value.
	before *device
	// rendered is the newest rendering, kept for lists. It is no part of the value.
	rendered *atomic.Pointer[rendering]
}

// task moves a device to another state.
type task struct {
	Kind string    `json:"kind"`
	Due  time.Time `json:"due"`
}

// reboot resets a machine when it is due.
type reboot struct {
	Due    time.Time `json:"due"`
	Rescue bool      `json:"rescue,omitempty"`
}

// The kinds of task.
const (
	taskProvision = "provision"
	taskReinstall = "reinstall"
	taskPowerOff  = "power_off"
	taskPowerOn   = "power_on"
)

// event is something that happened to a device, other than its provisioning.
type event struct {
	ID      string    `json:"id"`
	Type    string    `json:"type"`
	Body    string    `json:"body"`
	Created time.Time `json:"created"`
	// ByUser is set for what the user asked for.
	ByUser bool `json:"by_user,omitempty"`
}

// key is an SSH key, of a project or, without one, of the user.
type key struct {
	ID      string    `json:"id"`
	Number  int       `json:"number"`
	Label   string    `json:"label"`
	Key     string    `json:"key"`
	Tags    []string  `json:"tags,omitempty"`
	Project string    `json:"project,omitempty"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
}

type project struct {
	ID              string    `json:"id"`
	Name            string    `json:"name"`
	BackendTransfer bool      `json:"backend_transfer,omitempty"`
	Tags            []string  `json:"tags,omitempty"`
	Created         time.Time `json:"created"`
}

// slotState is what a slot remembers beyond the device in it.
type slotState struct {
	// FreeAt is when its deprovisioning ends. Until then its reservation names the device Named, if
	// any, which is gone.
	FreeAt time.Time `json:"free_at,omitzero"`
	Named  string    `json:"named,omitempty"`
	// Project that the reservation was moved to, and whether a spare was activated.
	Project   string `json:"project,omitempty"`
	Activated bool   `json:"activated,omitempty"`
}

type counters struct {
	Devices  int `json:"devices"`
	Failed   int `json:"failed"`
	Keys     int `json:"keys"`
	Projects int `json:"projects"`
	Events   int `json:"events"`
	Batches  int `json:"batches,omitempty"`
	Gone     int `json:"gone,omitempty"`
}

func put(name string, value any) Change {
	text, err := json.Marshal(value)
	if err != nil {
		// our own types; raw JSON in them was checked
		panic(fmt.Sprintf("equinixapi: %s cannot be encoded: %v", name, err))
	}
	return Change{Key: name, Value: text}
}

// commit makes changes durable. The caller holds the lock, and makes them visible afterwards.
func (a *API) commit(changes ...Change) error {
	if err := a.cfg.Commit(changes...); err != nil {
		a.cfg.Logger.Error("provider could not record a change", slog.Any("err", err))
		return err
	}
	return nil
}

func (a *API) load(state map[string][]byte) error {
	for name, text := range state {
		kind, id, _ := strings.Cut(name, "/")
		var err error
		switch kind {
		case "device":
			err = load(a.devices, id, text)
			if d := a.devices[id]; err == nil {
				d.rendered = new(atomic.Pointer[rendering])
				a.bySlot[d.Slot] = id
			}
		case "key":
			err = load(a.keys, id, text)
		case "project":
			err = load(a.projects, id, text)
		case "batch":
			err = load(a.batches, id, text)
		case "gone":
			err = load(a.gone, id, text)
		case "slot":
			var slot int
			if slot, err = strconv.Atoi(id); err == nil {
				err = load(a.slots, slot, text)
			}
		case "counters":
			err = json.Unmarshal(text, &a.counters)
		}
		if err != nil {
			return fmt.Errorf("state of the provider: %s: %w", name, err)
		}
	}
	return nil
}

func load[K comparable, V any](into map[K]*V, id K, text []byte) error {
	value := new(V)
	if err := json.Unmarshal(text, value); err != nil {
		return err
	}
	into[id] = value
	return nil
}

// change makes a new value of a device, records it and makes it visible. An error of edit is
// returned as it is. The caller holds the lock.
func (a *API) change(id string, edit func(*device) error) (*device, error) {
	old := a.devices[id]
	if old == nil {
		return nil, errNotFound
	}
	next, last := *old, *old
	last.before = nil // one step is remembered
	next.before = &last
	next.rendered = new(atomic.Pointer[rendering])
	next.Updated = now()
	before := a.counters
	if err := edit(&next); err != nil {
		a.counters = before
		return nil, err
	}
	changes := []Change{put("device/"+id, &next)}
	if a.counters != before {
		changes = append(changes, put("counters", a.counters))
	}
	if err := a.commit(changes...); err != nil {
		a.counters = before
		return nil, err
	}
	a.devices[id] = &next
	return &next, nil
}

// addEvent adds an event to a device that is being changed.
func (a *API) addEvent(d *device, kind, body string, byUser bool) {
	a.counters.Events++
	e := event{ID: a.id("event", a.counters.Events), Type: kind, Body: body, Created: now(), ByUser: byUser}
	d.Events = append(d.Events[:len(d.Events):len(d.Events)], e)
	if extra := len(d.Events) - maxEvents; extra > 0 {
		d.Events = d.Events[extra:]
	}
}

// maxEvents bounds how many events of a device are kept.
const maxEvents = 200
