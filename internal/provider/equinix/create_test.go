package equinix

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

func TestCreateSendsWhatItShould(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	request := createRequest()
	api.on(createDevice, answer{status: 201, body: deviceJSON(map[string]any{"state": "queued", "tags": []string{string(request.Token)}})})
	entry, err := p.Create(t.Context(), request)
	if err != nil || entry.ID != device1 || entry.Capacity != reservation1 || entry.Status != fleet.ProviderStatusCreating {
		t.Fatalf("%+v, %v", entry, err)
	}
	var sent map[string]any
	if err := json.Unmarshal([]byte(api.bodies[createDevice]), &sent); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"hostname": "fleet-2e3f4a5b", "hardware_reservation_id": reservation1, "operating_system": "debian_12", "plan": "c3.small.x86",
	} {
		if sent[key] != want {
			t.Errorf("%s is sent as %v", key, sent[key])
		}
	}
	text := api.bodies[createDevice]
	if !strings.Contains(text, `"tags":["`+string(request.Token)+`","`+managedTag+`"]`) || !strings.Contains(text, `"project_ssh_keys":["`+keyUUID+`"]`) {
		t.Error(text)
	}
}

// A reservation names its device only by reference, unless the answer includes the device. A retry
// after a lost reply must not take its own device for somebody else's.
func TestCreateKnowsItsOwnDeviceByReference(t *testing.T) {
	t.Parallel()
	request := createRequest()
	request.BeforeCall = neverCalled(t)
	occupied := strings.Replace(freeReservation, `"device":null`, `"device":{"href":"/metal/v1/devices/`+device1+`"}`, 1)
	for name, test := range map[string]struct {
		device answer
		kind   fleet.Kind
	}{
		"ours":           {answer{body: deviceJSON(map[string]any{"tags": []string{string(request.Token)}})}, 0},
		"another's":      {answer{body: deviceJSON(map[string]any{"tags": []string{"x"}})}, fleet.KindRaceLost},
		"vanishing":      {answer{status: 404, body: errorsBody("Not found")}, fleet.KindConflict},
		"not to be seen": {answer{status: 403, body: errorsBody("no")}, fleet.KindConflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, api := newScripted(t)
			api.on(getReservation, answer{body: occupied})
			api.on(getDevice, test.device)
			entry, err := p.Create(t.Context(), request)
			if fleet.KindOf(err) != test.kind || (err == nil) != (entry.ID == device1) {
				t.Errorf("%+v, %v (%s)", entry, err, fleet.KindOf(err))
			}
		})
	}
}

