package equinixapi_test

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packethost/packngo"

	"github.com/ironherd/ironherd/internal/sim/equinixapi"
)

func TestCapacityChecks(t *testing.T) {
	t.Parallel()
	// Two of each plan in each of three metros.
	r := activeRig(t, func(cfg *equinixapi.Config) { cfg.OnDemand = 12 })
	c := r.client()
	check := func(servers ...packngo.ServerInfo) (available []bool) {
		t.Helper()
		do := c.CapacityService.Check
		if servers[0].Metro != "" {
			do = c.CapacityService.CheckMetros
		}
		answer := must[*packngo.CapacityInput](t)(do(&packngo.CapacityInput{Servers: servers}))
		for i, s := range answer.Servers {
			available = append(available, s.Available)
			if s.Available = false; s != servers[i] {
				t.Errorf("asked for %+v, answered %+v", servers[i], s)
			}
		}
		return available
	}
	one := func(metro string, n int) packngo.ServerInfo {
		return packngo.ServerInfo{Metro: metro, Plan: "c3.small.x86", Quantity: n}
	}
	if got := check(one("am", 2), one("am", 1), one("da", 3), one("ty", 1)); !slices.Equal(got, []bool{true, false, false, false}) {
		t.Errorf("available %v", got)
	}
	if got := check(packngo.ServerInfo{Facility: "am11", Plan: "c3.small.x86", Quantity: 2}); !slices.Equal(got, []bool{true}) {
		t.Errorf("available %v", got)
	}
	for _, wrong := range []string{
		`{"servers":[{"plan":"x","metro":"am","quantity":1}]}`, `{"servers":[{"plan":"c3.small.x86","metro":"xx","quantity":1}]}`,
		`{"servers":[{"plan":"c3.small.x86","metro":"am"}]}`, `{}`,
	} {
		r.refused("POST", "/capacity/metros", wrong, 422)
	}
	for _, path := range []string{"/organizations/" + orgOf(r) + "/capacity", "/organizations/" + orgOf(r) + "/capacity/metros", "/capacity?legacy=exclude"} {
		var report struct {
			Capacity map[string]map[string]struct{ Level string }
		}
		if code := r.ask("GET", path, "", &report); code != http.StatusOK || len(report.Capacity) < 8 {
			t.Errorf("%s: %d, %d places", path, code, len(report.Capacity))
		}
	}
}

func TestBatches(t *testing.T) {
	t.Parallel()
	r := activeRig(t, func(cfg *equinixapi.Config) { cfg.OnDemand = 12 })
	c := r.client()
	project := r.api.ProjectID()
	order := func(n int32, metro string) packngo.BatchCreateDevice {
		return packngo.BatchCreateDevice{DeviceCreateRequest: *request("c3.small.x86", metro, ""), Quantity: n}
	}
	batches := must[[]packngo.Batch](t)(c.Batches.Create(project, &packngo.BatchCreateRequest{Batches: []packngo.BatchCreateDevice{order(2, "am"), order(1, "da")}}))
	if len(batches) != 2 || batches[0].Quantity != 2 || len(batches[0].Devices) != 2 || batches[1].State != "completed" || batches[0].CreatedAt == nil {
		t.Fatalf("batches %+v", batches)
	}
	// All or nothing: the first part would fit, the second does not.
	_, _, err := c.Batches.Create(project, &packngo.BatchCreateRequest{Batches: []packngo.BatchCreateDevice{order(1, "da"), order(1, "am")}})
	if statusOf(err) != 422 || !strings.Contains(err.Error(), "There aren't available servers in that metro") {
		t.Errorf("a batch that does not fit: %v", err)
	}
	r.refused("POST", "/projects/"+project+"/devices/batch", `{"batches":[]}`, 422)
	r.refused("POST", "/projects/"+project+"/devices/batch", `{"batches":[{"plan":"x"},{"plan":"c3.small.x86","quantity":-1}]}`, 422)
	if devices := must[[]packngo.Device](t)(c.Devices.List(project, nil)); len(devices) != 3 {
		t.Errorf("%d devices, want 3", len(devices))
	}
	if list := must[[]packngo.Batch](t)(c.Batches.List(project, nil)); len(list) != 2 {
		t.Errorf("list has %d", len(list))
	}
	got := must[*packngo.Batch](t)(c.Batches.Get(batches[0].ID, &packngo.GetOptions{Includes: []string{"devices"}}))
	if len(got.Devices) != 2 || got.Devices[0].Plan == nil {
		t.Errorf("got %+v", got)
	}
	named := `{"batches":[{"plan":"c3.small.x86","operating_system":"debian_13","metro":"fr","hostnames":["a","b"]}]}`
	r.refused("POST", "/projects/"+project+"/devices/batch", named, 422)
	named = strings.Replace(named, `"fr"`, `"any"`, 1)
	var answer struct{ Batches []struct{ ID string } }
	if code := r.ask("POST", "/projects/"+project+"/devices/batch", named, &answer); code != http.StatusCreated {
		t.Fatal(code)
	}
	var hosts struct {
		Devices []struct{ ID, Hostname string }
	}
	r.ask("GET", "/batches/"+answer.Batches[0].ID+"?include=devices", "", &hosts)
	if len(hosts.Devices) != 2 || hosts.Devices[0].Hostname != "a" || hosts.Devices[1].Hostname != "b" {
		t.Errorf("named %+v", hosts)
	}
	for _, d := range hosts.Devices {
		waitFor(t, c, d.ID, "active")
	}
	if _, err := c.Batches.Delete(answer.Batches[0].ID, true); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Devices.Get(hosts.Devices[0].ID, nil); statusOf(err) != 404 {
		t.Errorf("device of a deleted batch: %v", err)
	}
	if _, _, err := c.Batches.Get(answer.Batches[0].ID, nil); statusOf(err) != 404 {
		t.Errorf("deleted batch: %v", err)
	}
	r.stop()
	r.start()
	if code := r.ask("GET", "/batches/"+batches[0].ID, "", nil); code != http.StatusOK {
		t.Errorf("after a restart: %d", code)
	}
}

