package equinix

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

const actOnDevice = "POST devices/" + device1 + "/actions"

// direct hands requests to a handler without a network, so that they work in a bubble.
type direct struct{ handler http.Handler }

func (d direct) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Body == nil {
		request.Body = http.NoBody
	}
	recorder := httptest.NewRecorder()
	d.handler.ServeHTTP(recorder, request)
	return recorder.Result(), nil
}

// inBubble runs a test in a bubble, with a provider on a scripted API.
func inBubble(t *testing.T, test func(t *testing.T, p *Provider, api *scriptedAPI)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		api := &scriptedAPI{t: t, answers: make(map[string][]answer), bodies: make(map[string]string)}
		api.on(getProject, answer{body: `{"id":"` + projectID + `"}`})
		p, err := New(testConfig(t, "https://api.test/metal/v1"), provider.Options{HTTP: direct{api}})
		if err != nil {
			t.Fatal(err)
		}
		test(t, p, api)
	})
}

func inState(state string) answer { return answer{body: deviceJSON(map[string]any{"state": state})} }

func TestActionsAreSentOnceAsTheAPIHasThem(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		act  func(*Provider, context.Context, fleet.ProviderID) error
		body string
	}{
		"reboot":    {(*Provider).Reboot, `{"type":"reboot"}`},
		"power on":  {(*Provider).PowerOn, `{"type":"power_on"}`},
		"power off": {(*Provider).PowerOff, `{"type":"power_off"}`},
		"reinstall": {(*Provider).Reinstall, `{"type":"reinstall","operating_system":"debian_12"}`},
	} {
		for _, end := range []struct {
			answer answer
			kind   fleet.Kind
		}{
			{answer{status: 202}, 0},
			{answer{status: 404, body: errorsBody("Not found")}, fleet.KindNotFound},
			{answer{status: 404, header: map[string]string{"Content-Type": "text/html"}}, fleet.KindUnknown},
			{answer{status: 403, body: errorsBody("no")}, fleet.KindForbidden},
			{answer{status: 500, body: errorsBody("Oh snap")}, fleet.KindTemporary},
			{answer{status: 429, body: errorsBody("slow down"), header: map[string]string{"Retry-After": "7"}}, fleet.KindThrottled},
			{answer{status: 422, body: errorsBody("Device is locked")}, fleet.KindConflict},
		} {
			inBubble(t, func(t *testing.T, p *Provider, api *scriptedAPI) {
				t.Helper()
				api.on(actOnDevice, end.answer).on(getDevice, inState("provisioning"))
				err := test.act(p, t.Context(), device1)
				if fleet.KindOf(err) != end.kind || (err != nil) != (end.answer.status != http.StatusAccepted) {
					t.Errorf("%s that is answered %d gives %v (%s), want %s", name, end.answer.status, err, fleet.KindOf(err), end.kind)
				}
				if got := strings.TrimSpace(api.bodies[actOnDevice]); got != test.body || api.count(actOnDevice) != 1 {
					t.Errorf("%s was sent %d times as %s", name, api.count(actOnDevice), got)
				}
				if end.kind == fleet.KindThrottled && fleet.RetryAfter(err) != 7*time.Second {
					t.Errorf("%s may be tried again after %s", name, fleet.RetryAfter(err))
				}
			})
		}
	}
}

