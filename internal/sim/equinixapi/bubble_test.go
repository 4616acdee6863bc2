package equinixapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/ironherd/ironherd/internal/sim/equinixapi"
)

// ask sends a request straight to the handler.
func (r *rig) ask(method, path, body string, answer any) int {
	r.t.Helper()
	request := httptest.NewRequest(method, path, strings.NewReader(body))
	request.Header.Set("X-Auth-Token", token)
	recorder := httptest.NewRecorder()
	r.api.ServeHTTP(recorder, request)
	if answer != nil {
		if err := json.Unmarshal(recorder.Body.Bytes(), answer); err != nil {
			r.t.Fatalf("%s %s: %v in %s", method, path, err, recorder.Body)
		}
	}
	return recorder.Code
}

type shown struct {
	ID         string
	State      string
	Percentage float64 `json:"provisioning_percentage"`
	Addresses  []any   `json:"ip_addresses"`
	Password   string  `json:"root_password"`
	Events     []struct {
		Type    string
		Created *time.Time `json:"created_at"`
	} `json:"provisioning_events"`
	Reservation *struct{ Provisionable bool } `json:"hardware_reservation"`
}

func (r *rig) device(id string) shown {
	var d shown
	r.ask("GET", "/metal/v1/devices/"+id+"?include=hardware_reservation", "", &d)
	return d
}

func slowly(cfg *equinixapi.Config) {
	cfg.Durations = equinixapi.Durations{
		Queued: equinixapi.Span{Min: 10 * time.Second, Max: 10 * time.Second}, Provisioning: equinixapi.Span{Min: time.Minute, Max: 5 * time.Minute},
		PowerOff: equinixapi.Span{Min: 40 * time.Second}, Deprovisioning: equinixapi.Span{Min: 4 * time.Minute},
	}
}

const create = `{"plan":"c3.small.x86","operating_system":"debian_13","metro":"any","hardware_reservation_id":"next-available"}`

func TestTimesOfADevice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, slowly)
		defer func() { r.stop() }()
		var d shown
		if code := r.ask("POST", "/metal/v1/projects/"+r.api.ProjectID()+"/devices", create, &d); code != http.StatusCreated {
			t.Fatalf("create: %d", code)
		}
		id := d.ID
		expect := func(state string, addresses int) shown {
			t.Helper()
			synctest.Wait()
			d := r.device(id)
			if d.State != state || len(d.Addresses) != addresses {
				t.Fatalf("%s with %d addresses, want %s with %d", d.State, len(d.Addresses), state, addresses)
			}
			return d
		}
		expect("queued", 0)
		time.Sleep(9 * time.Second)
		expect("queued", 0)
		if code := r.ask("DELETE", "/devices/"+id, "", nil); code != http.StatusUnprocessableEntity {
			t.Errorf("delete of a queued device: %d", code)
		}
		time.Sleep(2 * time.Second)
		early := expect("provisioning", 3)
		time.Sleep(40 * time.Second)
		later := expect("provisioning", 3)
		if early.Percentage >= later.Percentage || later.Percentage >= 100 || later.Events[0].Created == nil || later.Events[9].Created != nil {
			t.Errorf("progress from %v to %v, events %v", early.Percentage, later.Percentage, later.Events)
		}
		time.Sleep(5 * time.Minute)
		if d := expect("active", 3); d.Password == "" || d.Events[9].Created == nil || d.Reservation.Provisionable {
			t.Errorf("active: %+v", d)
		}
		r.ask("POST", "/devices/"+id+"/actions", `{"type":"power_off"}`, nil)
		expect("powering_off", 3)
		time.Sleep(41 * time.Second)
		expect("inactive", 3)

		// Deleted: gone at once, and its hardware is free again only after it was wiped.
		var reservations struct {
			List []struct{ Provisionable bool } `json:"hardware_reservations"`
		}
		free := func() (n int) {
			r.ask("GET", "/projects/"+r.api.ProjectID()+"/hardware-reservations", "", &reservations)
			for _, res := range reservations.List {
				if res.Provisionable {
					n++
				}
			}
			return n
		}
		if code := r.ask("DELETE", "/metal/v1/metal/v1/devices/"+id, `{"force_delete":true}`, nil); code != http.StatusNoContent {
			t.Fatalf("delete: %d", code)
		}
		if code := r.ask("GET", "/devices/"+id, "", nil); code != http.StatusNotFound {
			t.Errorf("after the delete: %d", code)
		}
		time.Sleep(239 * time.Second)
		if n := free(); n != 4 {
			t.Errorf("%d reservations are free while one is being wiped, want 4", n)
		}
		time.Sleep(2 * time.Second)
		if n := free(); n != 5 {
			t.Errorf("%d reservations are free, want 5", n)
		}
	})
}

func TestFailedProvisioning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *equinixapi.Config) {
			slowly(cfg)
			cfg.FailProvisioning = func() bool { return true }
		})
		defer func() { r.stop() }()
		var reserved, demanded shown
		path := "/projects/" + r.api.ProjectID() + "/devices"
		r.ask("POST", path, create, &reserved)
		r.ask("POST", path, `{"plan":"c3.small.x86","operating_system":"debian_13","metro":"any"}`, &demanded)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if d := r.device(reserved.ID); d.State != "failed" {
			t.Errorf("on a reservation: %s, want failed", d.State)
		}
		if code := r.ask("GET", "/devices/"+demanded.ID, "", nil); code != http.StatusNotFound {
			t.Errorf("on demand: %d, want 404", code)
		}
		if code := r.ask("DELETE", "/devices/"+reserved.ID, "", nil); code != http.StatusNoContent {
			t.Errorf("delete of a failed device: %d", code)
		}
	})
}

