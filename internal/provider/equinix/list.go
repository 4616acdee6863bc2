package equinix

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"sync"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/packethost/packngo"

	"github.com/ironherd/ironherd/internal/fleet"
)

// maximumReadings bounds how often the provider reads a list that is never whole.
const maximumReadings = 4

// maximumPages bounds a list whose last page the API keeps moving on.
const maximumPages = 1000

// A list with more rows, or with more bytes that would be kept of it, is not believed: whoever
// answers as the API must not take all the memory of this process, which serves other providers. A
// few readings may be kept at a time.
const (
	maximumRows = 100_000
	maximumKept = 128 << 20
)

// page is one page of any list.
type page struct {
	Devices      pageRows `json:"devices"`
	Reservations pageRows `json:"hardware_reservations"`
	Meta         *struct {
		Total *int `json:"total"`
		Last  int  `json:"last_page"`
	} `json:"meta"`
}

// pageRows are the rows of a page as they stand, and of more than maximumRows one more than that.
type pageRows []jsontext.Value

// UnmarshalJSONFrom keeps no more rows than tell that there are too many.
func (r *pageRows) UnmarshalJSONFrom(decoder *jsontext.Decoder) error {
	if decoder.PeekKind() != '[' {
		return jsonv2.UnmarshalDecode(decoder, (*[]jsontext.Value)(r))
	}
	if _, err := decoder.ReadToken(); err != nil {
		return err
	}
	for decoder.PeekKind() != ']' {
		row, err := decoder.ReadValue()
		if err != nil {
			return err
		}
		if len(*r) <= maximumRows {
			*r = append(*r, row.Clone())
		}
	}
	_, err := decoder.ReadToken()
	return err
}

// listDevices returns a row for each device of the project that passes the filter, and from how
// many pages. A loose list may be the union of readings (listWhole).
func (p *Provider) listDevices(ctx context.Context, filter map[string]string, loose bool) (rows []deviceRow, pages int, err error) {
	return listWhole(ctx, p, "devices", packngo.ListOptions{
		// Nothing here reads them, and they are most of the bytes.
		Excludes: []string{"plan", "operating_system", "provisioning_events", "network_ports", "created_by"}, QueryParams: filter,
	}, loose, func(p page) []jsontext.Value { return p.Devices }, p.parseDevice)
}

// listReservations returns a row for each reservation of the project.
func (p *Provider) listReservations(ctx context.Context) ([]reservationRow, error) {
	rows, _, err := listWhole(ctx, p, "hardware-reservations", packngo.ListOptions{
		// Where the plan can be had: half of the bytes.
		Excludes: []string{"plan.available_in", "plan.available_in_metros"},
	}, false, func(p page) []jsontext.Value { return p.Reservations }, parseReservation)
	return rows, err
}

// listWhole reads a list until one reading of it has every row, and returns how many pages that one
// has read. The next reading of a list that shrinks, as it does in a mass release, goes from the
// last page to the first.
//
// A list to which rows come and from which rows go is never whole. Where it is loose, and each
// reading saw it change, it is what any of them has, in the newest form of each row. A row that has
// gone meanwhile counts as there once more. One that was there throughout may be lacking where each
// reading passed over it: whoever reads a loose list asks for what it lacks.
func listWhole[T row](
	ctx context.Context, p *Provider, collection string, options packngo.ListOptions, loose bool, rowsOf func(page) []jsontext.Value,
	parse func(jsontext.Value) T,
) (rows []T, pages int, err error) {
	what := "list " + collection + " of project " + p.config.Project
	options.PerPage, options.SortBy, options.SortDirection = p.config.PageSize, "id", packngo.SortDirectionAsc
	read := func(number int) (page, error) {
		options.Page = number
		return p.readPage(ctx, what, options.WithQuery("projects/"+p.config.Project+"/"+collection))
	}
	var before, all reading[T]
	for range maximumReadings {
		from := 0
		if before.fell {
			from = before.pages
		}
		now, err := listOnce(what, from, read, rowsOf, parse)
		switch {
		case err != nil:
			return nil, 0, err
		case now.whole(), now.outgrew(before):
			return now.rows, now.read, nil
		case now.shrank():
			return now.and(before), now.read, nil
		}
		before = now
		if loose = loose && (now.fell || now.rose) && !now.ids[""]; loose {
			all.rows = now.and(all)
		}
		p.logger.DebugContext(ctx, "list shifted while it was read, reading it again", slog.String("collection", collection))
	}
	if loose && len(all.rows) <= maximumRows {
		return all.rows, before.read, nil
	}
	return nil, 0, fleet.Errorf(fleet.KindTemporary, "%s: it shifted each of the %d times that it was read", what, maximumReadings)
}

// row is one row of a list, understood or not. Its key is its ID, empty when it has none. Its size
// is how many bytes of the provider's are kept in it.
type row interface {
	key() string
	size() int
}

// reading is what one reading of all pages found.
type reading[T row] struct {
	rows []T
	ids  map[string]bool
	kept int // size of the rows
	// first and last are the totals that the first and the last page gave that were read. fell: a page
	// gave a lower one than the page before; rose: one gave a higher one.
	first, last int
	fell, rose  bool
	// pages is how many there are, and read how many were read. back: they were read from the last one
	// to the first.
	pages, read int
	back        bool
}