func TestCreateFailures(t *testing.T) {
	t.Parallel()
	busy := strings.Replace(freeReservation, `"provisionable":true`, `"provisionable":false`, 1)
	taken := strings.Replace(freeReservation, `"device":null`, `"device":`+deviceJSON(nil), 1)
	leaving := strings.Replace(freeReservation, `"device":null`, `"device":`+deviceJSON(map[string]any{"state": "deprovisioning"}), 1)
	left := strings.Replace(freeReservation, `"device":null`, `"device":`+deviceJSON(map[string]any{"state": "deleted"}), 1)
	refused := answer{status: 422, body: errorsBody("Server is not provisionable")}
	for name, test := range map[string]struct {
		reservation []answer
		create      []answer
		kind        fleet.Kind
		may         bool
	}{
		"not free":                 {[]answer{{body: busy}}, nil, fleet.KindConflict, false},
		"a spare":                  {[]answer{{body: strings.Replace(freeReservation, `{"id"`, `{"spare":true,"id"`, 1)}}, nil, fleet.KindConflict, false},
		"taken":                    {[]answer{{body: taken}}, nil, fleet.KindRaceLost, false},
		"leaving":                  {[]answer{{body: leaving}}, nil, fleet.KindConflict, false},
		"left":                     {[]answer{{body: left}}, nil, fleet.KindConflict, false},
		"left in the last moment":  {[]answer{{body: freeReservation}, {body: left}}, []answer{refused}, fleet.KindConflict, false},
		"a wrong request":          {[]answer{{body: freeReservation}}, []answer{refused}, fleet.KindInvalid, false},
		"busy in the last moment":  {[]answer{{body: freeReservation}, {body: busy}}, []answer{refused}, fleet.KindConflict, false},
		"taken in the last moment": {[]answer{{body: freeReservation}, {body: taken}}, []answer{refused}, fleet.KindRaceLost, false},
		"nothing free": {
			[]answer{{body: freeReservation}},
			[]answer{{status: 503, body: errorsBody("There are no available hardware reservations")}},
			fleet.KindNoCapacity, false,
		},
		"outage":    {[]answer{{body: freeReservation}}, []answer{{status: 503, body: errorsBody("down for a while")}}, fleet.KindTemporary, true},
		"a bug":     {[]answer{{body: freeReservation}}, []answer{{status: 500, body: errorsBody("Oh snap")}}, fleet.KindTemporary, true},
		"a proxy":   {[]answer{{body: freeReservation}}, []answer{{status: 502, body: "<h1>", header: map[string]string{"Content-Type": "text/html"}}}, fleet.KindTemporary, true},
		"throttled": {[]answer{{body: freeReservation}}, []answer{{status: 429, header: map[string]string{"Retry-After": "5"}}}, fleet.KindThrottled, false},
		"cut off": {[]answer{{body: freeReservation}}, []answer{{do: func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		}}}, fleet.KindTemporary, true},
		"an answer without a device": {[]answer{{body: freeReservation}}, []answer{{status: 201, body: `{}`}}, fleet.KindUnknown, true},
		"an answer of another":       {[]answer{{body: freeReservation}}, []answer{{status: 201, body: deviceJSON(nil)}}, fleet.KindUnknown, true},
		"an answer cut short":        {[]answer{{body: freeReservation}}, []answer{{status: 201, body: `{"id":"3333`}}, fleet.KindTemporary, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, api := newScripted(t)
			api.on(getReservation, test.reservation...)
			api.on(createDevice, test.create...)
			entry, err := p.Create(t.Context(), createRequest())
			if fleet.KindOf(err) != test.kind || err == nil || entry.ID != "" {
				t.Errorf("%+v, %v (%s)", entry, err, fleet.KindOf(err))
			}
			if provider.MayHaveCreated(err) != test.may {
				t.Errorf("may have created: %t, want %t: %v", !test.may, test.may, err)
			}
			if calls := api.count(createDevice); calls != len(test.create) {
				t.Errorf("the call that creates was made %d times", calls)
			}
			if strings.Contains(err.Error(), apiToken) {
				t.Errorf("the error shows the token: %v", err)
			}
		})
	}
}

// A create of ours that landed late, after the reservation was looked at: the refusal of the second
// one leads to its device.
func TestCreateFindsItsOwnLateDevice(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	request := createRequest()
	ours := deviceJSON(map[string]any{"tags": []string{string(request.Token)}})
	api.on(getReservation, answer{body: freeReservation}, answer{body: strings.Replace(freeReservation, `"device":null`, `"device":`+ours, 1)})
	api.on(createDevice, answer{status: 422, body: errorsBody("Server is not provisionable")})
	if entry, err := p.Create(t.Context(), request); err != nil || entry.ID != device1 {
		t.Errorf("%+v, %v", entry, err)
	}
}

