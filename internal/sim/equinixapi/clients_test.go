package equinixapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packethost/packngo"

	"github.com/ironherd/ironherd/internal/sim/equinixapi"
)

// This file has what clients in Go and Python send that others wrote.

// answer sends a request straight to the handler.
func (r *rig) answer(method, path, body string) *httptest.ResponseRecorder {
	r.t.Helper()
	request := httptest.NewRequest(method, "/", strings.NewReader(body))
	request.Header.Set("X-Auth-Token", token)
	var err error
	if request.URL, err = url.ParseRequestURI(path); err != nil {
		r.t.Fatal(err)
	}
	recorder := httptest.NewRecorder()
	r.api.ServeHTTP(recorder, request)
	return recorder
}

// refused expects an error in the form of the API's, and returns its texts.
func (r *rig) refused(method, path, body string, status int) string {
	r.t.Helper()
	a := r.answer(method, path, body)
	var list struct{ Errors []string }
	if err := json.Unmarshal(a.Body.Bytes(), &list); err != nil || a.Code != status || len(list.Errors) == 0 {
		r.t.Errorf("%s %s %s: %d %s, want %d with errors", method, path, body, a.Code, a.Body, status)
	}
	return strings.Join(list.Errors, "; ")
}

// anyDevice creates a device on demand; it is active as soon as the hardware is.
func (r *rig) anyDevice(fields string) string {
	r.t.Helper()
	var d shown
	body := `{"plan":"c3.small.x86","operating_system":"debian_13","metro":"any"` + fields + `}`
	if code := r.ask("POST", "/projects/"+r.api.ProjectID()+"/devices", body, &d); code != http.StatusCreated {
		r.t.Fatalf("create with %s: %d", fields, code)
	}
	return d.ID
}

func activeRig(t *testing.T, change func(*equinixapi.Config)) *rig {
	t.Helper()
	r := newRig(t, change)
	t.Cleanup(func() { r.stop() })
	return r
}

func TestListsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	r := activeRig(t, func(cfg *equinixapi.Config) { cfg.Reservations = 30 })
	path := "/projects/" + r.api.ProjectID() + "/hardware-reservations?per_page=30"
	first := r.answer("GET", path, "").Body.String()
	for range 5 {
		if again := r.answer("GET", path, "").Body.String(); again != first {
			t.Fatal("the same list came in another order")
		}
	}
}

// TestFieldsInTheQuery is what libcloud does: it puts the fields of POST and PUT into the query.
func TestFieldsInTheQuery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		defer func() { r.stop() }()
		var k struct{ ID, Label, Key string }
		query := url.Values{"label": {"mine"}, "key": {publicKey(t, 1)}}
		if code := r.ask("POST", "/ssh-keys?"+query.Encode(), "", &k); code != http.StatusCreated || k.Label != "mine" || k.Key != publicKey(t, 1) {
			t.Errorf("key: %d, %+v", code, k)
		}
		id := r.anyDevice("")
		synctest.Wait()
		if code := r.ask("POST", "/devices/"+id+"/actions?type=power_off", "", nil); code != http.StatusAccepted {
			t.Errorf("action: %d", code)
		}
		synctest.Wait()
		if d := r.device(id); d.State != "inactive" {
			t.Errorf("the device is %s", d.State)
		}
		var d struct {
			Hostname string
			Locked   bool
			Tags     []string
			Project  struct{ Name string }
		}
		r.ask("PUT", "/devices/"+id+"?hostname=17&locked=True&tags=a&tags=b&include=project", "", &d)
		if d.Hostname != "17" || !d.Locked || !slices.Equal(d.Tags, []string{"a", "b"}) || d.Project.Name == "" {
			t.Errorf("changed: %+v", d)
		}
		if r.ask("PUT", "/devices/"+id+"?hostname=query", `{"hostname":"body"}`, &d); d.Hostname != "body" {
			t.Errorf("hostname %q, want that of the body", d.Hostname)
		}
		if text := r.refused("PUT", "/devices/"+id+"?locked=perhaps", "", 422); !strings.Contains(text, "locked") {
			t.Errorf("error %q", text)
		}
	})
}