// The API refuses an action that would change nothing. So a call that is repeated, because the
// reply to the first one was lost, is refused although all is well.
func TestWhatIsSoAlreadyIsNoError(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		act   func(*Provider, context.Context, fleet.ProviderID) error
		state string
		kind  fleet.Kind
	}{
		{(*Provider).PowerOn, "active", 0},
		{(*Provider).PowerOn, "powering_on", 0},
		{(*Provider).PowerOn, "powering_off", fleet.KindConflict},
		{(*Provider).PowerOff, "inactive", 0},
		{(*Provider).PowerOff, "powering_off", 0},
		{(*Provider).PowerOff, "powering_on", fleet.KindConflict},
		{(*Provider).Reinstall, "reinstalling", 0},
		{(*Provider).Reinstall, "provisioning", fleet.KindConflict},
		{(*Provider).Reboot, "inactive", fleet.KindConflict},
	} {
		inBubble(t, func(t *testing.T, p *Provider, api *scriptedAPI) {
			t.Helper()
			api.on(actOnDevice, answer{status: 422, body: errorsBody("not in this state")}).on(getDevice, inState(test.state))
			if err := test.act(p, t.Context(), device1); fleet.KindOf(err) != test.kind || (err != nil) != (test.kind != 0) {
				t.Errorf("%s gives %v (%s), want %s", test.state, err, fleet.KindOf(err), test.kind)
			}
		})
	}
	inBubble(t, func(t *testing.T, p *Provider, api *scriptedAPI) {
		t.Helper()
		api.on(actOnDevice, answer{status: 422, body: errorsBody("gone")}).on(getDevice, answer{status: 404, body: errorsBody("Not found")})
		if err := p.PowerOff(t.Context(), device1); fleet.KindOf(err) != fleet.KindNotFound {
			t.Errorf("a device that vanished meanwhile gives %v", err)
		}
	})
}

// The API refuses to delete a device that is being deleted, or is gone. So a DELETE that is
// repeated, because the reply to the first one was lost, is refused although the device goes.
func TestAReleaseThatIsRefused(t *testing.T) {
	t.Parallel()
	lost, refused := answer{status: 504}, answer{status: 422, body: errorsBody("Cannot delete a device in this state")}
	absent, hidden := answer{status: 404, body: errorsBody("Not found")}, answer{status: 403, body: errorsBody("no access")}
	without, with := rows("devices", 1, 1, 0), rows("devices", 1, 1, 1, deviceJSON(nil))
	notWhole := rows("devices", 1, 1, 2, deviceJSON(nil))
	for name, test := range map[string]struct {
		replies []answer
		device  answer
		list    answer // of the devices, where the device is hidden
		kind    fleet.Kind
		text    string
	}{
		"422, and the device goes":             {[]answer{lost, refused}, inState("deprovisioning"), answer{}, 0, ""},
		"422, and the device is gone":          {[]answer{lost, refused}, absent, answer{}, 0, ""},
		"422, hidden, and no list has it":      {[]answer{lost, refused}, hidden, without, 0, ""},
		"403, and the device goes":             {[]answer{lost, hidden}, inState("deprovisioning"), answer{}, 0, ""},
		"403, and the device is gone":          {[]answer{lost, hidden}, absent, answer{}, 0, ""},
		"403, hidden, and no list has it":      {[]answer{lost, hidden}, hidden, without, 0, ""},
		"403, hidden, and the list has it":     {[]answer{lost, hidden}, hidden, with, fleet.KindForbidden, "no access"},
		"403, hidden, and no list is whole":    {[]answer{lost, hidden}, hidden, notWhole, fleet.KindTemporary, "cannot be told yet"},
		"403, and nothing is said of it":       {[]answer{lost, hidden}, answer{status: 500}, answer{}, fleet.KindTemporary, "cannot be told yet"},
		"403, and the device is there":         {[]answer{hidden}, inState("active"), answer{}, fleet.KindForbidden, "it is active"},
		"the device is being reinstalled":      {[]answer{refused}, inState("reinstalling"), answer{}, fleet.KindConflict, "it is reinstalling"},
		"422, hidden, and the list has it":     {[]answer{refused}, hidden, with, fleet.KindConflict, "in this state"},
		"422, hidden, and no list can be made": {[]answer{refused}, hidden, hidden, fleet.KindTemporary, "in this state"},
	} {
		inBubble(t, func(t *testing.T, p *Provider, api *scriptedAPI) {
			t.Helper()
			api.on("DELETE devices/"+device1, test.replies...).on(getDevice, test.device).on(listDevices, test.list)
			err := p.Release(t.Context(), device1)
			if fleet.KindOf(err) != test.kind || (err != nil) != (test.kind != 0) || err != nil && !strings.Contains(err.Error(), test.text) {
				t.Errorf("%s: %v (%s)", name, err, fleet.KindOf(err))
			}
		})
	}
}

