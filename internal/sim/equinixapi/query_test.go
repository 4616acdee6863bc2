package equinixapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ironherd/ironherd/internal/sim/equinixapi"
)

func TestPagingLinksKeepTheQuery(t *testing.T) {
	t.Parallel()
	r := activeRig(t, nil)
	for range 5 {
		r.anyDevice(`,"tags":["a b","c"],"hostname":"left"`)
		r.anyDevice(`,"tags":["d"],"hostname":"right"`)
	}
	var list struct {
		Devices []struct{ Hostname string }
		Meta    struct {
			Total                             int
			First, Last, Self, Next, Previous *struct{ Href string }
		}
	}
	next := "/projects/" + r.api.ProjectID() + "/devices?tag=a+b&metro=any&reserved=false&type=ondemand&per_page=2"
	next = strings.Replace(next, "&metro=any", "", 1)
	for page := 1; page <= 3; page++ {
		list.Meta.Next = nil
		r.ask("GET", next, "", &list)
		if list.Meta.Total != 5 {
			t.Fatalf("page %d (%s) is of a list of %d, want 5", page, next, list.Meta.Total)
		}
		for _, d := range list.Devices {
			if d.Hostname != "left" {
				t.Errorf("page %d (%s) has %s", page, next, d.Hostname)
			}
		}
		if list.Meta.Next == nil {
			if page != 3 {
				t.Errorf("page %d is the last", page)
			}
			break
		}
		next = list.Meta.Next.Href
	}
}

func TestFiltersAreHonouredOrRefused(t *testing.T) {
	t.Parallel()
	r := activeRig(t, func(cfg *equinixapi.Config) { cfg.Spares = 1 })
	project := "/projects/" + r.api.ProjectID()
	id := r.anyDevice(`,"hostname":"here","termination_time":"2030-01-01T00:00:00Z"`)
	r.anyDevice(`,"hostname":"there"`)
	count := func(path string) int {
		t.Helper()
		a := r.answer("GET", path, "")
		var answer map[string]json.RawMessage
		if err := json.Unmarshal(a.Body.Bytes(), &answer); err != nil || a.Code != http.StatusOK {
			t.Errorf("%s: %d %s", path, a.Code, a.Body)
			return -1
		}
		delete(answer, "meta")
		for _, text := range answer {
			var list []json.RawMessage
			_ = json.Unmarshal(text, &list)
			return len(list)
		}
		return -1
	}
	for path, want := range map[string]int{
		project + "/devices?categories[]=compute":             2,
		project + "/devices?categories=storage":               0,
		project + "/devices?hostname=her":                     2,
		project + "/devices?hostname=there":                   1,
		project + "/devices?has_termination_time=true":        1,
		project + "/devices?type=reserved":                    0,
		project + "/hardware-reservations?search=m3.large":    2,
		project + "/hardware-reservations?state=spare":        1,
		project + "/hardware-reservations?provisionable=only": 4,
		"/plans?deployment_type=on_demand":                    1,
		"/plans?type=standard":                                2,
		"/plans?type=storage":                                 0,
		"/plans?categories[]=compute":                         2,
		"/plans?categories=storage":                           0,
		"/plans?slug=m3.large.x86":                            1,
		"/projects?name=Iron":                                 1,
		"/projects?name=Copper":                               0,
		"/plans?page=1&per_page=1":                            2,
	} {
		if got := count(path); got != want {
			t.Errorf("%s has %d, want %d", path, got, want)
		}
	}
	for path, name := range map[string]string{
		project + "/devices?hostnam=x":                    "hostnam",
		project + "/devices?state=active":                 "state",
		project + "/devices?reserved=perhaps":             "reserved",
		project + "/devices?type=wooden":                  "type",
		project + "/devices?sort_by=colour":               "colour",
		project + "/devices?sort_direction=up":            "sort_direction",
		project + "/devices?include=colour":               "colour",
		project + "/devices?include=project.colour":       "project.colour",
		project + "/devices?exclude=colour":               "colour",
		project + "/devices?include[]=plan,colour":        "colour",
		project + "/hardware-reservations?state=wooden":   "state",
		project + "/hardware-reservations?provisionable=": "provisionable",
		"/devices/" + id + "?include=colour":              "colour",
		"/devices/" + id + "?page_size=3":                 "page_size",
		"/plans?colour=red":                               "colour",
		"/user?colour=red":                                "colour",
		"/events?colour=red":                              "colour",
	} {
		if text := r.refused("GET", path, "", 422); !strings.Contains(text, name) {
			t.Errorf("%s: %q does not name %s", path, text, name)
		}
	}
	r.refused("PUT", "/devices/"+id+"?include=colour", `{"hostname":"changed"}`, 422)
	if d := r.answer("GET", "/devices/"+id, "").Body.String(); !strings.Contains(d, `"hostname":"here"`) {
		t.Error("a request that was refused has changed the device")
	}
}

