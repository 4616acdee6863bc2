package equinix

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	projectID    = "11111111-1111-4111-8111-111111111111"
	reservation1 = "22222222-2222-4222-8222-222222222201"
	device1      = "33333333-3333-4333-8333-333333333301"
	keyUUID      = "44444444-4444-4444-8444-444444444401"
	publicKey    = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBSbaqp5NGX0RWLDfBUMYvpV9WQnYj1tXnN1jx4vqJwe"
	apiToken     = "a-token-that-must-not-be-seen"
)

// scriptedAPI answers each request by the first answer of its endpoint that is left; the last one
// stays. It is for what the simulated API does not do: answers that are wrong in a particular way.
type scriptedAPI struct {
	t *testing.T

	mu      sync.Mutex
	answers map[string][]answer
	seen    []string
	bodies  map[string]string
}

type answer struct {
	status int
	body   string
	header map[string]string
	do     func(w http.ResponseWriter, r *http.Request)
}

func (a *scriptedAPI) on(endpoint string, answers ...answer) *scriptedAPI {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers[endpoint] = answers
	return a
}

func (a *scriptedAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	endpoint := r.Method + " " + strings.TrimPrefix(r.URL.Path, "/metal/v1/")
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	a.seen = append(a.seen, endpoint+"?"+r.URL.RawQuery)
	a.bodies[endpoint] = string(body)
	answers := a.answers[endpoint]
	if len(answers) > 1 {
		a.answers[endpoint] = answers[1:]
	}
	a.mu.Unlock()
	if r.Header.Get("X-Auth-Token") != apiToken {
		a.t.Errorf("%s has no token", endpoint)
	}
	if len(answers) == 0 {
		a.t.Errorf("nobody expects %s?%s", endpoint, r.URL.RawQuery)
		w.WriteHeader(http.StatusTeapot)
		return
	}
	next := answers[0]
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("X-Request-Id", "request")
	for name, value := range next.header {
		w.Header().Set(name, value)
	}
	if next.do != nil {
		next.do(w, r)
		return
	}
	if next.status != 0 {
		w.WriteHeader(next.status)
	}
	_, _ = io.WriteString(w, next.body)
}

func (a *scriptedAPI) count(prefix string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, seen := range a.seen {
		if strings.HasPrefix(seen, prefix) {
			n++
		}
	}
	return n
}

func testConfig(t *testing.T, url string) Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(apiToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := DefaultConfig()
	config.APIURL, config.TokenFile, config.Project = url, path, projectID
	config.SSHKeyLabel, config.SSHPublicKey = "ironherd", publicKey+" ironherd"
	config.DevicePrefix, config.OperatingSystem = "fleet-", "debian_12"
	config.Spacing, config.InFlight = 0, 4
	return config
}

// newScripted returns a provider on a scripted API that knows our key and has reservation1 free.
func newScripted(t *testing.T) (*Provider, *scriptedAPI) {
	t.Helper()
	api := &scriptedAPI{t: t, answers: make(map[string][]answer), bodies: make(map[string]string)}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	api.on("GET projects/"+projectID+"/ssh-keys", answer{body: sshKeys("ironherd", publicKey)})
	api.on(getProject, answer{body: `{"id":"` + projectID + `"}`})
	api.on("GET hardware-reservations/"+reservation1, answer{body: freeReservation})
	p, err := New(testConfig(t, server.URL+"/metal/v1"), provider.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.CloseIdleConnections)
	return p, api
}

const freeReservation = `{"id":"` + reservation1 + `","provisionable":true,"device":null,"plan":{"slug":"c3.small.x86"},` +
	`"facility":{"code":"da11"},"created_at":"2023-01-01T00:00:00Z"}`

func sshKeys(label, key string) string {
	return fmt.Sprintf(`{"ssh_keys":[{"id":%q,"label":%q,"key":%q,"owner":{"href":"/projects/x"}}]}`, keyUUID, label, key)
}

// deviceJSON renders a device; fields are added and override.
func deviceJSON(fields map[string]any) string {
	device := map[string]any{
		"id": device1, "href": "/metal/v1/devices/" + device1, "hostname": "fleet-1", "state": "active", "tags": []string{},
		"created_at": "2024-05-06T07:08:09Z", "facility": map[string]any{"code": "da11"}, "metro": map[string]any{"code": "da"},
		"hardware_reservation": map[string]any{"href": "/metal/v1/hardware-reservations/" + reservation1},
		"ip_addresses": []any{
			map[string]any{"address": "10.0.0.1", "address_family": 4, "public": false, "management": true},
			map[string]any{"address": "2001:db8::1", "address_family": 6, "public": true, "management": true},
			map[string]any{"address": "192.0.2.1", "address_family": 4, "public": true, "management": true},
		},
	}
	for key, value := range fields {
		device[key] = value
	}
	text, err := json.Marshal(device)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// rows renders one page of a list.
func rows(collection string, page, last, total int, row ...string) answer {
	return answer{body: fmt.Sprintf(`{%q:[%s],"meta":{"current_page":%d,"last_page":%d,"total":%d,"next":null}}`,
		collection, strings.Join(row, ","), page, last, total)}
}

func createRequest() provider.CreateRequest {
	return provider.CreateRequest{Capacity: reservation1, Token: fleet.NewToken(), Machine: "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"}
}

func neverCalled(t *testing.T) func(context.Context) error {
	t.Helper()
	return func(context.Context) error {
		t.Error("a call that could create something is made")
		return nil
	}
}