// What fails before anything was sent is none of a cycle that was begun.
func TestAPowerCycleThatWasBegunWasSent(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, p *Provider, api *scriptedAPI) {
		t.Helper()
		api.on(actOnDevice, answer{status: 202}).on(getDevice, inState("inactive"))
		stop := errors.New("stop")
		sent := 0
		ctx := provider.WithBeforeSend(t.Context(), func(context.Context) error {
			if sent++; sent > 2 { // the device was turned off, and is seen off
				return stop
			}
			return nil
		})
		if err := p.PowerCycle(ctx, device1); err == nil || provider.NothingSent(err) || fleet.KindOf(err) != fleet.KindTemporary {
			t.Errorf("%v (%s)", err, fleet.KindOf(err))
		}
		sent = 2
		if err := p.PowerCycle(ctx, device1); !provider.NothingSent(err) || !errors.Is(err, stop) {
			t.Errorf("the first call is stopped: %v", err)
		}
	})
}

func TestAPowerCycleWaitsUntilTheDeviceIsOff(t *testing.T) {
	t.Parallel()
	accepted := answer{status: 202}
	refused := answer{status: 422, body: errorsBody("Device must be powered on")}
	for name, test := range map[string]struct {
		actions, states []answer
		kind            fleet.Kind
		// sent is how many actions were asked for, and took how long it all took.
		sent int
		took time.Duration
	}{
		"an ordinary one": {
			[]answer{accepted}, []answer{inState("active"), inState("powering_off"), inState("powering_off"), inState("inactive")}, 0, 2, 7 * time.Second,
		},
		"off already":          {[]answer{refused, accepted}, []answer{inState("inactive")}, 0, 2, 0},
		"never off":            {[]answer{accepted}, []answer{inState("powering_off")}, fleet.KindTimeout, 1, 305 * time.Second},
		"failed meanwhile":     {[]answer{accepted}, []answer{inState("powering_off"), inState("failed")}, fleet.KindTemporary, 1, time.Second},
		"gone meanwhile":       {[]answer{accepted}, []answer{{status: 404, body: errorsBody("Not found")}}, fleet.KindNotFound, 1, 0},
		"the first is refused": {[]answer{refused}, []answer{inState("reinstalling")}, fleet.KindConflict, 1, 0},
		"refused while the look lags": {
			[]answer{accepted, refused, accepted}, []answer{inState("inactive"), inState("powering_off"), inState("inactive")}, 0, 3, 3 * time.Second,
		},
		"refused, and on all the same": {[]answer{accepted, refused}, []answer{inState("inactive"), inState("inactive"), inState("powering_on")}, 0, 3, 3 * time.Second},
		"refused for good":             {[]answer{accepted, refused}, []answer{inState("inactive")}, fleet.KindTemporary, 34, 305 * time.Second},
		"the second is throttled":      {[]answer{accepted, {status: 429}}, []answer{inState("inactive")}, fleet.KindTemporary, 2, 0},
	} {
		inBubble(t, func(t *testing.T, p *Provider, api *scriptedAPI) {
			t.Helper()
			api.on(actOnDevice, test.actions...).on(getDevice, test.states...)
			begun := time.Now()
			err := p.PowerCycle(t.Context(), device1)
			took := time.Since(begun)
			if fleet.KindOf(err) != test.kind || (err != nil) != (test.kind != 0) || api.count(actOnDevice) != test.sent || took != test.took {
				t.Errorf("%s: %v (%s) after %s and %d actions", name, err, fleet.KindOf(err), took, api.count(actOnDevice))
			}
			if test.sent > 1 && strings.TrimSpace(api.bodies[actOnDevice]) != `{"type":"power_on"}` {
				t.Errorf("%s: the last action is %s", name, api.bodies[actOnDevice])
			}
		})
	}
}

func TestAPowerCycleEndsWithItsContext(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, p *Provider, api *scriptedAPI) {
		t.Helper()
		api.on(actOnDevice, answer{status: 202}).on(getDevice, inState("powering_off"))
		lost := errors.New("the lease is lost")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(9*time.Second, func() { cancel(lost) })
		begun := time.Now()
		err := p.PowerCycle(ctx, device1)
		if !errors.Is(err, lost) || time.Since(begun) != 9*time.Second || api.count(actOnDevice) != 1 {
			t.Errorf("%v after %s and %d actions", err, time.Since(begun), api.count(actOnDevice))
		}
	})
}
