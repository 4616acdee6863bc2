package equinix

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// TestARefusalMayMeanThatADeviceIsGone: only a whole list without the device makes it one.
func TestARefusalMayMeanThatADeviceIsGone(t *testing.T) {
	t.Parallel()
	refused := answer{status: 403, body: errorsBody("You are not authorized to view this device")}
	other := deviceJSON(map[string]any{"id": strings.ReplaceAll(device1, "01", "02")})
	for name, test := range map[string]struct {
		get, list answer
		kind      fleet.Kind
		lists     int
	}{
		"the list lacks it":       {refused, rows("devices", 1, 1, 1, other), fleet.KindNotFound, 1},
		"nothing is in the list":  {refused, rows("devices", 1, 1, 0), fleet.KindNotFound, 1},
		"the list has it":         {refused, rows("devices", 1, 1, 1, deviceJSON(nil)), fleet.KindForbidden, 1},
		"in capitals":             {refused, rows("devices", 1, 1, 1, deviceJSON(map[string]any{"id": strings.ToUpper(device1)})), fleet.KindForbidden, 1},
		"a row has no ID":         {refused, rows("devices", 1, 1, 2, other, `{"id":7}`), fleet.KindForbidden, 1},
		"a row cannot be read":    {refused, rows("devices", 1, 1, 1, `{"id":"`+device1+`","tags":"none"}`), fleet.KindForbidden, 1},
		"the list is refused":     {refused, refused, fleet.KindForbidden, 1},
		"the list is never whole": {refused, rows("devices", 1, 1, 2, other), fleet.KindForbidden, maximumReadings},
		"by a proxy": {
			answer{status: 403, body: "<html>", header: map[string]string{"Content-Type": "text/html", "X-Request-Id": ""}},
			rows("devices", 1, 1, 0), fleet.KindForbidden, 0,
		},
		"by the token": {answer{status: 401, body: errorsBody("Invalid authentication token")}, rows("devices", 1, 1, 0), fleet.KindUnauthenticated, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, api := newScripted(t)
			api.on(getDevice, test.get)
			api.on(listDevices, test.list)
			if _, err := p.Get(t.Context(), device1); fleet.KindOf(err) != test.kind {
				t.Errorf("%v (%s), want %s", err, fleet.KindOf(err), test.kind)
			}
			if lists := api.count(listDevices); lists != test.lists {
				t.Errorf("%d pages of lists were read, want %d", lists, test.lists)
			}
		})
	}
}

// TestAListThatLacksARowIsNoEvidence: between the pages of a list one device goes and another
// comes, so that there are as many rows as there should be, and one is not among them.
func TestAListThatLacksARowIsNoEvidence(t *testing.T) {
	t.Parallel()
	device := func(n int) string {
		return deviceJSON(map[string]any{"id": fmt.Sprintf("%s%02d", device1[:34], n)})
	}
	page := func(number, total int, numbers ...int) answer {
		var all []string
		for _, n := range numbers {
			all = append(all, device(n))
		}
		return rows("devices", number, 2, total, all...)
	}
	for name, test := range map[string]struct {
		pages []answer
		kind  fleet.Kind
	}{
		"the API gives fewer than page_size":    {[]answer{page(1, 4, 2, 3), page(2, 4, 5, 6), page(1, 4, 3, 4), page(2, 4, 5, 6)}, fleet.KindForbidden},
		"it moved to a page that had been read": {[]answer{page(1, 4, 2, 3), page(2, 4, 5, 6), page(1, 4, 3, 4), page(2, 4, 5, 6)}, fleet.KindForbidden},
		"it is in neither":                      {[]answer{page(1, 4, 2, 3), page(2, 4, 5, 6), page(1, 4, 2, 3), page(2, 4, 5, 6)}, fleet.KindNotFound},
		"the second one fails":                  {[]answer{page(1, 4, 2, 3), page(2, 4, 5, 6), {status: 403, body: errorsBody("no")}}, fleet.KindForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, api := newScripted(t)
			if p.config.PageSize = 2; name == "the API gives fewer than page_size" {
				p.config.PageSize = 500
			}
			gone := fmt.Sprintf("%s%02d", device1[:34], 4)
			api.on("GET devices/"+gone, answer{status: 403, body: errorsBody("You are not authorized to view this device")})
			api.on(listDevices, test.pages...)
			if _, err := p.Get(t.Context(), fleet.ProviderID(gone)); fleet.KindOf(err) != test.kind {
				t.Errorf("%v (%s), want %s", err, fleet.KindOf(err), test.kind)
			}
		})
	}
}

