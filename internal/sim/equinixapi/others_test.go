package equinixapi_test

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/sim/equinixapi"
)

// once returns a function that says d at its first call, and nothing later.
func once(d time.Duration) func() time.Duration {
	return func() time.Duration {
		said := d
		d = 0
		return said
	}
}

type reservationShown struct {
	ID            string
	Provisionable bool
	Device        *struct{ Href string }
}

func (r *rig) reservations() []reservationShown {
	var page struct {
		Reservations []reservationShown `json:"hardware_reservations"`
	}
	r.ask("GET", "/metal/v1/projects/"+r.api.ProjectID()+"/hardware-reservations?sort_by=id", "", &page)
	return page.Reservations
}

type listed struct {
	ID, State, Hostname string
	Tags                []string
}

func (r *rig) devices() []listed {
	var page struct{ Devices []listed }
	r.ask("GET", "/metal/v1/projects/"+r.api.ProjectID()+"/devices", "", &page)
	return page.Devices
}

func (r *rig) createOn(reservation string) (code int, id string) {
	var d shown
	code = r.ask("POST", "/metal/v1/projects/"+r.api.ProjectID()+"/devices",
		`{"operating_system":"debian_13","tags":["mine"],"hardware_reservation_id":"`+reservation+`"}`, &d)
	return code, d.ID
}

// TestGetLagsBehindLists: a new device is not there, and one that became active is still being
// provisioned, while lists know better.
func TestGetLagsBehindLists(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lag time.Duration
		r := newRig(t, func(c *equinixapi.Config) { slowly(c); c.Stale = func() time.Duration { return lag } })
		defer func() { r.stop() }()
		_, id := r.createOn(r.reservations()[0].ID)
		time.Sleep(time.Second)
		lag = 2 * time.Second
		if code := r.ask("GET", "/metal/v1/devices/"+id, "", nil); code != http.StatusNotFound || len(r.devices()) != 1 {
			t.Errorf("a new device is there: %d", code)
		}
		time.Sleep(10 * time.Second)
		if d := r.device(id); d.State != "queued" || r.devices()[0].State != "provisioning" {
			t.Errorf("a device that is provisioned is %s", d.State)
		}
		for lag = 0; r.device(id).State != "active"; {
			time.Sleep(100 * time.Millisecond)
		}
		lag = 2 * time.Second
		if d := r.device(id); d.State != "provisioning" || len(d.Password) > 0 {
			t.Errorf("a device that became active is %s", d.State)
		}
		time.Sleep(3 * time.Second)
		if d := r.device(id); d.State != "active" {
			t.Errorf("after the lag it is %s", d.State)
		}
	})
}

// TestListsAreEarly: a list says that a reservation can be used whose device is being removed. The
// reservation itself says that it cannot, and so does who tries.
func TestListsAreEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *equinixapi.Config) { slowly(c); c.Early = func() time.Duration { return time.Hour } })
		defer func() { r.stop() }()
		wanted := r.reservations()[0].ID
		_, id := r.createOn(wanted)
		for r.device(id).State != "active" {
			time.Sleep(time.Second)
		}
		if r.reservations()[0].Provisionable {
			t.Error("a reservation with a device can be used")
		}
		if code := r.ask("DELETE", "/metal/v1/devices/"+id, "", nil); code != http.StatusNoContent {
			t.Fatalf("the device is not deleted: %d", code)
		}
		var one reservationShown
		r.ask("GET", "/metal/v1/hardware-reservations/"+wanted, "", &one)
		code, _ := r.createOn(wanted)
		if !r.reservations()[0].Provisionable || one.Provisionable || code != http.StatusUnprocessableEntity {
			t.Errorf("the list has it as %+v, it is %+v, and a creation is answered %d", r.reservations()[0], one, code)
		}
	})
}

