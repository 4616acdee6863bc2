package webui

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/webui/live"
)

const (
	pageSize     = 100
	maximumToken = 1024
)

// machinesView is a page of the machine list.
type machinesView struct {
	provider string
	location string
	// labels are the wanted ones, name=value or a name alone, one a line; empty: all.
	labels string
	// states are the wanted ones in their order, joined by commas; empty: all.
	states string
	token  string
}

// parseMachines reads a query: provider, location, label and state (any number of times) and page.
func parseMachines(q url.Values) (view, error) {
	v := machinesView{provider: q.Get("provider"), location: q.Get("location"), token: q.Get("page")}
	if max(len(v.provider), len(v.location)) > maximumReference || len(v.token) > maximumToken || len(q["label"]) > fleet.MaxLabels {
		return nil, fmt.Errorf("the address of this page is too long")
	}
	for _, label := range q["label"] {
		if _, err := fleet.ParseLabelSelector(label); err != nil {
			return nil, err
		}
	}
	v.labels = lines(q["label"])
	for _, name := range q["state"] {
		if name != "" && !isState(name) {
			return nil, fmt.Errorf("no state is named %q: use %s", cut(name, 0, 40), strings.Join(stateNames(), ", "))
		}
	}
	var wanted []string
	for _, s := range states {
		if slices.Contains(q["state"], s.name) {
			wanted = append(wanted, s.name)
		}
	}
	v.states = strings.Join(wanted, ",")
	return v, nil
}

// lines joins words, each once and in order, so that one choice has one address.
func lines(words []string) string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(words))), "\n")
}

func stateNames() []string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = s.name
	}
	return names
}

func (v machinesView) Key() string { return "machines?" + v.query().Encode() }
func (machinesView) Name() string  { return "Machines" }
func (machinesView) tab() string   { return "machines" }

func (machinesView) unknown() problem {
	return problem{Title: "There is no such part of the fleet", Text: "No provider of this name is configured, or the page is from another time."}
}

func (v machinesView) wanted() []string {
	if v.states == "" {
		return nil
	}
	return strings.Split(v.states, ",")
}

func (v machinesView) locations() []string {
	if v.location == "" {
		return nil
	}
	return []string{v.location}
}

// readsAll reports whether the machines are looked for among all: there is no index of locations
// and labels.
func (v machinesView) readsAll() bool { return v.location != "" || v.labels != "" }

func (v machinesView) wantedLabels() []string {
	if v.labels == "" {
		return nil
	}
	return strings.Split(v.labels, "\n")
}

func (v machinesView) query() url.Values {
	q := url.Values{}
	for key, value := range map[string]string{"provider": v.provider, "location": v.location, "page": v.token} {
		if value != "" {
			q.Set(key, value)
		}
	}
	if labels := v.wantedLabels(); len(labels) > 0 {
		q["label"] = labels
	}
	if states := v.wanted(); len(states) > 0 {
		q["state"] = states
	}
	return q
}

func (v machinesView) url() string {
	if q := v.query().Encode(); q != "" {
		return "/machines?" + q
	}
	return "/machines"
}

// withToggled returns the first page of the view with the state added or taken away.
func (v machinesView) withToggled(name string) machinesView {
	var wanted []string
	for _, s := range states {
		if slices.Contains(v.wanted(), s.name) != (s.name == name) {
			wanted = append(wanted, s.name)
		}
	}
	v.states, v.token = strings.Join(wanted, ","), ""
	return v
}

// withProvider returns the first page of the view of another provider; empty: of all. A location
// is one of its provider.
func (v machinesView) withProvider(provider string) machinesView {
	v.provider, v.location, v.token = provider, "", ""
	return v
}

// withStates returns the first page of the view with these states alone; empty: with all.
func (v machinesView) withStates(names string) machinesView {
	v.states, v.token = names, ""
	return v
}

// withLocation returns the first page of the view of another location; empty: of all.
func (v machinesView) withLocation(location string) machinesView {
	v.location, v.token = location, ""
	return v
}

// withoutLabel returns the first page of the view of machines that need not have the label.
func (v machinesView) withoutLabel(label string) machinesView {
	v.labels = lines(slices.DeleteFunc(v.wantedLabels(), func(l string) bool { return l == label }))
	v.token = ""
	return v
}