// refuser is an API that shows no device, and lists none. A list takes a while.
type refuser struct{ gets, lists int }

func (r *refuser) RoundTrip(request *http.Request) (*http.Response, error) {
	status, body := http.StatusForbidden, errorsBody("You are not authorized to view this device")
	if strings.HasSuffix(request.URL.Path, "/projects/"+projectID+"/devices") {
		r.lists++
		time.Sleep(projectListWait / 2)
		status, body = http.StatusOK, rows("devices", 1, 1, 0).body
	} else {
		r.gets++
	}
	return &http.Response{
		StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: request,
		Header: http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"request"}},
	}, nil
}

// TestOneListTellsOfAllThatWereRefused, if it was begun afterwards; the next one comes a while
// later.
func TestOneListTellsOfAllThatWereRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := new(refuser)
		p, err := New(testConfig(t, "http://api.localhost/metal/v1"), provider.Options{HTTP: api, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		const devices = 100
		round := func() (gone int) {
			t.Helper()
			for n := range devices {
				_, err := p.Get(t.Context(), fleet.ProviderID(fmt.Sprintf("%s%02d", device1[:34], n)))
				switch fleet.KindOf(err) {
				case fleet.KindNotFound:
					gone++
				case fleet.KindForbidden:
				default:
					t.Fatal(err)
				}
			}
			return gone
		}
		// The first is judged by a list of its own, which is older than the refusals of the others.
		if gone := round(); gone != 1 || api.lists != 1 {
			t.Errorf("%d devices are gone after %d lists", gone, api.lists)
		}
		time.Sleep(projectListAge)
		// The others were refused before the second list, and the first one anew.
		if gone := round(); gone != devices || api.lists != 2 {
			t.Errorf("later, %d devices are gone after %d lists", gone, api.lists)
		}
		if api.gets != 2*devices {
			t.Errorf("%d devices were asked for", api.gets)
		}
	})
}

// TestAListAnswersAllWhoAsk: one that asks every second does not use up each list before one that
// asks seldom; and a list is no evidence for ever.
func TestAListAnswersAllWhoAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := new(refuser)
		p, err := New(testConfig(t, "http://api.localhost/metal/v1"), provider.Options{HTTP: api, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ask := func() {
			t.Helper()
			if _, err := p.Get(t.Context(), device1); fleet.KindOf(err) != fleet.KindNotFound {
				t.Errorf("after %d lists: %v (%s)", api.lists, err, fleet.KindOf(err))
			}
		}
		for range 2 * projectListAge / time.Second {
			ask()
			time.Sleep(time.Second)
		}
		if api.lists != 1 {
			t.Errorf("%d lists were made", api.lists)
		}
		time.Sleep(projectListTells)
		ask()
		if api.lists != 2 {
			t.Errorf("later, %d lists were made", api.lists)
		}
		for n := range 10 { // others, until nobody has asked about it for so long
			time.Sleep(refusalKept / 5)
			_, _ = p.Get(t.Context(), fleet.ProviderID(fmt.Sprintf("%s%02d", device1[:34], 10+n)))
		}
		if _, kept := p.absent.refused[device1]; kept || len(p.absent.refused) > 6 {
			t.Errorf("refusals of %d devices are kept", len(p.absent.refused))
		}
	})
}

// TestDevicesThatAreAskedForInTurn: the updater asks about some of those that are missing in each
// pass. All are known to be gone when it has come by twice, however many there are.
func TestDevicesThatAreAskedForInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := new(refuser)
		p, err := New(testConfig(t, "http://api.localhost/metal/v1"), provider.Options{HTTP: api, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		const devices, asks = 90, 18
		gone := make(map[int]bool)
		for pass := range 2 * devices / asks {
			for n := range asks {
				n += pass % (devices / asks) * asks
				_, err := p.Get(t.Context(), fleet.ProviderID(fmt.Sprintf("%s%02d", device1[:34], n)))
				gone[n] = gone[n] || fleet.KindOf(err) == fleet.KindNotFound
			}
			time.Sleep(30 * time.Minute)
		}
		for n := range devices {
			if !gone[n] {
				t.Errorf("device %d is not gone after two rounds and %d lists", n, api.lists)
			}
		}
	})
}