// TestSomebodyElseIsFaster takes a reservation between the look at it and the creation, and gives
// it back.
func TestSomebodyElseIsFaster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *equinixapi.Config) { slowly(c); c.Steal = once(time.Minute) })
		defer func() { r.stop() }()
		wanted := r.reservations()[0]
		code, _ := r.createOn(wanted.ID)
		devices := r.devices()
		if code != http.StatusUnprocessableEntity || len(devices) != 1 || slices.Contains(devices[0].Tags, "mine") || r.reservations()[0].Device == nil {
			t.Errorf("the creation is answered %d, and there are %+v", code, devices)
		}
		// It is given back although the provider is killed meanwhile.
		r.stop()
		r.start()
		time.Sleep(12 * time.Minute)
		if len(r.devices()) != 0 || !r.reservations()[0].Provisionable {
			t.Errorf("it is not given back: %+v", r.devices())
		}
		if code, _ := r.createOn(wanted.ID); code != http.StatusCreated {
			t.Errorf("then the creation is answered %d", code)
		}
	})
}

func TestADeviceVanishes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *equinixapi.Config) { slowly(c); c.Vanish = once(time.Minute) })
		defer func() { r.stop() }()
		_, gone := r.createOn(r.reservations()[0].ID)
		_, stays := r.createOn(r.reservations()[1].ID)
		for r.device(gone).State != "active" {
			time.Sleep(time.Second)
		}
		time.Sleep(50 * time.Second)
		if len(r.devices()) != 2 {
			t.Error("it is gone too early")
		}
		time.Sleep(20 * time.Second)
		if devices := r.devices(); len(devices) != 1 || devices[0].ID != stays {
			t.Errorf("there are %+v", devices)
		}
		if code := r.ask("GET", "/metal/v1/devices/"+gone, "", nil); code != http.StatusNotFound {
			t.Errorf("it answers %d", code)
		}
		time.Sleep(10 * time.Minute)
		if !r.reservations()[0].Provisionable {
			t.Error("its reservation stays occupied")
		}
	})
}

func TestATokenIsRevoked(t *testing.T) {
	t.Parallel()
	status := http.StatusUnauthorized
	r := newRig(t, func(c *equinixapi.Config) {
		c.Disturb = func() equinixapi.Disturbance { return equinixapi.Disturbance{Status: status} }
	})
	defer func() { r.stop() }()
	var answer struct{ Error string }
	if code := r.ask("GET", "/metal/v1/projects", "", &answer); code != status || answer.Error != "Invalid authentication token" {
		t.Errorf("%d %+v", code, answer)
	}
	status = 0
	if code := r.ask("GET", "/metal/v1/projects", "", nil); code != http.StatusOK {
		t.Errorf("afterwards %d", code)
	}
}

// active creates a device on a reservation, and waits until it is active.
func (r *rig) active(reservation string) (id string) {
	r.t.Helper()
	code, id := r.createOn(reservation)
	if code != http.StatusCreated {
		r.t.Fatalf("create: %d", code)
	}
	for r.device(id).State != "active" {
		time.Sleep(time.Second)
	}
	return id
}

func (r *rig) act(id, action string) (code int) {
	return r.ask("POST", "/metal/v1/devices/"+id+"/actions", `{"type":"`+action+`"}`, nil)
}

// TestWhatIsGoneMayBeForbidden: whatever is asked of it, but not its history; and nothing else.
func TestWhatIsGoneMayBeForbidden(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *equinixapi.Config) { slowly(c); c.Forbid = func() bool { return true } })
		defer func() { r.stop() }()
		id := r.active(r.reservations()[0].ID)
		path := "/metal/v1/devices/" + id
		if code := r.ask("DELETE", path, "", nil); code != http.StatusNoContent {
			t.Fatalf("the device is not deleted: %d", code)
		}
		r.stop()
		r.start() // what is gone is remembered
		var said struct{ Errors []string }
		for _, code := range []int{
			r.ask("GET", path, "", &said), r.ask("DELETE", path, "", nil), r.ask("PUT", path, `{}`, nil), r.ask("GET", path+"/userdata", "", nil),
			r.act(id, "reboot"),
		} {
			if code != http.StatusForbidden || !slices.Equal(said.Errors, []string{"You are not authorized to view this device"}) {
				t.Errorf("%d, %q", code, said.Errors)
			}
		}
		if code := r.ask("GET", path+"/events", "", nil); code != http.StatusOK {
			t.Errorf("its history: %d", code)
		}
		if code := r.ask("GET", "/metal/v1/devices/"+r.reservations()[0].ID, "", nil); code != http.StatusNotFound {
			t.Errorf("what never was: %d", code)
		}
	})
}

