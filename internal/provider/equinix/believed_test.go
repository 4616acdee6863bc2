package equinix

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/packethost/packngo"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/sim/equinixapi"
)

// TestAnAPIThatHasNothing: one that was retired, or that api_url misses, says of every device that
// it is not there. That ends no release.
func TestAnAPIThatHasNothing(t *testing.T) {
	t.Parallel()
	lacks := answer{status: http.StatusNotFound, body: `{"errors":["Not found"]}`}
	for name, test := range map[string]struct {
		device, project answer
		devices         answer     // the list of the project's
		kind            fleet.Kind // of a question, and of a release that is not done
		asked           int        // for the project
	}{
		"the project is there":      {lacks, answer{body: `{"id":"` + strings.ToUpper(projectID) + `"}`}, lacks, fleet.KindNotFound, 1},
		"the project is not there":  {lacks, lacks, lacks, fleet.KindUnknown, 2},
		"it is another project":     {lacks, answer{body: `{"id":"` + device1 + `"}`}, lacks, fleet.KindUnknown, 2},
		"it names no project":       {lacks, answer{body: `{}`}, lacks, fleet.KindUnknown, 2},
		"it cannot be seen":         {lacks, answer{status: http.StatusForbidden, body: `{"errors":["no"]}`}, lacks, fleet.KindUnknown, 2},
		"its devices can be seen":   {lacks, lacks, rows("devices", 1, 1, 0), fleet.KindNotFound, 1},
		"nor can its devices now":   {lacks, lacks, answer{status: http.StatusTooManyRequests, body: `{"errors":["slow"]}`}, fleet.KindThrottled, 2},
		"it answers something else": {lacks, answer{body: `<html>`}, lacks, fleet.KindTemporary, 2},
		"it was retired":            {answer{status: http.StatusGone, body: `{"errors":["This API was retired"]}`}, answer{}, lacks, fleet.KindUnknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, api := newScripted(t)
			api.on(getDevice, test.device).on("DELETE devices/"+device1, test.device).on(getProject, test.project)
			api.on(listDevices, test.devices)
			if _, err := p.Get(t.Context(), device1); fleet.KindOf(err) != test.kind {
				t.Errorf("a question: %v (%s), want %s", err, fleet.KindOf(err), test.kind)
			}
			err := p.Release(t.Context(), device1)
			if done := test.kind == fleet.KindNotFound; (err == nil) != done {
				t.Errorf("a release: %v", err)
			} else if err != nil && fleet.KindOf(err) != test.kind {
				t.Errorf("a release: %v (%s), want %s", err, fleet.KindOf(err), test.kind)
			}
			if provider.NothingSent(err) {
				t.Errorf("nothing was sent: %v", err)
			}
			if n := api.count(getProject + "?"); n != test.asked {
				t.Errorf("the project was asked for %d times, want %d", n, test.asked)
			}
		})
	}
}

// TestAReleaseOfWhatWasMoved: the API refuses it, and shows the device in another project.
func TestAReleaseOfWhatWasMoved(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	api.on("DELETE devices/"+device1, answer{status: http.StatusForbidden, body: `{"errors":["no"]}`})
	api.on(getDevice, answer{body: deviceJSON(map[string]any{"project": map[string]any{"id": device1}})})
	if err := p.Release(t.Context(), device1); fleet.KindOf(err) != fleet.KindNotFound || !provider.WasMoved(err) {
		t.Errorf("%v (%s)", err, fleet.KindOf(err))
	}
}

// TestAListShowsThatTheAPIIsThere: the project is not asked for after it.
func TestAListShowsThatTheAPIIsThere(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	api.on(listDevices, rows("devices", 1, 1, 0)).on(getDevice, answer{status: http.StatusNotFound, body: `{"errors":["Not found"]}`})
	if _, err := p.ListMachines(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Get(t.Context(), device1); fleet.KindOf(err) != fleet.KindNotFound {
		t.Errorf("%v (%s)", err, fleet.KindOf(err))
	}
	long := time.Now().Add(-time.Hour)
	p.answered.Store(&long)
	lacks := answer{status: http.StatusNotFound, body: `{"errors":["Not found"]}`}
	api.on(getProject, lacks).on(listDevices, lacks)
	if _, err := p.Get(t.Context(), device1); fleet.KindOf(err) != fleet.KindUnknown {
		t.Errorf("an hour later: %v (%s)", err, fleet.KindOf(err))
	}
}

// TestAnAddressThatLeadsBack: an API elsewhere has no machine on this host or its link.
func TestAnAddressThatLeadsBack(t *testing.T) {
	t.Parallel()
	for text, near := range map[string]bool{
		"127.0.0.1": true, "127.16.0.2": true, "169.254.169.254": true, "224.0.0.1": true, "::1": true, "fe80::1": true, "ff02::1": true,
		"::ffff:127.0.0.1": true, "192.0.2.1": false, "2001:db8::1": false,
	} {
		for _, here := range []bool{false, true} {
			family := 4
			if strings.Contains(text, ":") {
				family = 6
			}
			p := &Provider{here: here}
			entry := p.deviceEntry(&packngo.Device{ID: device1, State: "active", Network: []*packngo.IPAddressAssignment{
				{IpAddressCommon: packngo.IpAddressCommon{Address: text, Public: true, Management: true, AddressFamily: family}},
			}})
			if refused := near && !here; (entry.Invalid != "") != refused || (entry.Address == netip.MustParseAddr(text)) == refused {
				t.Errorf("%s, the API here: %t: address %s, %q", text, here, entry.Address, entry.Invalid)
			}
		}
	}
}

// TestAPageOfVeryManyRows: no more of them are kept than tell that there are too many.
func TestAPageOfVeryManyRows(t *testing.T) {
	t.Parallel()
	text := `{"devices":[` + strings.Repeat("0,", 3*maximumRows) + `0],"meta":{"total":1,"last_page":1}}`
	var got page
	if err := jsonv2.Unmarshal([]byte(text), &got, lenient); err != nil || len(got.Devices) != maximumRows+1 || got.Meta == nil {
		t.Errorf("%d rows, %v", len(got.Devices), err)
	}
	for text, want := range map[string]string{
		`[{"id":"a"}, 7,null ]`: `[{"id":"a"} 7 null]`, `[]`: `[]`, `null`: `[]`, `{}`: "devices is a JSON object", `"x"`: "devices is a JSON string",
	} {
		var got page
		err := jsonv2.Unmarshal([]byte(`{"devices":`+text+`}`), &got, lenient)
		said := fmt.Sprint(got.Devices)
		if err != nil {
			said = decodeProblem(err).Error()
		}
		if said != want {
			t.Errorf("%s: %s, want %s", text, said, want)
		}
	}
	if err := jsonv2.Unmarshal([]byte(`{"devices":[1,`), &got, lenient); err == nil {
		t.Error("a page that is cut is read")
	}
}

// TestTooManyRequestsWithoutRetryAfter: the API says by X-RateLimit-Reset when it answers again.
func TestTooManyRequestsWithoutRetryAfter(t *testing.T) {
	t.Parallel()
	began, calls := time.Time{}, 0
	quirky(t, func(c *equinixapi.Config) {
		c.Disturb = func() (d equinixapi.Disturbance) {
			if calls++; time.Since(began) < 40*time.Second {
				d.Status = http.StatusTooManyRequests
			}
			return d
		}
	}, func(t *testing.T, s *simulated) {
		t.Helper()
		began = time.Now()
		if _, err := s.provider.ListMachines(t.Context()); err != nil || calls != 2 {
			t.Errorf("after %s and %d calls: %v", time.Since(began), calls, err)
		}
	})
}
