package equinix

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestCallsThatGoAway are told of once, and again when they go away at another time; the library,
// which would print that for each, sees none of it.
func TestCallsThatGoAway(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	var log bytes.Buffer
	p.logger = slog.New(slog.NewTextHandler(&log, nil))
	going := func(sunset string) answer {
		return answer{body: deviceJSON(nil), header: map[string]string{"Deprecation": "true", "Sunset": sunset}}
	}
	api.on(getDevice, going("June"), going("June"), going("May"), going("May"))
	client, err := p.client(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range []int{1, 1, 2, 2} {
		_, response, err := client.Devices.Get(device1, nil)
		if err != nil || response.Header.Get("Deprecation") != "" || response.Header.Get("Sunset") != "" {
			t.Errorf("%v: the library would print %v", err, response.Header)
		}
		if told := strings.Count(log.String(), "is going away"); told != want {
			t.Errorf("after %d calls it was told %d times, want %d: %s", n+1, told, want, log.String())
		}
	}
}

func TestEndpointsAreTemplates(t *testing.T) {
	t.Parallel()
	p, _ := newScripted(t)
	for path, want := range map[string]string{
		"/metal/v1/projects/" + projectID + "/devices?page=2&tag=x": "GET /projects/{id}/devices",
		"/metal/v1/devices/" + device1:                              "GET /devices/{id}",
	} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		if got := p.endpoint(request); got != want {
			t.Errorf("%s is %s", path, got)
		}
	}
}