func TestAddressesOnCreate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		defer func() { r.stop() }()
		type address struct {
			Address string
			Family  int `json:"address_family"`
			Public  bool
			CIDR    int
			Netmask string
		}
		list := func(fields string) []address {
			t.Helper()
			id := r.anyDevice(fields)
			synctest.Wait()
			var d struct {
				Addresses []address `json:"ip_addresses"`
			}
			r.ask("GET", "/devices/"+id, "", &d)
			var own struct {
				Addresses []address `json:"ip_addresses"`
			}
			if r.ask("GET", "/devices/"+id+"/ips", "", &own); !slices.Equal(own.Addresses, d.Addresses) {
				t.Errorf("%v and %v", own.Addresses, d.Addresses)
			}
			return d.Addresses
		}
		if got := list(""); len(got) != 3 {
			t.Errorf("by default: %v", got)
		}
		if got := list(`,"ip_addresses":[{"address_family":4,"public":false}]`); len(got) != 1 || got[0].Public || got[0].Family != 4 {
			t.Errorf("private only: %v", got)
		}
		got := list(`,"ip_addresses":[{"address_family":4,"public":true,"cidr":30},{"address_family":4,"public":false,"cidr":28}]`)
		if len(got) != 2 || !got[0].Public || got[0].CIDR != 30 || got[0].Netmask != "255.255.255.252" || got[1].CIDR != 28 {
			t.Errorf("no IPv6: %v", got)
		}
		if got := list(`,"public_ipv4_subnet_size":29`); len(got) != 3 || got[0].CIDR != 29 {
			t.Errorf("subnet size: %v", got)
		}
		for wrong, want := range map[string]string{
			`[{"address_family":4,"public":true}]`:                                                             "private IPv4",
			`[{"address_family":5,"public":false}]`:                                                            "address_family",
			`[{"address_family":6,"public":false},{"address_family":4,"public":false}]`:                        "private IPv6",
			`[{"address_family":4,"public":false},{"address_family":4,"public":false}]`:                        "twice",
			`[{"address_family":4,"public":false,"cidr":8}]`:                                                   "cidr",
			`[{"address_family":4,"public":false},{"address_family":4,"public":true,"ip_reservations":["x"]}]`: "ip_reservations",
		} {
			body := `{"plan":"c3.small.x86","operating_system":"debian_13","metro":"any","ip_addresses":` + wrong + `}`
			if text := r.refused("POST", "/projects/"+r.api.ProjectID()+"/devices", body, 422); !strings.Contains(text, want) {
				t.Errorf("%s: %q, want %q", wrong, text, want)
			}
		}
	})
}

// TestTimesAreWholeSeconds: the real ones have no fractions, and some clients' patterns allow none.
func TestTimesAreWholeSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, slowly)
		defer func() { r.stop() }()
		time.Sleep(123 * time.Millisecond)
		id := r.anyDevice(`,"termination_time":"2030-01-01T00:00:00.5Z"`)
		r.ask("POST", "/projects", `{"name":"p"}`, nil)
		r.ask("POST", "/ssh-keys", fmt.Sprintf(`{"label":"l","key":%q}`, publicKey(t, 1)), nil)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		r.ask("POST", "/devices/"+id+"/actions", `{"type":"reboot"}`, nil)
		fraction := regexp.MustCompile(`"[0-9]{4}-[0-9-]+T[0-9:]+\.[0-9]+Z?[^"]*"`)
		for _, path := range []string{"/devices/" + id, "/devices/" + id + "/events", "/projects", "/ssh-keys", "/projects/" + r.api.ProjectID() + "/hardware-reservations"} {
			text := r.answer("GET", path, "").Body.String()
			if found := fraction.FindString(text); found != "" || !strings.Contains(text, "T00:") {
				t.Errorf("%s has %s", path, found)
			}
		}
	})
}

