package equinix

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/packethost/packngo"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

const (
	listDevices      = "GET projects/" + projectID + "/devices"
	listReservations = "GET projects/" + projectID + "/hardware-reservations"
	createDevice     = "POST projects/" + projectID + "/devices"
	getReservation   = "GET hardware-reservations/" + reservation1
	getDevice        = "GET devices/" + device1
	getProject       = "GET projects/" + projectID
)

func errorsBody(texts ...string) string {
	body, err := json.Marshal(map[string]any{"errors": texts})
	if err != nil {
		panic(err)
	}
	return string(body)
}

func TestErrorsAreClassified(t *testing.T) {
	t.Parallel()
	html := map[string]string{"Content-Type": "text/html", "X-Request-Id": ""}
	for name, test := range map[string]struct {
		answer answer
		kind   fleet.Kind
	}{
		"no token":              {answer{status: 401, body: `{"error":"Invalid authentication token"}`}, fleet.KindUnauthenticated},
		"not ours":              {answer{status: 403, body: errorsBody("You are not authorized to view this device")}, fleet.KindForbidden},
		"not there":             {answer{status: 404, body: errorsBody("Not found")}, fleet.KindNotFound},
		"not there, terse":      {answer{status: 404}, fleet.KindNotFound},
		"a proxy knows no such": {answer{status: 404, body: "<h1>404</h1>", header: html}, fleet.KindUnknown},
		"a gateway knows no such": {
			answer{status: 404, body: `{"message":"no Route matched"}`, header: map[string]string{"X-Request-Id": ""}}, fleet.KindUnknown,
		},
		"a firewall forbids":     {answer{status: 403, body: "no", header: html}, fleet.KindForbidden},
		"wrong":                  {answer{status: 422, body: errorsBody("Facility can't be blank")}, fleet.KindInvalid},
		"wrong in a strange way": {answer{status: 400, body: `[`}, fleet.KindInvalid},
		"gone without a body":    {answer{status: 404, body: `[`, header: map[string]string{"X-Request-Id": ""}}, fleet.KindUnknown},
		"redirected":             {answer{status: 302, header: map[string]string{"Location": "http://192.0.2.1/"}}, fleet.KindUnknown},
		"success that is none":   {answer{body: "<html>sign in</html>", header: html}, fleet.KindTemporary},
		"another device":         {answer{body: deviceJSON(map[string]any{"id": reservation1})}, fleet.KindUnknown},
		"a device of numbers":    {answer{body: `{"id":7}`}, fleet.KindTemporary},
		"throttled":              {answer{status: 429, header: map[string]string{"Retry-After": "300"}}, fleet.KindThrottled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, api := newScripted(t)
			api.on(getDevice, test.answer)
			api.on(listDevices, rows("devices", 1, 1, 1, deviceJSON(nil)))
			entry, err := p.Get(t.Context(), device1)
			if fleet.KindOf(err) != test.kind || entry.ID != "" {
				t.Errorf("%+v, %v (%s)", entry, err, fleet.KindOf(err))
			}
			if strings.Contains(err.Error(), apiToken) || !strings.Contains(err.Error(), device1) {
				t.Errorf("the message: %v", err)
			}
			if test.kind == fleet.KindThrottled && fleet.RetryAfter(err) == 0 {
				t.Error("the wish to be left alone is lost")
			}
		})
	}
}