// withToken returns another page of the view.
func (v machinesView) withToken(token string) machinesView {
	v.token = token
	return v
}

// machineList is what the view shows.
type machineList struct {
	view      machinesView
	machines  []*fleetv1.Machine
	next      string
	shares    []share
	total     int64
	providers []*fleetv1.Provider
	rows      []*live.Fragment
}

func (v machinesView) load(ctx context.Context, s *source) (*live.Content, error) {
	l, cost := machineList{view: v}, time.Duration(0)
	err := live.Parallel(ctx,
		func(ctx context.Context) error {
			begin := time.Now()
			response, err := s.client.ListMachines(ctx, &fleetv1.ListMachinesRequest{
				Provider: v.provider, States: v.wanted(), Locations: v.locations(), Labels: v.wantedLabels(),
				PageSize: pageSize, PageToken: v.token,
			})
			if v.readsAll() {
				// With the wait for its turn: where many such views share one, each is loaded the more
				// rarely, and they do not fail behind each other all the time.
				cost = time.Since(begin)
			}
			l.machines, l.next = response.GetMachines(), response.GetNextPageToken()
			return err
		},
		func(ctx context.Context) error {
			summary, err := s.summary.Value(ctx)
			l.shares, l.total = shares(summary.GetStates()), summary.GetMachines()
			return err
		},
		func(ctx context.Context) (err error) {
			l.providers, err = s.providers.Value(ctx)
			return err
		},
	)
	if err != nil {
		return &live.Content{Cost: cost}, err
	}
	l.addRows()
	table := live.Section("machines", "card", machinesBody(l))
	table.Parts = l.rows
	return &live.Content{Title: v.title(), Cost: cost, Fragments: []*live.Fragment{live.Section("filter", "filter", filterBody(l)), table}}, nil
}

func (l *machineList) addRows() {
	ids := make([]string, len(l.machines))
	for i, m := range l.machines {
		ids[i] = m.GetId()
	}
	length, common := distinctLength(ids)
	for _, m := range l.machines {
		row := &live.Fragment{ID: "m-" + m.GetId(), Tag: "tr", Body: machineRow(m, length, common)}
		l.rows = append(l.rows, row)
	}
}

func (v machinesView) title() string {
	return joinNonEmpty(" ", strings.ReplaceAll(v.states, ",", ", "), "machines", v.where())
}

func (v machinesView) where() string {
	var in, at, with string
	if v.provider != "" {
		at = "at " + v.provider
	}
	if v.location != "" {
		in = "in " + v.location
	}
	if v.labels != "" {
		with = "with " + strings.Join(v.wantedLabels(), ", ")
	}
	return joinNonEmpty(" ", at, in, with)
}

// heading returns the title with a capital letter.
func (l machineList) heading() string {
	title := l.view.title()
	return strings.ToUpper(title[:1]) + title[1:]
}

// matching returns how many machines match the filter; negative where the control plane does not
// count them.
func (l machineList) matching() int64 {
	var n int64
	switch wanted := l.view.wanted(); {
	case l.view.location != "" || l.view.labels != "":
	case l.view.provider == "" && len(wanted) == 0:
		return l.total
	case l.view.provider == "":
		for _, s := range l.shares {
			if slices.Contains(wanted, s.name) {
				n += s.machines
			}
		}
		return n
	case len(wanted) == 0:
		for _, p := range l.providers {
			if p.GetName() == l.view.provider {
				return p.GetMachines()
			}
		}
	}
	return -1
}

// countedIn returns how many machines are in a state; negative where the list is narrowed to some
// of them, because the control plane counts those of the whole fleet.
func (l machineList) countedIn(s share) int64 {
	if l.view.where() != "" {
		return -1
	}
	return s.machines
}

// shown returns how many machines the page has, of how many where that is known.
func (l machineList) shown() string {
	n := int64(len(l.machines))
	switch all := l.matching(); {
	case all > n:
		return fmt.Sprintf("%s of %s", grouped(n), grouped(all))
	case all < 0 && (l.next != "" || l.view.token != ""):
		return grouped(n) + " on this page"
	}
	return grouped(n)
}
