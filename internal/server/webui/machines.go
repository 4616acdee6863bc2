package webui

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/server/webui/live"
)

const (
	pageSize     = 100
	maximumToken = 1024
)

// machinesView is a page of the machine list.
type machinesView struct {
	provider string
	// states are the wanted ones in their order, joined by commas; empty: all.
	states string
	token  string
}

// parseMachines reads a query: provider, state (any number of times) and page.
func parseMachines(q url.Values) (view, error) {
	v := machinesView{provider: q.Get("provider"), token: q.Get("page")}
	if len(v.provider) > maximumReference || len(v.token) > maximumToken {
		return nil, fmt.Errorf("the address of this page is too long")
	}
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

func stateNames() []string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = s.name
	}
	return names
}

func (v machinesView) key() string { return "machines?" + v.query().Encode() }
func (machinesView) name() string  { return "Machines" }
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

func (v machinesView) query() url.Values {
	q := url.Values{}
	if v.provider != "" {
		q.Set("provider", v.provider)
	}
	if v.token != "" {
		q.Set("page", v.token)
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

// withProvider returns the first page of the view of another provider; empty: of all.
func (v machinesView) withProvider(provider string) machinesView {
	v.provider, v.token = provider, ""
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
	l := machineList{view: v}
	err := live.Parallel(ctx,
		func(ctx context.Context) error {
			response, err := s.client.ListMachines(ctx, &fleetv1.ListMachinesRequest{
				Provider: v.provider, States: v.wanted(), PageSize: pageSize, PageToken: v.token,
			})
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
		return nil, err
	}
	l.addRows()
	table := live.Section("machines", "card", machinesBody(l))
	table.Parts = l.rows
	return &live.Content{Title: v.title(), Fragments: []*live.Fragment{live.Section("filter", "filter", filterBody(l)), table}}, nil
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
	if v.provider == "" {
		return ""
	}
	return "at " + v.provider
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

// countedIn returns how many machines are in a state; negative with a provider, because the control
// plane counts those of all.
func (l machineList) countedIn(s share) int64 {
	if l.view.provider != "" {
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