func TestTheTokenIsNotSentElsewhere(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a redirect leads to %s, with the token %q", r.URL, r.Header.Get("X-Auth-Token"))
	}))
	defer other.Close()
	p, api := newScripted(t)
	api.on(getDevice, answer{status: 307, header: map[string]string{"Location": other.URL}})
	if _, err := p.Get(t.Context(), device1); err == nil {
		t.Error("a redirect is taken for an answer")
	}
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	api.on(getDevice, answer{body: deviceJSON(nil)})
	if err := os.WriteFile(p.config.TokenFile, []byte("  \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Get(t.Context(), device1); fleet.KindOf(err) != fleet.KindUnauthenticated {
		t.Errorf("an empty file: %v", err)
	}
	if err := os.WriteFile(p.config.TokenFile, []byte(apiToken), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Get(t.Context(), device1); err != nil {
		t.Errorf("a token that was put back: %v", err)
	}
	for _, content := range []string{"", "t", "short-1", "two tokens of some length", strings.Repeat("x", tokenSize+1), "long enough tok\x00en"} {
		if err := os.WriteFile(p.config.TokenFile, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(p.config, provider.Options{}); fleet.KindOf(err) != fleet.KindUnauthenticated ||
			len(content) > 3 && strings.Contains(err.Error(), content) {
			t.Errorf("%.20q: %v", content, err)
		}
	}
	if err := errors.Join(os.WriteFile(p.config.TokenFile, []byte(apiToken), 0o600), os.Chmod(p.config.TokenFile, 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Get(t.Context(), device1); fleet.KindOf(err) != fleet.KindUnauthenticated || !strings.Contains(err.Error(), "open to others") {
		t.Errorf("a token that others can read: %v", err)
	}
}

func TestEntryOfADevice(t *testing.T) {
	t.Parallel()
	token := fleet.NewToken()
	p, api := newScripted(t)
	api.on(getDevice, answer{body: deviceJSON(map[string]any{"tags": []string{managedTag, string(token), "ironherd-but-not-a-token", "role=db", "a word", "zone"}})})
	entry, err := p.Get(t.Context(), device1)
	if err != nil {
		t.Fatal(err)
	}
	if entry.ID != device1 || entry.Capacity != reservation1 || entry.Availability != fleet.AvailabilityKnownUsed ||
		entry.Status != fleet.ProviderStatusActive || entry.Hostname != "fleet-1" || entry.Address.String() != "192.0.2.1" ||
		entry.Location != "da11" || !slices.Equal(entry.Tokens, []fleet.Token{token}) ||
		!slices.Equal(entry.Labels, []string{"ironherd-but-not-a-token=", "role=db", "zone="}) || entry.CreatedAt.Year() != 2024 || entry.Invalid != "" {
		t.Errorf("%+v", entry)
	}
}

// TestWordsOfTheAPIArePrintable: they are shown on terminals.
func TestWordsOfTheAPIArePrintable(t *testing.T) {
	t.Parallel()
	const hostile = "a\x1b[2J\u009bb"
	for name, got := range map[string]provider.Entry{
		"device": new(Provider).parseDevice(jsontext.Value(deviceJSON(map[string]any{
			"hostname": hostile, "state": hostile, "facility": map[string]any{"code": hostile},
		}))).entry,
		"device of a metro": new(Provider).parseDevice(jsontext.Value(deviceJSON(map[string]any{
			"hostname": hostile, "state": hostile, "facility": nil, "metro": map[string]any{"code": hostile},
		}))).entry,
		"reservation": freeEntry(&reservation{HardwareReservation: packngo.HardwareReservation{
			ID: reservation1, Facility: packngo.Facility{Code: hostile}, Plan: packngo.Plan{Slug: hostile},
		}}),
	} {
		const want = "a [2J b"
		if got.Location != want || got.Detail != want || got.Availability == fleet.AvailabilityKnownUsed && got.Hostname != want {
			t.Errorf("%s: host name %q, location %q, detail %q", name, got.Hostname, got.Location, got.Detail)
		}
	}
}

func TestAddressOfADevice(t *testing.T) {
	t.Parallel()
	ip := func(address string, family int, public, management bool) map[string]any {
		return map[string]any{"address": address, "address_family": family, "public": public, "management": management}
	}
	for name, test := range map[string]struct {
		assigned []any
		want     string
		invalid  bool
	}{
		"none":              {nil, "invalid IP", false},
		"private only":      {[]any{ip("10.0.0.1", 4, false, true)}, "invalid IP", false},
		"v6 only":           {[]any{ip("10.0.0.1", 4, false, true), ip("2001:db8::1", 6, true, true)}, "2001:db8::1", false},
		"v4 before v6":      {[]any{ip("2001:db8::1", 6, true, true), ip("192.0.2.9", 4, true, true)}, "192.0.2.9", false},
		"attached later":    {[]any{ip("192.0.2.77", 4, true, false), ip("192.0.2.9", 4, true, true)}, "192.0.2.9", false},
		"nothing is ours":   {[]any{ip("192.0.2.77", 4, true, false)}, "192.0.2.77", false},
		"nonsense":          {[]any{ip("192.0.2.300", 4, true, true)}, "invalid IP", true},
		"of another family": {[]any{ip("2001:db8::1", 4, true, true)}, "invalid IP", true},
		"null":              {[]any{nil, ip("192.0.2.9", 4, true, true)}, "192.0.2.9", false},
	} {
		row := new(Provider).parseDevice(jsontext.Value(deviceJSON(map[string]any{"ip_addresses": test.assigned})))
		if entry := row.entry; entry.Address.String() != test.want || (entry.Invalid != "") != test.invalid {
			t.Errorf("%s: %s, %q", name, entry.Address, entry.Invalid)
		}
	}
}

func TestStatusOfADevice(t *testing.T) {
	t.Parallel()
	// All states of the published document.
	for _, state := range strings.Fields("queued provisioning active inactive powering_on powering_off reinstalling deprovisioning deleted failed") {
		entry := new(Provider).parseDevice(jsontext.Value(deviceJSON(map[string]any{"state": state}))).entry
		if entry.Status == "" || entry.Invalid != "" {
			t.Errorf("%s: %+v", state, entry)
		}
	}
	for state, want := range map[string]fleet.ProviderStatus{
		"inactive": fleet.ProviderStatusOff, "powering_off": fleet.ProviderStatusPowering, "powering_on": fleet.ProviderStatusPowering,
	} {
		if got := new(Provider).parseDevice(jsontext.Value(deviceJSON(map[string]any{"state": state}))).entry.Status; got != want {
			t.Errorf("%s is %s, want %s", state, got, want)
		}
	}
	entry := new(Provider).parseDevice(jsontext.Value(deviceJSON(map[string]any{"state": "provisioning", "provisioning_percentage": 40.4}))).entry
	if entry.Detail != "provisioning, 40 %" {
		t.Errorf("%q", entry.Detail)
	}
	if entry := new(Provider).parseDevice(jsontext.Value(deviceJSON(map[string]any{"state": "melting"}))).entry; entry.Invalid == "" || entry.Status != "" {
		t.Errorf("%+v", entry)
	}
}

func TestAListWithBadRows(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	other := strings.ReplaceAll(device1, "01", "02")
	api.on(listReservations, rows("hardware_reservations", 1, 1, 4, freeReservation,
		`{"id":"not-a-uuid","provisionable":true,"created_at":"2023-01-01T00:00:00Z"}`,
		`{"id":"22222222-2222-4222-8222-222222222202","provisionable":"yes, says a secret"}`,
		`{"id":"22222222-2222-4222-8222-222222222203","provisionable":true,"need_of_service":true,"created_at":"2023-01-01T00:00:00Z"}`))
	api.on(listDevices, rows("devices", 1, 1, 4,
		deviceJSON(map[string]any{"hardware_reservation": nil}), `{"id":"`+other+`","tags":"none"}`, `7`,
		deviceJSON(map[string]any{"id": "short", "hardware_reservation": nil})))
	entries, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	good, bad := 0, 0
	reasons := map[string]bool{}
	for _, entry := range entries {
		reasons[entry.Invalid] = true
		if entry.Invalid == "" {
			good++
		} else {
			bad++
		}
	}
	if good != 2 || bad != 5 {
		t.Errorf("%d good, %d bad: %+v", good, bad, entries)
	}
	for _, reason := range []string{
		"the reservation cannot be read: provisionable is a JSON string", // and not which string
		"the device cannot be read: tags is a JSON string",
		"the device cannot be read: the whole is a JSON number",
	} {
		if !reasons[reason] {
			t.Errorf("nothing is unreadable because %q: %v", reason, reasons)
		}
	}
	if !slices.IsSortedFunc(entries, provider.CompareEntries) {
		t.Error("not in order")
	}
}

func TestADeviceHidesItsReservation(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	// The list of reservations lags behind: it still shows the reservation as free.
	api.on(listReservations, rows("hardware_reservations", 1, 1, 1, freeReservation))
	api.on(listDevices, rows("devices", 1, 1, 1, deviceJSON(nil)))
	entries, err := p.List(t.Context())
	if err != nil || len(entries) != 1 || entries[0].ID != device1 || entries[0].Capacity != reservation1 {
		t.Errorf("%+v, %v", entries, err)
	}
}

// TestMachinesAreListedWithoutReservations: the calls are the provider's to count.
func TestMachinesAreListedWithoutReservations(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	api.on(listDevices, rows("devices", 1, 1, 1, deviceJSON(nil)))
	entries, err := p.ListMachines(t.Context())
	if err != nil || len(entries) != 1 || entries[0].ID != device1 || entries[0].Capacity != reservation1 {
		t.Errorf("%+v, %v", entries, err)
	}
	if n := api.count(""); n != 1 {
		t.Errorf("%d calls for one page", n)
	}
}

func TestAListIsWholeOrNone(t *testing.T) {
	t.Parallel()
	device := func(n string) string {
		return deviceJSON(map[string]any{"id": device1[:34] + n, "hardware_reservation": nil})
	}
	for name, test := range map[string]struct {
		pages []answer
		kind  fleet.Kind
		ids   int
		calls int
	}{
		"two pages": {
			[]answer{rows("devices", 1, 2, 3, device("01"), device("02")), rows("devices", 2, 2, 3, device("03"))}, 0, 3, 2,
		},
		"shifted once": {
			[]answer{
				rows("devices", 1, 2, 3, device("01"), device("02")), rows("devices", 2, 2, 3, device("02")),
				rows("devices", 1, 2, 3, device("01"), device("02")), rows("devices", 2, 2, 3, device("03")),
			}, 0, 3, 4,
		},
		"grew": {
			[]answer{
				rows("devices", 1, 2, 3, device("01"), device("02")), rows("devices", 2, 2, 4, device("03"), device("04")),
				rows("devices", 1, 1, 4, device("01"), device("02"), device("03"), device("04")),
			}, 0, 4, 3,
		},
		"grows all the time": { // 03 comes on a page that was read, then 05
			[]answer{
				rows("devices", 1, 2, 3, device("01"), device("04")), rows("devices", 2, 2, 4, device("04"), device("06")),
				rows("devices", 1, 2, 4, device("01"), device("03")), rows("devices", 2, 3, 5, device("04"), device("05")),
				rows("devices", 3, 3, 5, device("06")),
			}, 0, 5, 5,
		},
		"one came and one went": { // 01 has gone, so 04 moved up and is passed over
			[]answer{
				rows("devices", 1, 2, 3, device("01"), device("02")), rows("devices", 2, 2, 4, device("05"), device("06")),
				rows("devices", 1, 2, 4, device("02"), device("04")), rows("devices", 2, 2, 5, device("05"), device("06"), device("07")),
				rows("devices", 1, 1, 5, device("02"), device("04"), device("05"), device("06"), device("07")),
			}, 0, 5, 5,
		},
		"never whole":  {[]answer{rows("devices", 1, 1, 3, device("01"), device("02"))}, fleet.KindTemporary, 0, maximumReadings},
		"same twice":   {[]answer{rows("devices", 1, 1, 2, device("01"), device("01"))}, fleet.KindTemporary, 0, maximumReadings},
		"no total":     {[]answer{{body: `{"devices":[` + device("01") + `]}`}}, fleet.KindInvalid, 0, 1},
		"null":         {[]answer{{body: `null`}}, fleet.KindInvalid, 0, 1},
		"another list": {[]answer{rows("things", 1, 1, 2, device("01"), device("02"))}, fleet.KindTemporary, 0, maximumReadings},
		"fails later": {
			[]answer{rows("devices", 1, 2, 3, device("01"), device("02")), {status: 403, body: errorsBody("no")}}, fleet.KindForbidden, 0, 2,
		},
		"none":                       {[]answer{rows("devices", 1, 1, 0)}, 0, 0, 1},
		"more than anybody has":      {[]answer{rows("devices", 1, 1000, 100_001, device("01"))}, fleet.KindInvalid, 0, 1},
		"more rows than anybody has": {[]answer{rows("devices", 1, 1, 1, strings.Repeat("{},", 100_000)+"{}")}, fleet.KindInvalid, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, api := newScripted(t)
			api.on(listReservations, rows("hardware_reservations", 1, 1, 0))
			api.on(listDevices, test.pages...)
			entries, err := p.List(t.Context())
			if fleet.KindOf(err) != test.kind || (err != nil) != (test.kind != 0) || len(entries) != test.ids {
				t.Errorf("%d entries, %v", len(entries), err)
			}
			if got := api.count(listDevices); got != test.calls {
				t.Errorf("%d pages were read, want %d", got, test.calls)
			}
		})
	}
}

// TestFewLongRows: rows may be few, and hold as much as an answer may.
func TestFewLongRows(t *testing.T) {
	t.Parallel()
	r := reading[deviceRow]{ids: map[string]bool{}, first: -1}
	long := strings.Repeat("x", 30<<20)
	rows := 0
	parse := func(jsontext.Value) deviceRow {
		rows++
		return deviceRow{id: strconv.Itoa(rows), entry: provider.Entry{ID: fleet.ProviderID(long)}}
	}
	if !r.take(1000, make([]jsontext.Value, 4), parse) {
		t.Error("120 MiB are refused")
	}
	if r.take(1000, make([]jsontext.Value, 10), parse) || rows != 5 {
		t.Errorf("%d rows of 30 MiB were taken in", rows)
	}
}

func TestFindByTokenTrustsNoFilter(t *testing.T) {
	t.Parallel()
	request := createRequest()
	ours := deviceJSON(map[string]any{"tags": []string{string(request.Token)}})
	none, all := rows("devices", 1, 1, 0), rows("devices", 1, 1, 1, ours)
	for name, test := range map[string]struct {
		lists []answer
		kind  fleet.Kind
		calls int
	}{
		"the filter finds it":      {[]answer{all}, 0, 1},
		"the filter lags":          {[]answer{none, all}, 0, 2},
		"the filter does not work": {[]answer{rows("devices", 1, 1, 1, deviceJSON(nil))}, fleet.KindNotFound, 2},
		"it is nowhere":            {[]answer{none}, fleet.KindNotFound, 2},
		"a list fails":             {[]answer{none, {status: 403, body: errorsBody("no")}}, fleet.KindForbidden, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, api := newScripted(t)
			api.on(listDevices, test.lists...)
			entry, err := p.FindByToken(t.Context(), reservation1, request.Token)
			if fleet.KindOf(err) != test.kind || (err == nil) != (entry.ID == device1) {
				t.Errorf("%+v, %v", entry, err)
			}
			if calls := api.count(listDevices); calls != test.calls {
				t.Errorf("%d lists were read", calls)
			}
		})
	}
}

func TestReleaseAndReboot(t *testing.T) {
	t.Parallel()
	const remove, act = "DELETE devices/" + device1, "POST devices/" + device1 + "/actions"
	for name, test := range map[string]struct {
		answer answer
		kind   fleet.Kind
		fails  bool
	}{
		"done":        {answer{status: 204}, 0, false},
		"gone":        {answer{status: 404, body: errorsBody("Not found")}, 0, false},
		"by a proxy":  {answer{status: 404, header: map[string]string{"Content-Type": "text/html"}}, fleet.KindUnknown, true},
		"not allowed": {answer{status: 403, body: errorsBody("no")}, fleet.KindForbidden, true},
		"not now":     {answer{status: 422, body: errorsBody("Cannot delete a device while it is provisioning")}, fleet.KindConflict, true},
	} {
		p, api := newScripted(t)
		api.on(remove, test.answer).on(getDevice, inState("provisioning"))
		if err := p.Release(t.Context(), device1); fleet.KindOf(err) != test.kind || (err != nil) != test.fails {
			t.Errorf("%s: %v (%s)", name, err, fleet.KindOf(err))
		}
		if !strings.Contains(api.bodies[remove], `"force_delete":true`) {
			t.Errorf("%s: %s", name, api.bodies[remove])
		}
	}
	p, api := newScripted(t)
	api.on(act, answer{status: 202}, answer{status: 404, body: errorsBody("Not found")}, answer{status: 500, body: errorsBody("Oh snap")})
	for _, kind := range []fleet.Kind{0, fleet.KindNotFound, fleet.KindTemporary} {
		if err := p.Reboot(t.Context(), device1); fleet.KindOf(err) != kind {
			t.Errorf("%v, want %s", err, kind)
		}
	}
	if api.count(act) != 3 {
		t.Error("a reboot was asked for twice")
	}
}

func TestNothingButIDsBecomesAPath(t *testing.T) {
	t.Parallel()
	p, _ := newScripted(t)
	for _, id := range []string{"", "next-available", "../projects", "x", device1 + "/../..", "{" + device1 + "}", "urn:uuid:" + device1} {
		_, get := p.Get(t.Context(), fleet.ProviderID(id))
		_, create := p.Create(t.Context(), provider.CreateRequest{Capacity: fleet.CapacityID(id), Token: "t", Machine: "m"})
		_, find := p.FindByToken(t.Context(), fleet.CapacityID(id), "t")
		for _, err := range []error{get, create, find, p.Release(t.Context(), fleet.ProviderID(id)), p.Reboot(t.Context(), fleet.ProviderID(id))} {
			if fleet.KindOf(err) != fleet.KindInvalid {
				t.Errorf("%q: %v", id, err)
			}
		}
	}
}

func FuzzRows(f *testing.F) {
	f.Add([]byte(deviceJSON(nil)))
	f.Add([]byte(freeReservation))
	f.Add([]byte(`{"id":"` + device1 + `","ip_addresses":[null,{"address":"::","address_family":6,"public":true,"management":true}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, entry := range merge([]deviceRow{new(Provider).parseDevice(data)}, []reservationRow{parseReservation(data)}) {
			if entry.Invalid == "" && entry.ID == "" && entry.Capacity == "" {
				t.Errorf("accepted: %+v", entry)
			}
		}
	})
}
