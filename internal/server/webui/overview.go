package webui

import (
	"cmp"
	"context"
	"slices"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/webui/live"
)

// overviewView is the fleet at a glance.
type overviewView struct{}

func (overviewView) Key() string  { return "overview" }
func (overviewView) Name() string { return "Fleet" }
func (overviewView) tab() string  { return "overview" }

func (overviewView) unknown() problem {
	return problem{Title: "The control plane does not know this request", Text: "It may be older than this page."}
}

// discrepanciesShown is how many discrepancies the page shows; the command line lists all.
const discrepanciesShown = 100

// overview is what the view shows.
type overview struct {
	summary       *fleetv1.GetSummaryResponse
	providers     []*fleetv1.Provider
	sessions      live.Answer[[]*fleetv1.Session]
	discrepancies []*fleetv1.Discrepancy
	uncompared    []*fleetv1.Uncompared
	shares        []share
}

func (overviewView) load(ctx context.Context, s *source) (*live.Content, error) {
	var o overview
	err := live.Parallel(ctx,
		func(ctx context.Context) (err error) {
			o.summary, err = s.summary.Value(ctx)
			return err
		},
		func(ctx context.Context) (err error) {
			o.providers, err = s.providers.Value(ctx)
			return err
		},
		func(ctx context.Context) (err error) {
			o.sessions, err = s.sessions.Answer(ctx) // they fail for themselves: see Costly
			return err
		},
		func(ctx context.Context) error {
			response, err := s.client.ListDiscrepancies(s.ours(ctx), &fleetv1.ListDiscrepanciesRequest{Limit: discrepanciesShown})
			o.discrepancies, o.uncompared = response.GetDiscrepancies(), response.GetUncompared()
			return err
		},
	)
	if err != nil {
		return nil, err
	}
	o.shares = shares(o.summary.GetStates())
	return &live.Content{Title: o.title(), Fragments: []*live.Fragment{
		live.Section("fleet", "card fleet", fleetBody(o)),
		live.Section("discrepancies", "discrepancies", discrepanciesBody(o.discrepancies, o.disagreements(), o.uncompared)),
		live.Section("processes", "card half", processesBody(o.summary.GetProcesses())),
		live.Section("phases", "card half", phasesBody(phaseBars(o.summary.GetPhases()))),
		live.Section("providers", "card", providersBody(o.providers)),
		live.Section("sessions", "card", sessionsBody(o.sessions.Value, o.sessions.Err)),
	}}, nil
}

// troubles are the states that somebody should look at, where there are machines in them.
func (o overview) troubles() []share {
	var all []share
	for _, s := range o.shares {
		if s.trouble() && s.machines > 0 {
			all = append(all, s)
		}
	}
	return all
}

func (o overview) moving() int64 {
	var n int64
	for _, s := range o.shares {
		if s.moving() {
			n += s.machines
		}
	}
	return n
}

// waiting is how much waits in backoff, of all processes together. Each is counted for itself.
func (o overview) waiting() string {
	var n int64
	more := ""
	for _, p := range o.summary.GetProcesses() {
		n += p.GetBackingOff()
		more = cmp.Or(more, plus(p.GetBackingOff()))
	}
	return grouped(n) + more
}

func (o overview) installed() int64 {
	for _, s := range o.shares {
		if s.name == "installed" {
			return s.machines
		}
	}
	return 0
}

// concerns is what the verdict names: troubles and discrepancies as the page shows them, and what
// else the control plane says.
func (o overview) concerns() []concern {
	var all []concern
	for _, c := range o.summary.GetConcerns() {
		link := ""
		switch fleet.ConcernKind(c.GetKind()) {
		case fleet.ConcernState, fleet.ConcernDiscrepancy:
			continue
		case fleet.ConcernLate:
			link = stateURL(c.GetSubject())
		case fleet.ConcernHostKey, fleet.ConcernRefusal, fleet.ConcernUnasked:
			link = machineURL(c.GetSubject())
		case fleet.ConcernProvider:
			link = "#providers"
		case fleet.ConcernRole:
			link = "#sessions"
		case fleet.ConcernListener, fleet.ConcernDatabase, fleet.ConcernRestored, fleet.ConcernFinding, fleet.ConcernDuty, fleet.ConcernCertificate, fleet.ConcernToken:
			// Nothing of the page says more.
		default:
			link = "#processes"
		}
		all = append(all, concern{c.GetText(), link})
	}
	return all
}

// concern is one part of the verdict, and where to look; an empty link: nowhere else.
type concern struct{ text, link string }

// disagreements is how many discrepancies there are, shown or not. The summary may be a moment
// older than the list.
func (o overview) disagreements() int64 {
	if len(o.discrepancies) < discrepanciesShown {
		return int64(len(o.discrepancies))
	}
	return max(int64(len(o.discrepancies)), o.summary.GetDiscrepancies())
}

func (o overview) attention() int64 {
	n := o.disagreements()
	for _, s := range o.troubles() {
		n += s.machines
	}
	for _, c := range o.summary.GetConcerns() {
		if kind := fleet.ConcernKind(c.GetKind()); kind != fleet.ConcernState && kind != fleet.ConcernDiscrepancy {
			n += c.GetCount()
		}
	}
	return n
}

// bounded says whether a part of attention was counted no further than the control plane counts.
func (o overview) bounded() bool {
	return o.disagreements() == fleet.CountedAtMost || slices.ContainsFunc(o.summary.GetConcerns(), func(c *fleetv1.Concern) bool {
		return fleet.ConcernKind(c.GetKind()) != fleet.ConcernState && c.GetCount() == fleet.CountedAtMost
	})
}

func (o overview) title() string {
	if o.summary.GetRecoveryHold() != nil {
		return "recovery is stopped"
	}
	switch n := o.attention(); {
	case n > 0 && o.bounded():
		return grouped(n) + "+ to look at"
	case n > 0:
		return grouped(n) + " to look at"
	}
	return countOf(o.summary.GetMachines(), "machine", "machines")
}