// TestEveryReference: each name that can be included becomes more than a bare reference.
func TestEveryReference(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		defer func() { r.stop() }()
		var k struct{ ID string }
		r.ask("POST", "/projects/"+r.api.ProjectID()+"/ssh-keys", fmt.Sprintf(`{"label":"l","key":%q}`, publicKey(t, 1)), &k)
		var d struct {
			ID          string
			Reservation struct{ Href string } `json:"hardware_reservation"`
		}
		r.ask("POST", "/projects/"+r.api.ProjectID()+"/devices", create, &d)
		synctest.Wait()
		for path, names := range map[string][]string{
			"/devices/" + d.ID: {
				"project", "project_lite", "ssh_keys", "hardware_reservation", "created_by", "plan", "operating_system", "facility", "metro",
				"ip_addresses", "network_ports", "project.organization.projects", "hardware_reservation.device.project",
			},
			d.Reservation.Href:                {"device", "project", "plan", "facility", "metro", "facility.metro"},
			"/projects/" + r.api.ProjectID():  {"organization", "members", "devices", "ssh_keys", "payment_method"},
			"/ssh-keys/" + k.ID:               {"owner", "entity"},
			"/devices/" + d.ID + "/ssh-keys":  {"ssh_keys/owner"},
			"/devices/" + d.ID + "/events":    {"events/relationships"},
			"/facilities":                     {"facilities/metro", "facilities/address"},
			"/plans":                          {"plans/available_in", "plans/available_in_metros"},
			"/organizations/" + orgOf(r) + "": {"projects", "members"},
		} {
			for _, name := range names {
				list, name, inList := strings.Cut(name, "/")
				if !inList {
					name = list
				}
				var answer map[string]any
				if code := r.ask("GET", path+"?include="+name, "", &answer); code != http.StatusOK {
					t.Errorf("%s?include=%s: %d", path, name, code)
					continue
				}
				var at any = answer
				if inList {
					at = first(answer[list])
				}
				for part := range strings.SplitSeq(name, ".") {
					object, _ := first(at).(map[string]any)
					at = object[part]
				}
				object, _ := first(at).(map[string]any)
				if len(object) < 2 {
					t.Errorf("%s?include=%s has %v", path, name, at)
				}
			}
		}
		var bare map[string]any
		r.ask("GET", "/devices/"+d.ID+"?exclude=plan,metro,created_by,ip_addresses,network_ports", "", &bare)
		for _, name := range []string{"plan", "metro", "created_by", "ip_addresses", "network_ports"} {
			if object, _ := first(bare[name]).(map[string]any); len(object) != 1 || object["href"] == nil {
				t.Errorf("%s is excluded, and has %v", name, bare[name])
			}
		}
	})
}

// first is the first of a list, or what is no list.
func first(value any) any {
	if list, ok := value.([]any); ok && len(list) > 0 {
		return list[0]
	}
	return value
}

func orgOf(r *rig) string {
	var user struct {
		Organization string `json:"default_organization_id"`
	}
	r.ask("GET", "/user", "", &user)
	return user.Organization
}
