package equinixapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"
)

// actionRequest acts on a device.
type actionRequest struct {
	Type            string `json:"type"`
	OperatingSystem string `json:"operating_system"`
	PreserveData    bool   `json:"preserve_data"`
	IPXEScriptURL   string `json:"ipxe_script_url"`
}

// actionsIn are the actions that are possible in a state.
func actionsIn(state string) []obj {
	switch state {
	case stateActive:
		return []obj{
			{"type": "power_off", "name": "Power off"},
			{"type": "reboot", "name": "Reboot"},
			{"type": "rescue", "name": "Rescue"},
			{"type": "reinstall", "name": "Reinstall"},
		}
	case stateInactive:
		return []obj{{"type": "power_on", "name": "Power on"}, {"type": "reinstall", "name": "Reinstall"}}
	}
	return []obj{}
}

func (a *API) actOnDevice(w http.ResponseWriter, r *http.Request) {
	var request actionRequest
	if err := readJSON(w, r, &request); err != nil {
		writeError(w, err)
		return
	}
	id := r.PathValue("id")
	if err := a.act(id, request); err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

func (a *API) act(id string, q actionRequest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.devices[id]
	if d == nil {
		return errNotFound
	}
	switch q.Type {
	case "reboot", "rescue":
		return a.reboot(d, q.Type == "rescue")
	case "power_off":
		if d.State != stateActive {
			return unprocessable("Device must be powered on")
		}
		return a.begin(id, statePoweringOff, taskPowerOff, "Power off operation queued", a.cfg.Durations.PowerOff)
	case "power_on":
		if d.State != stateInactive {
			return unprocessable("Device must be powered off")
		}
		return a.begin(id, statePoweringOn, taskPowerOn, "Power on operation queued", a.cfg.Durations.PowerOn)
	case "reinstall":
		return a.reinstall(d, q)
	}
	return unprocessable("Type is not included in the list")
}

// reboot resets the machine, first where that takes no time: then the answer promises that it has
// happened. Else it is reset later, and whoever asks sees an active device meanwhile.
func (a *API) reboot(d *device, rescue bool) error {
	if d.State != stateActive {
		return unprocessable("Device must be powered on")
	}
	takes := a.duration(a.cfg.Durations.Reboot, "reboot", a.counters.Events)
	if takes == 0 {
		if err := a.reset(d.ID, rescue); err != nil {
			return err
		}
	}
	d, err := a.change(d.ID, func(d *device) error {
		a.addEvent(d, "power.200", "Reboot operation queued", true)
		a.addEvent(d, "power.203", "Device rebooted", false)
		if takes > 0 {
			d.Reboot = &reboot{Due: now().Add(takes), Rescue: rescue}
		}
		return nil
	})
	if err == nil {
		a.rebootLater(d)
	}
	return err
}

func (a *API) reset(id string, rescue bool) error {
	err := a.cfg.Hardware.Reset(id, rescue)
	if err != nil {
		a.cfg.Logger.Error("machine could not be reset", slog.String("device", id), slog.Any("err", err))
	}
	return err
}

// rebootLater resets a machine when its reboot is due, unless another action has come in between.
// Before Start it does nothing, because Start calls it, too. The caller holds the lock.
func (a *API) rebootLater(d *device) {
	if d.Reboot == nil || a.spawn == nil {
		return
	}
	id, asked := d.ID, d.Reboot
	a.spawn(func(ctx context.Context) {
		if !until(ctx, asked.Due) {
			return
		}
		_ = a.locked(func() error {
			if d := a.devices[id]; d == nil || d.Reboot != asked {
				return nil
			}
			if err := a.reset(id, asked.Rescue); err != nil {
				return err
			}
			_, err := a.change(id, func(d *device) error {
				d.Reboot = nil
				return nil
			})
			return err
		})
	})
}

// begin puts a device into a transitional state.
func (a *API) begin(id, state, kind, what string, takes Span) error {
	_, err := a.change(id, func(d *device) error {
		a.addEvent(d, "power.200", what, true)
		a.addEvent(d, "power.201", "Power operation started", false)
		d.State, d.Reboot = state, nil
		d.Task = &task{Kind: kind, Due: now().Add(a.duration(takes, kind, a.counters.Events))}
		return nil
	})
	if err == nil {
		a.start(id)
	}
	return err
}

func (a *API) reinstall(d *device, q actionRequest) error {
	system, known := a.systemOf(d.OS)
	if q.OperatingSystem != "" {
		system, known = a.systemOf(q.OperatingSystem)
	}
	switch {
	case d.Task != nil || d.State == stateFailed:
		return unprocessable("Device cannot be reinstalled in its present state")
	case d.Locked:
		return unprocessable("Cannot reinstall a device while it is locked")
	case !known:
		return unprocessable(q.OperatingSystem + " is not a valid operating system")
	}
	_, err := a.change(d.ID, func(d *device) error {
		// The next installation has steps of its own.
		d.Events = slices.Concat(d.Events, a.stepsAsEvents(d, now()))
		a.addEvent(d, "provisioning.100", "Reinstall operation queued", true)
		d.State, d.OS = stateReinstalling, system.slug
		if q.IPXEScriptURL != "" {
			d.IPXEScriptURL = q.IPXEScriptURL
		}
		d.Generation++
		d.WillFail, d.Reboot = happens(a.cfg.FailReinstall), nil
		d.From = now()
		d.To = d.From.Add(a.duration(a.cfg.Durations.Provisioning, "reinstall", d.Number*1000+d.Generation))
		d.Task = &task{Kind: taskReinstall, Due: d.To}
		return nil
	})
	if err == nil {
		a.start(d.ID)
	}
	return err
}

// start runs the task of a device. Before Start it does nothing, because Start finds the task
// itself. The caller holds the lock.
func (a *API) start(id string) {
	if a.spawn != nil {
		a.spawn(func(ctx context.Context) { a.perform(ctx, id) })
	}
}

// until waits for an instant, and reports whether it came before ctx ended.
func until(ctx context.Context, at time.Time) bool {
	wait := time.Until(at)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// perform carries out the task of a device. When the context ends, the task stays for the next
// Start.
func (a *API) perform(ctx context.Context, id string) {
	d, ok := a.deviceOf(id)
	if !ok || d.Task == nil {
		return
	}
	var err error
	var finish func(*device)
	switch d.Task.Kind {
	case taskProvision, taskReinstall:
		if !until(ctx, d.From) {
			return
		}
		if d.WillFail {
			if d.Task.Kind == taskReinstall { // what ran there ends all the same
				if err := a.cfg.Hardware.PowerOff(ctx, id); err != nil && ctx.Err() == nil {
					a.cfg.Logger.Error("machine stays on", slog.String("device", id), slog.Any("err", err))
				}
			}
			if until(ctx, d.To) {
				a.failed(id)
			}
			return
		}
		err = a.cfg.Hardware.Deploy(ctx, a.deployment(d), d.To)
		finish = func(d *device) { d.State = stateActive }
	case taskPowerOff:
		if !until(ctx, d.Task.Due) {
			return
		}
		err = a.cfg.Hardware.PowerOff(ctx, id)
		finish = func(d *device) {
			d.State = stateInactive
			a.addEvent(d, "power.202", "Device powered off", false)
		}
	case taskPowerOn:
		if !until(ctx, d.Task.Due) {
			return
		}
		err = a.cfg.Hardware.PowerOn(ctx, id)
		finish = func(d *device) {
			d.State = stateActive
			a.addEvent(d, "power.204", "Device powered on", false)
		}
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		if _, there := a.deviceOf(id); there {
			a.cfg.Logger.Error("machine failed", slog.String("device", id), slog.String("task", d.Task.Kind), slog.Any("err", err))
			a.failed(id)
		}
		return
	}
	a.settle(id, finish)
}

// settle ends the task of a device, unless the device is gone.
func (a *API) settle(id string, finish func(*device)) {
	err := a.locked(func() error {
		_, err := a.change(id, func(d *device) error {
			d.Task = nil
			finish(d)
			return nil
		})
		return err
	})
	if err != nil && !errors.Is(err, errNotFound) {
		a.cfg.Logger.Error("device stays as it is", slog.String("device", id), slog.Any("err", err))
	}
}

// failed ends a provisioning that failed. A device on a reservation stays, so that its owner can
// see it; any other device is deleted.
func (a *API) failed(id string) {
	err := a.locked(func() error {
		d := a.devices[id]
		if d == nil {
			return nil
		}
		fail := func(d *device) error {
			d.State, d.Task = stateFailed, nil
			a.counters.Failed++
			a.addEvent(d, "provisioning.failed", "Provisioning failed", false)
			return nil
		}
		if d.Reservation != "" {
			_, err := a.change(id, fail)
			return err
		}
		before, last := a.counters, *d
		err := fail(&last)
		if err == nil {
			err = a.forget([]*device{&last})
		}
		if err != nil {
			a.counters = before
		}
		return err
	})
	if err != nil {
		a.cfg.Logger.Error("device stays as it is", slog.String("device", id), slog.Any("err", err))
	}
}

// deployment describes the machine that a device needs.
func (a *API) deployment(d *device) Deployment {
	a.mu.RLock()
	defer a.mu.RUnlock()
	keys := append([]string{}, d.InlineKeys...)
	for _, id := range d.Keys {
		if k := a.keys[id]; k != nil {
			keys = append(keys, k.Key)
		}
	}
	return Deployment{
		Device: d.ID, Slot: d.Slot, Generation: d.Generation, Hostname: d.Hostname, AuthorizedKeys: keys, UserData: d.UserData,
	}
}