// TestTheCatalogue is the surface that fleet controllers touch.
func TestTheCatalogue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		defer func() { r.stop() }()
		id := r.anyDevice(`,"customdata":{"a":1},"tags":["t"]`)
		synctest.Wait()
		org, project := "/organizations/"+orgOf(r), "/projects/"+r.api.ProjectID()
		var answer map[string]any
		get := func(path string) map[string]any {
			t.Helper()
			answer = nil
			if code := r.ask("GET", path, "", &answer); code != http.StatusOK {
				t.Errorf("%s: %d", path, code)
			}
			return answer
		}
		for path, list := range map[string]string{
			"/operating-system-versions":   "operating_systems",
			org + "/operating-systems":     "operating_systems",
			org + "/devices":               "devices",
			org + "/hardware-reservations": "hardware_reservations",
			org + "/plans":                 "plans",
			org + "/facilities":            "facilities",
			org + "/projects":              "projects",
			org + "/events":                "events",
			project + "/plans":             "plans",
			project + "/facilities":        "facilities",
			"/locations/metros":            "metros",
			"/devices/" + id + "/ips":      "ip_addresses",
			project + "/ips":               "ip_addresses",
		} {
			if all, _ := get(path)[list].([]any); len(all) == 0 {
				t.Errorf("%s has no %s: %v", path, list, answer)
			} else if href, ok := all[0].(map[string]any)["href"].(string); ok && list != "events" {
				if get(href)["id"] == nil {
					t.Errorf("%s leads to %v", href, answer)
				}
			}
		}
		if metros := get("/locations/metros")["metros"].([]any); len(metros) != 24 {
			t.Errorf("%d metros", len(metros))
		}
		if m := get("/locations/metros/d3d6b29f-042d-43b7-b3ce-0bf53d5754ca"); m["code"] != "da" {
			t.Errorf("Dallas is %v", m)
		}
		metadata := get("/devices/" + id + "/metadata")
		for _, name := range []string{"id", "hostname", "state", "tags", "ssh_keys", "network", "operating_system", "plan", "reserved", "specs", "customdata", "phone_home_url"} {
			if _, ok := metadata[name]; !ok {
				t.Errorf("metadata has no %s", name)
			}
		}
		get("/devices/" + id + "/bandwidth?from=1&until=2")
		get("/devices/" + id + "/diagnostics/health/rollup")
		if user := get("/users/" + first(get("/users")["users"]).(map[string]any)["id"].(string)); user["full_name"] == nil {
			t.Errorf("user %v", user)
		}
		system, _ := get("/operating-systems")["operating_systems"].([]any)[0].(map[string]any)
		for _, name := range []string{"lifecycle", "provisionable_on", "pricing", "default_operating_system", "preinstallable", "licensed", "distro_label"} {
			if _, ok := system[name]; !ok {
				t.Errorf("an operating system has no %s", name)
			}
		}
		var p struct{ ID string }
		if code := r.ask("POST", org+"/projects", `{"name":"second"}`, &p); code != http.StatusCreated || get("/projects/" + p.ID)["name"] != "second" {
			t.Errorf("project in the organization: %d", code)
		}
		r.refused("POST", "/organizations", `{"name":"second"}`, 422)
		r.refused("GET", "/organizations/00000000-0000-4000-8000-000000000000/projects", "", 404)
	})
}

// TestWorldsHaveTheirOwnIDs: two worlds of one seed are two providers, as clients see them. What
// the provider itself has is the same everywhere.
func TestWorldsHaveTheirOwnIDs(t *testing.T) {
	t.Parallel()
	ids := func(world string) (own, common []string) {
		r := activeRig(t, func(cfg *equinixapi.Config) { cfg.World = world })
		common = []string{r.answer("GET", "/plans", "").Body.String(), r.answer("GET", "/locations/metros", "").Body.String(), r.answer("GET", "/operating-systems", "").Body.String()}
		var list struct {
			Reservations []struct{ ID string } `json:"hardware_reservations"`
		}
		r.ask("GET", "/projects/"+r.api.ProjectID()+"/hardware-reservations", "", &list)
		return []string{r.api.ProjectID(), orgOf(r), r.anyDevice(""), list.Reservations[0].ID}, common
	}
	own1, common1 := ids("one")
	again, _ := ids("one")
	own2, common2 := ids("two")
	if !slices.Equal(own1, again) || !slices.Equal(common1, common2) {
		t.Error("the same world has other IDs")
	}
	for i, id := range own1 {
		if id == own2[i] {
			t.Errorf("two worlds have %s", id)
		}
	}
}
