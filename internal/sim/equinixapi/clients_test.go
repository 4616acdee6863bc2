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