// TestEmptyObjectsForLists is what packet-python sends by default.
func TestEmptyObjectsForLists(t *testing.T) {
	t.Parallel()
	r := activeRig(t, nil)
	id := r.anyDevice(`,"tags":{},"features":{},"project_ssh_keys":[],"user_ssh_keys":{},"storage":{},"facility":"any"`)
	var d struct{ Tags []string }
	for _, do := range []struct{ method, path, body string }{
		{"PUT", "/devices/" + id, `{"tags":{}}`},
		{"POST", "/projects", `{"name":"p","tags":{}}`},
		{"POST", "/ssh-keys", fmt.Sprintf(`{"label":"l","key":%q,"tags":{}}`, publicKey(t, 1))},
	} {
		if code := r.ask(do.method, do.path, do.body, &d); code >= 300 || len(d.Tags) != 0 {
			t.Errorf("%s %s %s: %d, tags %v", do.method, do.path, do.body, code, d.Tags)
		}
	}
}

func TestErrorTextsAreTheAPIs(t *testing.T) {
	t.Parallel()
	r := activeRig(t, nil)
	devices, id := "/projects/"+r.api.ProjectID()+"/devices", r.anyDevice("")
	internals := regexp.MustCompile(`Go |json:|struct|\[\]string|createRequest|equinixapi|unmarshal|2006|http:`)
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", devices, `{"tags":"one"}`, 422, "tags must be a list of strings"},
		{"POST", devices, `{"tags":[1]}`, 422, "tags must be a list of strings"},
		{"POST", devices, `{"tags":{"a":1}}`, 422, "tags must be a list of strings"},
		{"POST", devices, `{"hostname":7}`, 422, "hostname must be a string, not a number"},
		{"POST", devices, `{"locked":"x"}`, 422, "locked must be true or false, not a string"},
		{"POST", devices, `{"facility":7}`, 422, "facility must be a string or a list of strings"},
		{"POST", devices, `{"spot_price_max":"x"}`, 422, "spot_price_max must be a number"},
		{"POST", devices, `{"customdata":7}`, 422, "customdata must be an object"},
		{"POST", devices, `{"termination_time":"tomorrow"}`, 422, "termination_time must be a time such as"},
		{"POST", devices, `{"ssh_keys":[{"key":7}]}`, 422, "ssh_keys.key must be a string"},
		{"POST", devices, `[]`, 422, "the request must be an object, not a list"},
		{"POST", devices, `{"tags":`, 400, "Invalid JSON"},
		{"POST", devices, `{} {}`, 400, "Invalid JSON"},
		{"POST", devices, `{"hostname":"` + strings.Repeat("x", 2<<20) + `"}`, 413, "1 MiB"},
		{"PUT", "/devices/" + id, `{"termination_time":7}`, 422, "termination_time must be a time"},
		{"POST", "/devices/" + id + "/actions", `{"type":["reboot"]}`, 422, "type must be a string, not a list"},
		{"POST", "/projects", `{"name":{}}`, 422, "name must be a string, not an object"},
	} {
		text := r.refused(c.method, c.path, c.body, c.status)
		if !strings.Contains(text, c.want) || internals.MatchString(text) {
			t.Errorf("%s %s %.40s: %q, want %q and nothing of this program", c.method, c.path, c.body, text, c.want)
		}
	}
}

func TestWrongMethods(t *testing.T) {
	t.Parallel()
	r := activeRig(t, nil)
	for path, allow := range map[string]string{
		"/metal/v1/plans":         "GET, HEAD",
		"/ssh-keys":               "GET, HEAD, POST",
		"/devices/x":              "DELETE, GET, HEAD, PATCH, PUT",
		"/devices/x/actions":      "POST",
		"/metal/v1/metal/v1/user": "GET, HEAD",
	} {
		method := "DELETE"
		if strings.Contains(allow, method) {
			method = "POST"
		}
		r.refused(method, path, "", http.StatusMethodNotAllowed)
		if got := r.answer(method, path, "").Header().Get("Allow"); got != allow {
			t.Errorf("%s %s allows %q, want %q", method, path, got, allow)
		}
	}
	r.refused("GET", "/nothing/here", "", http.StatusNotFound)
	r.refused("POST", "/nothing/here", "", http.StatusNotFound)
}

// TestPathsWithTwoSlashes is what packet-python asks for.
func TestPathsWithTwoSlashes(t *testing.T) {
	t.Parallel()
	r := activeRig(t, nil)
	for _, path := range []string{"//plans", "/metal/v1//plans", "/plans?"} {
		if a := r.answer("GET", path, ""); a.Code != http.StatusOK {
			t.Errorf("%s: %d %s", path, a.Code, a.Body)
		}
	}
}

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
		project + "/devices?hostname=ther":                    1,
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

func TestCapacityChecks(t *testing.T) {
	t.Parallel()
	r := activeRig(t, func(cfg *equinixapi.Config) { cfg.OnDemand = 12 }) // two of each plan in each of three metros
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