// TestWhatACreateFailsBy: only what is said of the reservation is blamed on it.
func TestWhatACreateFailsBy(t *testing.T) {
	t.Parallel()
	busy := answer{body: strings.Replace(freeReservation, `"provisionable":true`, `"provisionable":false`, 1)}
	leaving := answer{body: strings.Replace(freeReservation, `"device":null`, `"device":`+deviceJSON(map[string]any{"state": "deprovisioning"}), 1)}
	held := answer{body: strings.Replace(freeReservation, `"device":null`, `"device":{"href":"/metal/v1/devices/`+device1+`"}`, 1)}
	proxy := map[string]string{"Content-Type": "text/html", "X-Request-Id": ""}
	for name, test := range map[string]struct {
		at     string
		answer answer
		kind   fleet.Kind
		blames bool
	}{
		"not free":               {getReservation, busy, fleet.KindConflict, true},
		"held":                   {getReservation, held, fleet.KindConflict, true},
		"leaving":                {getReservation, leaving, fleet.KindConflict, true},
		"not there":              {getReservation, answer{status: 404, body: errorsBody("Not found")}, fleet.KindNotFound, true},
		"wrong":                  {getReservation, answer{status: 422, body: errorsBody("no")}, fleet.KindInvalid, true},
		"not to be seen":         {getReservation, answer{status: 403, body: errorsBody("no")}, fleet.KindForbidden, true},
		"a proxy":                {getReservation, answer{status: 407, body: "<h1>", header: proxy}, fleet.KindInvalid, false},
		"the token":              {getReservation, answer{status: 401, body: errorsBody("no")}, fleet.KindUnauthenticated, false},
		"the limit":              {getReservation, answer{status: 429, header: map[string]string{"Retry-After": "3600"}}, fleet.KindThrottled, false},
		"the label":              {listKeys, answer{body: sshKeys("ironherd", otherKey)}, fleet.KindConflict, false},
		"the project":            {listKeys, answer{status: 404, body: errorsBody("Not found")}, fleet.KindNotFound, false},
		"the project of another": {listKeys, answer{status: 403, body: errorsBody("no")}, fleet.KindForbidden, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, api := newScripted(t)
			api.on(getDevice, answer{status: 404, body: errorsBody("Not found")})
			api.on(test.at, test.answer)
			request := createRequest()
			request.BeforeCall = neverCalled(t)
			_, err := p.Create(t.Context(), request)
			if fleet.KindOf(err) != test.kind || provider.ConcernsCapacity(err) != test.blames {
				t.Errorf("%v (%s), blamed on the reservation: %t", err, fleet.KindOf(err), provider.ConcernsCapacity(err))
			}
		})
	}
	p, _ := newScripted(t)
	if _, err := p.Create(t.Context(), provider.CreateRequest{Capacity: "x", Token: "t", Machine: "m"}); !provider.ConcernsCapacity(err) {
		t.Errorf("what cannot be the ID of a reservation: %v", err)
	}
}

func TestCapacityTexts(t *testing.T) {
	t.Parallel()
	for text, kind := range map[string]fleet.Kind{
		"There are no available hardware reservations for this plan": fleet.KindNoCapacity,
		"There aren't available servers in that metro":               fleet.KindNoCapacity,
		"Service Unavailable": fleet.KindTemporary,
		"":                    fleet.KindTemporary,
	} {
		err := capacityError(&fleet.Error{Kind: fleet.KindTemporary, Err: &answerError{status: 503, text: text}})
		if fleet.KindOf(err) != kind {
			t.Errorf("%q is %s", text, fleet.KindOf(err))
		}
	}
	err := &fleet.Error{Kind: fleet.KindInvalid, Err: &answerError{status: 422, text: "no available servers"}}
	if fleet.KindOf(capacityError(err)) != fleet.KindInvalid {
		t.Error("a text of another status is looked at")
	}
}

func TestCancelledCreateTellsThatItMayHaveCreated(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	api.on(createDevice, answer{do: func(_ http.ResponseWriter, r *http.Request) {
		cancel(fleet.ErrLeaseLost)
		<-r.Context().Done()
	}})
	entry, err := p.Create(ctx, createRequest())
	if entry.ID != "" || !provider.MayHaveCreated(err) || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v (%s)", entry, err, fleet.KindOf(err))
	}
}
