package equinix

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ironherd/ironherd/internal/provider"
)

// shifting is a list of devices that changes after each page that is read of it.
type shifting struct {
	ids    []string
	change func(*shifting)
	sizes  []string
}

func deviceNumber(n int) string { return device1[:32] + fmt.Sprintf("%04d", n) }

func (s *shifting) answer(w http.ResponseWriter, r *http.Request) {
	const size = 10
	s.sizes = append(s.sizes, r.URL.Query().Get("per_page"))
	number, _ := strconv.Atoi(r.URL.Query().Get("page"))
	last := max(1, (len(s.ids)+size-1)/size)
	var devices []string
	for _, id := range s.ids[min((number-1)*size, len(s.ids)):min(number*size, len(s.ids))] {
		devices = append(devices, deviceJSON(map[string]any{"id": id, "hardware_reservation": nil}))
	}
	_, _ = io.WriteString(w, rows("devices", number, last, len(s.ids), devices...).body)
	s.change(s)
}

// machines lists them, and returns which of those that are there in the end the list lacks.
func (s *shifting) machines(t *testing.T) (entries []provider.Entry, lacks []string, err error) {
	t.Helper()
	p, api := newScripted(t)
	api.on(listDevices, answer{do: s.answer})
	entries, err = p.ListMachines(t.Context())
	for _, id := range s.ids {
		if !slices.ContainsFunc(entries, func(e provider.Entry) bool { return string(e.ID) == id }) {
			lacks = append(lacks, id)
		}
	}
	return entries, lacks, err
}

func newShifting(devices int) *shifting {
	s := &shifting{change: func(*shifting) {}}
	for n := range devices {
		s.ids = append(s.ids, deviceNumber(n))
	}
	return s
}

// TestAListIsReadDuringAMassRelease: while devices go, one after each page that is read, every
// device that stays is listed, and none is twice.
func TestAListIsReadDuringAMassRelease(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 0))
		s := newShifting(55)
		s.change = func(s *shifting) {
			if len(s.ids) > 0 {
				i := random.IntN(len(s.ids))
				s.ids = slices.Delete(s.ids, i, i+1)
			}
		}
		entries, lacks, err := s.machines(t)
		if err != nil || len(lacks) > 0 {
			t.Errorf("seed %d: %d devices, it lacks %v, %v", seed, len(entries), lacks, err)
		}
		for i := 1; i < len(entries); i++ {
			if entries[i].ID == entries[i-1].ID {
				t.Errorf("seed %d: %s is listed twice", seed, entries[i].ID)
			}
		}
	}
}

// TestWhatComesDuringAMassRelease hides no other device that one of two readings has.
func TestWhatComesDuringAMassRelease(t *testing.T) {
	t.Parallel()
	s := newShifting(35)
	pages := 0
	s.change = func(s *shifting) {
		switch pages++; pages {
		case 1: // to be seen to shrink; nothing is passed over, as it is behind all that was read
			s.ids = slices.Delete(s.ids, 30, 31)
		case 5: // read from the end: one comes before the page that is next, and two go there
			s.ids = slices.Insert(s.ids, 5, device1[:31]+"10004")
			s.ids = slices.Delete(s.ids, 32, 34)
		}
	}
	entries, lacks, err := s.machines(t)
	// What came meanwhile may be lacking.
	lacks = slices.DeleteFunc(lacks, func(id string) bool { return strings.HasSuffix(id, "10004") })
	if err != nil || len(lacks) > 0 {
		t.Errorf("%d devices, it lacks %v, %v", len(entries), lacks, err)
	}
}

// TestWhatCountsAsShrinking: what is read from the last page on counts only while nothing shows
// that rows came.
func TestWhatCountsAsShrinking(t *testing.T) {
	t.Parallel()
	pageOf := func(last, total int, ids ...string) page {
		p := page{Meta: &struct {
			Total *int `json:"total"`
			Last  int  `json:"last_page"`
		}{&total, last}}
		for _, id := range ids {
			p.Devices = append(p.Devices, jsontext.Value(`{"id":"`+id+`"}`))
		}
		return p
	}
	for name, test := range map[string]struct {
		pages []page // from the second, which was the last one
		want  bool
	}{
		"one went":                      {[]page{pageOf(2, 4, "c", "d"), pageOf(2, 3, "a", "b")}, true},
		"the last page went":            {[]page{pageOf(1, 2), pageOf(1, 1, "a")}, true},
		"one came":                      {[]page{pageOf(2, 4, "c", "d"), pageOf(2, 5, "a", "b", "e")}, false},
		"there are pages behind":        {[]page{pageOf(3, 6, "c", "d"), pageOf(2, 4, "a", "b")}, false},
		"it lacks rows":                 {[]page{pageOf(2, 4, "c"), pageOf(2, 3, "a")}, false},
		"a row has no name":             {[]page{pageOf(2, 4, "c", ""), pageOf(2, 3, "a", "b")}, false},
		"nothing went, and it is whole": {[]page{pageOf(2, 4, "c", "d"), pageOf(2, 4, "a", "b")}, false},
	} {
		read := func(number int) (page, error) { return test.pages[2-number], nil }
		r, err := listOnce("list", 2, read, func(p page) []jsontext.Value { return p.Devices }, new(Provider).parseDevice)
		if err != nil || r.shrank() != test.want {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// TestAListIsAskedForInLargePages: with the defaults, most projects have one.
func TestAListIsAskedForInLargePages(t *testing.T) {
	t.Parallel()
	s := newShifting(5)
	if entries, lacks, err := s.machines(t); err != nil || len(lacks) > 0 || len(entries) != 5 || !slices.Equal(s.sizes, []string{"500"}) {
		t.Errorf("%d devices, it lacks %v, %v; pages of %v", len(entries), lacks, err, s.sizes)
	}
}