// TestADeviceThatIsListedAgain: a list that lacked it says nothing of it any more.
func TestADeviceThatIsListedAgain(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	refused := answer{status: 403, body: errorsBody("You are not authorized to view this device")}
	api.on(getDevice, refused)
	api.on(listDevices, rows("devices", 1, 1, 0), rows("devices", 1, 1, 1, deviceJSON(nil)), refused)
	if _, err := p.Get(t.Context(), device1); fleet.KindOf(err) != fleet.KindNotFound {
		t.Errorf("the list lacks it: %v", err)
	}
	if entries, err := p.ListMachines(t.Context()); err != nil || len(entries) != 1 {
		t.Errorf("%d are listed, %v", len(entries), err)
	}
	if _, err := p.Get(t.Context(), device1); fleet.KindOf(err) != fleet.KindForbidden {
		t.Errorf("a later list has it: %v", err)
	}
}

// slow is an API that shows no device. A list of them has so many pages that no question waits for
// its end. Each is read twice, and the third reading fails.
type slow struct{ gets, lists, pages int }

func (s *slow) RoundTrip(request *http.Request) (*http.Response, error) {
	status, body := http.StatusForbidden, errorsBody("You are not authorized to view this device")
	switch page := request.URL.Query().Get("page"); {
	case !strings.HasSuffix(request.URL.Path, "/projects/"+projectID+"/devices"):
		s.gets++
	default:
		s.pages++
		if page == "1" {
			s.lists++
		}
		select {
		case <-time.After(5 * time.Second):
		case <-request.Context().Done():
			return nil, request.Context().Err()
		}
		if page != "20" || s.lists != 3 {
			status, body = http.StatusOK, rows("devices", 1, 20, 0).body
		}
	}
	return &http.Response{
		StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: request,
		Header: http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"request"}},
	}, nil
}

// TestAListOutlivesTheQuestion that it was begun for, and one that fails does not take away what an
// earlier one has shown.
func TestAListOutlivesTheQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := new(slow)
		p, err := New(testConfig(t, "http://api.localhost/metal/v1"), provider.Options{HTTP: api, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(n int, want fleet.Kind) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if _, err := p.Get(ctx, fleet.ProviderID(fmt.Sprintf("%s%02d", device1[:34], n))); fleet.KindOf(err) != want {
				t.Errorf("device %d: %v (%s), want %s", n, err, fleet.KindOf(err), want)
			}
		}
		began := time.Now()
		ask(1, fleet.KindForbidden) // the first list is begun, and takes 200 s
		ask(3, fleet.KindForbidden) // about which that says nothing
		if took := time.Since(began); took != projectListWait {
			t.Errorf("two refusals took %s", took)
		}
		time.Sleep(10 * projectListAge)
		ask(2, fleet.KindForbidden) // the second, which fails
		time.Sleep(3 * projectListAge)
		ask(1, fleet.KindNotFound)
		if api.lists != 3 || api.pages != 60 {
			t.Errorf("%d pages in %d readings were read", api.pages, api.lists)
		}
		ask(2, fleet.KindForbidden) // the third
		time.Sleep(10 * projectListAge)
		ask(2, fleet.KindNotFound)
		if api.lists != 5 {
			t.Errorf("%d readings were begun", api.lists)
		}
	})
}

// TestFindByTokenGoesOn where the reservation does not tell.
func TestFindByTokenGoesOn(t *testing.T) {
	t.Parallel()
	request := createRequest()
	refused := answer{status: 403, body: errorsBody("no")}
	held := answer{body: strings.Replace(freeReservation, `"device":null`, `"device":{"href":"/metal/v1/devices/`+device1+`"}`, 1)}
	for name, test := range map[string]struct {
		reservation, device answer
		fails               fleet.Kind // 0: it goes on
	}{
		"moved to another project":          {answer{status: 404, body: errorsBody("Not found")}, refused, 0},
		"it cannot be seen":                 {refused, refused, 0},
		"its device cannot be seen":         {held, refused, 0},
		"its device is on its way":          {held, answer{status: 404, body: errorsBody("Not found")}, 0},
		"a proxy stands in between":         {answer{status: 407, body: "<html>", header: map[string]string{"Content-Type": "text/html"}}, refused, fleet.KindInvalid},
		"nothing that can be read is there": {answer{body: "7"}, refused, fleet.KindTemporary},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, api := newScripted(t)
			api.on(getReservation, test.reservation)
			api.on(getDevice, test.device)
			api.on(listDevices, rows("devices", 1, 1, 1, deviceJSON(map[string]any{"tags": []string{string(request.Token)}})))
			entry, err := p.FindByToken(t.Context(), reservation1, request.Token)
			if test.fails == 0 && (err != nil || entry.ID != device1) || test.fails != 0 && fleet.KindOf(err) != test.fails {
				t.Errorf("%+v, %v (%s)", entry, err, fleet.KindOf(err))
			}
			if test.fails != 0 {
				return
			}
			api.on(listDevices, rows("devices", 1, 1, 0))
			if _, err := p.FindByToken(t.Context(), reservation1, request.Token); fleet.KindOf(err) != fleet.KindNotFound {
				t.Errorf("in no list: %v", err)
			}
		})
	}
}

