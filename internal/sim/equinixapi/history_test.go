package equinixapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/sim/equinixapi"
)

func TestHistoryOutlivesTheDevice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fail := false
		r := newRig(t, func(cfg *equinixapi.Config) {
			slowly(cfg)
			cfg.FailProvisioning = func() bool { return fail }
		})
		defer func() { r.stop() }()
		events := func(path string) (kinds []string, id string) {
			var list struct {
				Events []struct{ ID, Type string }
			}
			if code := r.ask("GET", path+"?per_page=100", "", &list); code != http.StatusOK {
				t.Fatalf("%s: %d", path, code)
			}
			for _, e := range list.Events {
				kinds, id = append(kinds, e.Type), e.ID
			}
			return kinds, id
		}
		has := func(what string, kinds []string, want ...string) {
			t.Helper()
			for _, kind := range want {
				if !slices.Contains(kinds, kind) {
					t.Errorf("%s: %v lacks %s", what, kinds, kind)
				}
			}
		}
		deleted := r.anyDevice("")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		r.ask("POST", "/devices/"+deleted+"/actions", `{"type":"reinstall"}`, nil)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		kinds, oldest := events("/devices/" + deleted + "/events")
		if n := len(slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return kind != "provisioning.110" })); n != 2 {
			t.Errorf("reinstalled: %v, want two installations", kinds)
		}
		if code := r.ask("DELETE", "/devices/"+deleted, "", nil); code != http.StatusNoContent {
			t.Fatal(code)
		}
		fail = true
		failed := r.anyDevice("")
		var reserved shown
		r.ask("POST", "/projects/"+r.api.ProjectID()+"/devices", create, &reserved)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		for range 2 {
			kinds, id := events("/devices/" + deleted + "/events")
			has("deleted", kinds, "provisioning.101", "provisioning.110", "deprovisioning.started")
			if id != oldest {
				t.Errorf("the oldest event is %s, was %s", id, oldest)
			}
			kinds, _ = events("/devices/" + failed + "/events")
			has("failed on demand", kinds, "provisioning.101", "provisioning.failed")
			kinds, _ = events("/devices/" + reserved.ID + "/events")
			has("failed on a reservation", kinds, "provisioning.101", "provisioning.failed")
			kinds, _ = events("/projects/" + r.api.ProjectID() + "/events")
			has("project", kinds, "provisioning.110", "provisioning.failed", "deprovisioning.started")
			if code := r.ask("GET", "/events/"+oldest, "", nil); code != http.StatusOK {
				t.Errorf("event of a deleted device: %d", code)
			}
			r.stop()
			r.start() // a restart loses nothing
		}
		if code := r.ask("GET", "/devices/"+failed, "", nil); code != http.StatusNotFound {
			t.Errorf("the device itself: %d", code)
		}
	})
}

// TestHistoryIsBounded: what is kept of devices that are gone does not grow for ever.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *equinixapi.Config) { cfg.MaxGone = 10 })
		defer func() { r.stop() }()
		var ids []string
		for range 13 {
			id := r.anyDevice("")
			synctest.Wait()
			if code := r.ask("DELETE", "/devices/"+id, "", nil); code != http.StatusNoContent {
				t.Fatal(code)
			}
			ids = append(ids, id)
		}
		for _, restarted := range []bool{false, true} {
			for i, want := range map[int]int{0: 404, 2: 404, 3: 200, 12: 200} {
				if code := r.ask("GET", "/devices/"+ids[i]+"/events", "", nil); code != want {
					t.Errorf("restarted %v: history of device %d: %d, want %d", restarted, i, code, want)
				}
			}
			r.stop()
			r.start()
		}
	})
}

func TestReservationsDoNotOutliveTheirProject(t *testing.T) {
	t.Parallel()
	r := activeRig(t, nil)
	var p, res struct{ ID string }
	r.ask("POST", "/projects", `{"name":"second"}`, &p)
	var list struct {
		Reservations []struct{ ID string } `json:"hardware_reservations"`
	}
	r.ask("GET", "/projects/"+r.api.ProjectID()+"/hardware-reservations", "", &list)
	id := list.Reservations[0].ID
	if code := r.ask("POST", "/hardware-reservations/"+id+"/move", `{"project_id":"`+p.ID+`"}`, &res); code != http.StatusCreated {
		t.Fatal(code)
	}
	if text := r.refused("DELETE", "/projects/"+p.ID, "", 422); !strings.Contains(text, "hardware reservations") {
		t.Errorf("refused with %q", text)
	}
	r.ask("POST", "/hardware-reservations/"+id+"/move", `{"project_id":"`+r.api.ProjectID()+`"}`, nil)
	if code := r.ask("DELETE", "/projects/"+p.ID, "", nil); code != http.StatusNoContent {
		t.Errorf("without reservations: %d", code)
	}
}
