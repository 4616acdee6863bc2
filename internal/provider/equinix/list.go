package equinix

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/packethost/packngo"

	"github.com/ironherd/ironherd/internal/fleet"
)

// passes is how often a list is read before it is given up as never being whole.
const passes = 4

// maximumPages bounds a list whose end the API moves on for ever.
const maximumPages = 1000

// page is one page of any list.
type page struct {
	Devices      []json.RawMessage `json:"devices"`
	Reservations []json.RawMessage `json:"hardware_reservations"`
	Meta         *struct {
		Total *int `json:"total"`
		Last  int  `json:"last_page"`
	} `json:"meta"`
}

// listDevices returns a row for each device of the project that passes the filter.
func (p *Provider) listDevices(ctx context.Context, filter map[string]string) ([]deviceRow, error) {
	raw, err := p.listWhole(ctx, "devices", packngo.ListOptions{
		Includes: []string{"hardware_reservation"}, QueryParams: filter,
	}, func(p page) []json.RawMessage { return p.Devices })
	if err != nil {
		return nil, err
	}
	rows := make([]deviceRow, len(raw))
	for i := range raw {
		rows[i] = parseDevice(raw[i])
	}
	return rows, nil
}

// listReservations returns a row for each reservation of the project.
func (p *Provider) listReservations(ctx context.Context) ([]reservationRow, error) {
	raw, err := p.listWhole(ctx, "hardware-reservations", packngo.ListOptions{},
		func(p page) []json.RawMessage { return p.Reservations })
	if err != nil {
		return nil, err
	}
	rows := make([]reservationRow, len(raw))
	for i := range raw {
		rows[i] = parseReservation(raw[i])
	}
	return rows, nil
}

// listWhole reads a list until one reading of it is whole. Rows of different readings are never mixed: what one has and another lacks
// may have gone, or come.
func (p *Provider) listWhole(
	ctx context.Context, collection string, options packngo.ListOptions, rowsOf func(page) []json.RawMessage,
) ([]json.RawMessage, error) {
	what := "list " + collection + " of project " + p.config.Project
	options.PerPage, options.SortBy, options.SortDirection = p.config.PageSize, "id", packngo.SortDirectionAsc
	read := func(number int) (page, error) {
		options.Page = number
		return p.readPage(ctx, what, options.WithQuery("projects/"+p.config.Project+"/"+collection))
	}
	for range passes {
		rows, whole, err := listOnce(what, read, rowsOf)
		if err != nil {
			return nil, err
		}
		if whole {
			return rows, nil
		}
		p.logger.Debug("list shifted while it was read, reading it again", "collection", collection)
	}
	return nil, fleet.Errorf(fleet.KindTemporary, "%s: it shifted each of the %d times that it was read", what, passes)
}

// listOnce reads all pages once. The list is whole when every page says the same total, and so many distinct rows were seen.
func listOnce(
	what string, read func(number int) (page, error), rowsOf func(page) []json.RawMessage,
) (rows []json.RawMessage, whole bool, err error) {
	seen := make(map[string]bool)
	total := -1
	for number := 1; number <= maximumPages; number++ {
		current, err := read(number)
		if err != nil {
			return nil, false, err
		}
		if current.Meta == nil || current.Meta.Total == nil || *current.Meta.Total < 0 {
			return nil, false, fleet.Errorf(fleet.KindInvalid, "%s: page %s does not say how many there are, so nothing is known to be missing",
				what, strconv.Itoa(number))
		}
		if total >= 0 && *current.Meta.Total != total {
			return nil, false, nil
		}
		total = *current.Meta.Total
		for _, row := range rowsOf(current) {
			// A row without an ID has nothing to be told apart by; it counts as it stands.
			if id := rowID(row); id == "" || !seen[id] {
				seen[id] = true
				rows = append(rows, row)
			}
		}
		if number >= current.Meta.Last {
			return rows, len(rows) == total, nil
		}
	}
	return nil, false, fleet.Errorf(fleet.KindInvalid, "%s: it has more than %d pages", what, maximumPages)
}

func (p *Provider) readPage(ctx context.Context, what, path string) (page, error) {
	client, err := p.client(ctx, what)
	if err != nil {
		return page{}, err
	}
	var result page
	response, err := client.DoRequest(http.MethodGet, path, nil, &result)
	if err := classify(what, response, err); err != nil {
		return page{}, err
	}
	return result, nil
}

func rowID(row json.RawMessage) string {
	var named struct {
		ID string `json:"id"`
	}
	_ = json.Unmarshal(row, &named) // a row that is no object has no ID
	return named.ID
}