// TestCreatesAndDevicesAgree: whatever is created, deleted and restarted in whatever order, the
// devices are those that were acknowledged, and each reservation has at most one.
func TestCreatesAndDevicesAgree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, slowly)
			defer func() { r.stop() }()
			path := "/metal/v1/projects/" + r.api.ProjectID() + "/devices"
			alive := map[string]bool{}
			for range rapid.IntRange(1, 40).Draw(rt, "steps") {
				switch rapid.SampledFrom([]string{"create", "create", "delete", "wait", "kill"}).Draw(rt, "step") {
				case "create":
					var d shown
					if code := r.ask("POST", path, strings.ReplaceAll(create, "c3.small", rapid.SampledFrom([]string{"c3.small", "m3.large"}).Draw(rt, "plan")), &d); code == http.StatusCreated {
						alive[d.ID] = true
					}
				case "delete":
					for id := range alive {
						if r.ask("DELETE", "/devices/"+id, "", nil) == http.StatusNoContent {
							delete(alive, id)
						}
						break
					}
				case "wait":
					time.Sleep(time.Duration(rapid.IntRange(1, 400).Draw(rt, "seconds")) * time.Second)
					synctest.Wait()
				case "kill":
					r.stop()
					r.start()
				}
			}
			var list struct {
				Devices []struct {
					ID          string
					Reservation *struct{ Href string } `json:"hardware_reservation"`
				}
				Meta struct{ Total int }
			}
			r.ask("GET", path+"?per_page=100", "", &list)
			taken := map[string]bool{}
			for _, d := range list.Devices {
				if !alive[d.ID] || taken[d.Reservation.Href] {
					rt.Fatalf("device %s on %s: alive %v, taken %v", d.ID, d.Reservation.Href, alive[d.ID], taken[d.Reservation.Href])
				}
				taken[d.Reservation.Href] = true
			}
			if len(list.Devices) != len(alive) || list.Meta.Total != len(alive) {
				rt.Fatalf("%d devices (total %d), want %d", len(list.Devices), list.Meta.Total, len(alive))
			}
			time.Sleep(10 * time.Minute) // whatever was under way comes to its end, restarts or not
			synctest.Wait()
			for id := range alive {
				if d := r.device(id); d.State != "active" {
					rt.Fatalf("device %s is %s in the end", id, d.State)
				}
			}
		})
	})
}

func TestACommitThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	var broken bool
	r := newRig(t, func(cfg *equinixapi.Config) {
		commit := cfg.Commit
		cfg.Commit = func(changes ...equinixapi.Change) error {
			if broken {
				return fmt.Errorf("disk full")
			}
			return commit(changes...)
		}
	})
	defer func() { r.stop() }()
	path := "/projects/" + r.api.ProjectID() + "/devices"
	broken = true
	var answer struct{ Errors []string }
	if code := r.ask("POST", path, create, &answer); code != http.StatusInternalServerError || len(answer.Errors) != 1 {
		t.Errorf("create: %d, %v", code, answer)
	}
	broken = false
	var list struct{ Meta struct{ Total int } }
	if r.ask("GET", path, "", &list); list.Meta.Total != 0 {
		t.Errorf("%d devices", list.Meta.Total)
	}
}

func TestDisturbances(t *testing.T) {
	t.Parallel()
	var next atomic.Pointer[equinixapi.Disturbance]
	next.Store(new(equinixapi.Disturbance))
	r := newRig(t, func(cfg *equinixapi.Config) {
		cfg.Disturb = func() equinixapi.Disturbance { return *next.Load() }
		cfg.LoseReply = func() bool { return true }
	})
	c := r.client()
	for _, f := range []struct {
		d     equinixapi.Disturbance
		retry string
		json  bool
	}{
		{equinixapi.Disturbance{Status: 429, RetryAfter: 1500 * time.Millisecond}, "2", true},
		{equinixapi.Disturbance{Status: 429}, "", true},
		{equinixapi.Disturbance{Status: 500}, "", true},
		{equinixapi.Disturbance{Status: 502}, "", false},
	} {
		next.Store(&f.d)
		_, response, err := c.Projects.List(nil)
		if err == nil || response.StatusCode != f.d.Status || response.Header.Get("Retry-After") != f.retry ||
			(response.Header.Get("X-Request-Id") != "") != f.json || strings.HasPrefix(response.Header.Get("Content-Type"), "application/json") != f.json {
			t.Errorf("%+v: %v, %v", f.d, response, err)
		}
	}
	next.Store(&equinixapi.Disturbance{Cut: true})
	if _, _, err := c.Projects.List(nil); err == nil || statusOf(err) != 0 {
		t.Errorf("cut: %v", err)
	}
	next.Store(new(equinixapi.Disturbance))
	q := request("c3.small.x86", "any", "next-available")
	q.ProjectID = r.api.ProjectID()
	if _, _, err := c.Devices.Create(q); err == nil || statusOf(err) != 0 {
		t.Errorf("lost reply: %v", err)
	}
	if n := r.api.Summary().Made; n != 1 {
		t.Errorf("%d devices were made, want 1", n)
	}
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *equinixapi.Config) { cfg.RateLimit = 3 })
		defer func() { r.stop() }()
		for i := range 5 {
			want := http.StatusOK
			if i >= 3 {
				want = http.StatusTooManyRequests
			}
			if code := r.ask("GET", "/user", "", nil); code != want {
				t.Errorf("request %d: %d, want %d", i, code, want)
			}
		}
		time.Sleep(time.Minute)
		if code := r.ask("GET", "/user", "", nil); code != http.StatusOK {
			t.Errorf("a minute later: %d", code)
		}
	})
}