// returning is an API that refuses to show the device. It lists the device while that is there, and
// takes so long for a list.
type returning struct {
	mu    sync.Mutex
	there bool
	takes time.Duration
	lists int
}

// is sets whether the device is there, and how long a list takes.
func (r *returning) is(there bool, takes time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.there, r.takes = there, takes
}

func (r *returning) list() (body string, takes time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lists++; r.there {
		return rows("devices", 1, 1, 1, deviceJSON(nil)).body, r.takes
	}
	return rows("devices", 1, 1, 0).body, r.takes
}

func (r *returning) listed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lists
}

func (r *returning) RoundTrip(request *http.Request) (*http.Response, error) {
	status, body := http.StatusForbidden, errorsBody("You are not authorized to view this device")
	if strings.HasSuffix(request.URL.Path, "/projects/"+projectID+"/devices") {
		var takes time.Duration
		status = http.StatusOK
		body, takes = r.list()
		time.Sleep(takes)
	}
	return &http.Response{
		StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: request,
		Header: http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"request"}},
	}, nil
}

// TestNoListIsOlderThanTheQuestion: neither one that lacks a device which has come back, nor one
// that has a device which is gone by now. A list that takes long answers who goes on asking.
func TestNoListIsOlderThanTheQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := new(returning)
		p, err := New(testConfig(t, "http://api.localhost/metal/v1"), provider.Options{HTTP: api, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		const given = fleet.KindUnknown // no error
		asked := time.Now()
		want := func(got, release fleet.Kind, lists int) {
			t.Helper()
			ctx := provider.WithAskedFor(t.Context(), time.Since(asked))
			if _, err := p.Get(ctx, device1); fleet.KindOf(err) != got {
				t.Errorf("it is asked for: %v (%s), want %s", err, fleet.KindOf(err), got)
			}
			if err := p.Release(ctx, device1); (err == nil) != (release == given) || err != nil && fleet.KindOf(err) != release {
				t.Errorf("it is given back: %v (%s), want %s", err, fleet.KindOf(err), release)
			}
			if got := api.listed(); got != lists {
				t.Errorf("%d lists were read, want %d", got, lists)
			}
		}
		want(fleet.KindNotFound, given, 1)
		time.Sleep(time.Hour)
		want(fleet.KindNotFound, given, 1) // the question is that of an hour ago

		api.is(true, 0) // it has come back, and can be seen as little as before
		asked = time.Now()
		want(fleet.KindForbidden, fleet.KindForbidden, 2)
		time.Sleep(time.Hour)

		api.is(false, 3*projectListWait)
		asked = time.Now()
		want(fleet.KindForbidden, fleet.KindTemporary, 3)
		time.Sleep(time.Hour)
		want(fleet.KindNotFound, given, 3)

		// A list that is under way was begun before a question that is asked anew.
		api.is(false, 10*projectListWait)
		asked = time.Now()
		want(fleet.KindForbidden, fleet.KindTemporary, 4)
		api.is(true, 10*projectListWait)
		asked = time.Now()
		want(fleet.KindForbidden, fleet.KindTemporary, 4)
		time.Sleep(10 * projectListWait)
		want(fleet.KindForbidden, fleet.KindTemporary, 4) // it has just ended: no other yet
		time.Sleep(projectListAge)
		want(fleet.KindForbidden, fleet.KindTemporary, 5)
		time.Sleep(10 * projectListWait)
		want(fleet.KindForbidden, fleet.KindForbidden, 5)
	})
}