// TestAReservationNamesWhatIsGone until it is free again, by its reference alone.
func TestAReservationNamesWhatIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		late := true
		r := newRig(t, func(c *equinixapi.Config) { slowly(c); c.NameLate = func() bool { return late } })
		defer func() { r.stop() }()
		wanted := r.reservations()[0].ID
		get := func() (one reservationShown) {
			r.ask("GET", "/metal/v1/hardware-reservations/"+wanted+"?include=device", "", &one)
			return one
		}
		for range 2 {
			id := r.active(wanted)
			r.ask("DELETE", "/metal/v1/devices/"+id, "", nil)
			time.Sleep(239 * time.Second)
			for _, one := range []reservationShown{get(), r.reservations()[0]} {
				if one.Provisionable || (one.Device != nil) != late || late && one.Device.Href != "/metal/v1/devices/"+id {
					t.Errorf("while it is wiped: %+v", one)
				}
			}
			time.Sleep(2 * time.Second)
			if one := get(); !one.Provisionable || one.Device != nil {
				t.Errorf("afterwards: %+v", one)
			}
			late = false
		}
	})
}

// TestAReinstallFails: what ran there has ended, and the device stays as failed.
func TestAReinstallFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *equinixapi.Config) { slowly(c); c.FailReinstall = func() bool { return true } })
		defer func() { r.stop() }()
		id := r.active(r.reservations()[0].ID)
		if code := r.act(id, "reinstall"); code != http.StatusAccepted {
			t.Fatalf("reinstall: %d", code)
		}
		synctest.Wait()
		if d := r.device(id); d.State != "reinstalling" {
			t.Errorf("it is %s", d.State)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if d := r.device(id); d.State != "failed" || !slices.Equal(r.hardware.did(), []string{"deploy 1", "off"}) {
			t.Errorf("it is %s, the machine did %v", d.State, r.hardware.did())
		}
		if code := r.act(id, "reinstall"); code != http.StatusUnprocessableEntity {
			t.Errorf("once more: %d", code)
		}
	})
}

// TestRebootAndPowerOnTakeTime: a reboot that has not begun outlives the process, and is dropped
// where the device is turned off first.
func TestRebootAndPowerOnTakeTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *equinixapi.Config) {
			slowly(c)
			c.Durations.Reboot, c.Durations.PowerOn = equinixapi.Span{Min: 30 * time.Second}, equinixapi.Span{Min: 11 * time.Second}
		})
		defer func() { r.stop() }()
		id := r.active(r.reservations()[0].ID)
		did := func(when, state string, want ...string) {
			t.Helper()
			synctest.Wait()
			if d := r.device(id); d.State != state || !slices.Equal(r.hardware.did(), append([]string{"deploy 1"}, want...)) {
				t.Errorf("%s: it is %s, the machine did %v", when, d.State, r.hardware.did())
			}
		}
		if code := r.act(id, "reboot"); code != http.StatusAccepted {
			t.Fatalf("reboot: %d", code)
		}
		time.Sleep(29 * time.Second)
		did("a reboot has not begun", "active")
		r.stop()
		r.start()
		time.Sleep(2 * time.Second)
		did("a reboot", "active", "reset false")
		r.act(id, "reboot")
		time.Sleep(time.Second)
		r.act(id, "power_off")
		time.Sleep(time.Minute)
		did("turned off", "inactive", "reset false", "off")
		r.act(id, "power_on")
		time.Sleep(10 * time.Second)
		did("being turned on", "powering_on", "reset false", "off")
		time.Sleep(2 * time.Second)
		did("turned on", "active", "reset false", "off", "on")
	})
}