// whole reports whether every page gave the same total, and the reading has so many distinct rows.
func (r reading[T]) whole() bool { return !r.fell && !r.rose && len(r.rows) == r.last }

// shrank reports whether the list did nothing but shrink while it was read from the last page to
// the first.
//
// Then it lacks only rows that have gone. Rows move up when others go, to pages that such a reading
// has yet to read, so it passes over none.
func (r reading[T]) shrank() bool {
	return r.back && r.fell && !r.rose && len(r.rows) >= r.last && !r.ids[""]
}

// and returns the rows of this reading, and those that only the one before has. Rows that came may
// hide behind more that went, and then a reading may have passed over a row; but not both of them,
// unless a row went where one read and a row came where the other did. A row that has gone
// meanwhile counts as there once more.
func (r reading[T]) and(before reading[T]) []T {
	for _, row := range before.rows {
		if !r.ids[row.key()] {
			r.rows = append(r.rows, row)
		}
	}
	return r.rows
}

// outgrew reports whether the list did nothing but grow during this reading and the one before, and
// this reading has every row of the one before.
//
// Then it lacks only rows that came meanwhile. Pages are sorted by ID, so a reading passes over a
// row only when a row that it has seen is deleted and the rest moves up; and that row would be
// missing now. A list to which machines are being added is never whole in another way.
func (r reading[T]) outgrew(before reading[T]) bool {
	if before.ids == nil || before.back || r.back || before.fell || r.fell || r.first < before.last || r.first == r.last && before.first == before.last ||
		len(before.rows) < before.first || len(r.rows) < r.first || r.ids[""] {
		return false
	}
	for id := range before.ids {
		if !r.ids[id] {
			return false
		}
	}
	return true
}

// listOnce reads all pages once: from the first to the last, or from the page of that number, which
// was the last one, to the first.
func listOnce[T row](
	what string, from int, read func(number int) (page, error), rowsOf func(page) []jsontext.Value, parse func(jsontext.Value) T,
) (reading[T], error) {
	r := reading[T]{ids: map[string]bool{}, first: -1, back: from > 0}
	for number := max(from, 1); number <= maximumPages; {
		current, err := read(number)
		if err != nil {
			return reading[T]{}, err
		}
		if current.Meta == nil || current.Meta.Total == nil || *current.Meta.Total < 0 {
			return reading[T]{}, fleet.Errorf(fleet.KindInvalid, "%s: page %d does not say how many there are, so nothing is known to be missing",
				what, number)
		}
		if !r.take(*current.Meta.Total, rowsOf(current), parse) {
			return reading[T]{}, fleet.Errorf(fleet.KindInvalid, "%s: page %d makes it larger than is believed (%d rows, %d MiB), so it is not read on: see whether api_url is the provider's",
				what, number, maximumRows, maximumKept>>20)
		}
		r.pages, r.read = current.Meta.Last, r.read+1
		switch {
		case r.back && number == from && r.pages > from:
			r.rose = true // there are pages behind the last one
		case r.back && number == 1, !r.back && number >= r.pages:
			return r, nil
		}
		if r.back {
			number--
		} else {
			number++
		}
	}
	return reading[T]{}, fleet.Errorf(fleet.KindInvalid, "%s: it has more than %d pages", what, maximumPages)
}

// take takes in one page, and the total that it gave. It reports false when the list is too large.
func (r *reading[T]) take(total int, page []jsontext.Value, parse func(jsontext.Value) T) bool {
	if total > maximumRows || len(r.rows)+len(page) > maximumRows {
		return false
	}
	if r.first < 0 {
		r.first, r.last = total, total
	}
	r.fell, r.rose = r.fell || total < r.last, r.rose || total > r.last
	r.last = total
	for _, raw := range page {
		// A row without an ID has nothing to be told apart by; it counts as it stands.
		parsed := parse(raw)
		if id := parsed.key(); id == "" || !r.ids[id] {
			if r.kept += parsed.size(); r.kept > maximumKept {
				return false
			}
			r.ids[id] = true
			r.rows = append(r.rows, parsed)
		}
	}
	return true
}

// answers are buffers that packngo copies pages into as they are. What is decoded shares nothing
// with them.
var answers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (p *Provider) readPage(ctx context.Context, what, path string) (page, error) {
	client, err := p.client(ctx, what)
	if err != nil {
		return page{}, err
	}
	answer := answers.Get().(*bytes.Buffer)
	defer answers.Put(answer)
	answer.Reset()
	response, err := client.DoRequest(http.MethodGet, path, nil, answer)
	if err := classify(what, response, err); err != nil {
		return page{}, err
	}
	var result page
	if err := jsonv2.Unmarshal(answer.Bytes(), &result, lenient); err != nil {
		return page{}, unreadable(what, err)
	}
	p.answers()
	return result, nil
}

// lenient has the decoder of lists accept what encoding/json accepts, which decodes all else.
var lenient = jsonv2.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

func rowID(row jsontext.Value) string {
	var named struct {
		ID string `json:"id"`
	}
	_ = jsonv2.Unmarshal(row, &named, lenient) // a row that is no object has no ID
	return named.ID
}
