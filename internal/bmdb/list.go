package bmdb

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Machine returns all that is known of one machine. KindNotFound.
func (db *DB) Machine(ctx context.Context, machine fleet.MachineID) (fleet.Record, error) {
	return read(ctx, db.view, "machine", func(ctx context.Context, t *transaction) (r fleet.Record, err error) {
		m, err := t.load(ctx, machine)
		if err != nil {
			return r, err
		}
		if r = m.facts; r.InstallRequest != nil {
			r.InstallRequest.FirstBootData, err = t.q.GetFirstBootData(ctx, string(machine))
		}
		return r, err
	})
}

// MachineRow is one line of a list of machines.
type MachineRow struct {
	fleet.Machine
	State fleet.State
	// Reason of the state; where somebody is at work on the machine, that.
	Reason             string
	StateSince         time.Time
	Hostname           string
	Address            string
	Location           string
	Labels             []string
	AgentVersion       string
	LastSeenAt         time.Time
	TakeoverGeneration fleet.TakeoverGeneration
	InstallGeneration  fleet.InstallGeneration
}

// MachineFilter selects a page of machines.
type MachineFilter struct {
	// Provider; empty: all.
	Provider fleet.ProviderName `json:"provider,omitempty"`
	// States; empty: all.
	States []fleet.State `json:"states,omitempty"`
	// Locations; empty: all.
	Locations []string `json:"locations,omitempty"`
	// Labels, all of which must fit.
	Labels []fleet.LabelSelector `json:"labels,omitempty"`
	// After is the ID of the last machine of the page before.
	After fleet.MachineID `json:"after,omitempty"`
	// Limit of the page; 0: 100.
	Limit int `json:"limit,omitempty"`
}

// unfit returns why the filter does not fit a machine that is in that state by now; nil: it fits.
// The provider of a machine never changes.
func (f MachineFilter) unfit(r fleet.Record, state fleet.State) error {
	if len(f.States) > 0 && !slices.Contains(f.States, state) {
		return fleet.Errorf(fleet.KindConflict, "machine %s is %s now, not %s", r.Name(), state, anyOf(f.States, "%s"))
	}
	var p fleet.Provided
	if r.Provided != nil {
		p = *r.Provided
	}
	if !f.at(p.Location) {
		return fleet.Errorf(fleet.KindConflict, "machine %s is in the location %q now, not in %s", r.Name(), p.Location, anyOf(f.Locations, "%q"))
	}
	if label, missing := f.missing(p.Labels); missing {
		return fleet.Errorf(fleet.KindConflict, "machine %s does not have the label %s now", r.Name(), label)
	}
	return nil
}

// at reports whether the filter fits machines in a location.
func (f MachineFilter) at(location string) bool {
	return len(f.Locations) == 0 || slices.Contains(f.Locations, location)
}

// missing returns the first label of the filter that labels do not fit; false: they fit all.
func (f MachineFilter) missing(labels []string) (fleet.LabelSelector, bool) {
	for _, label := range f.Labels {
		if !label.Fits(labels) {
			return label, true
		}
	}
	return "", false
}

func anyOf[T ~string](names []T, format string) string {
	return strings.Join(converted(names, func(name T) string { return fmt.Sprintf(format, name) }), " or ")
}

// ListMachines returns one page, in the order of machine IDs, as of one instant. It finds the IDs
// by an index, and then reads by key: what it costs depends on the size of the page and on how many
// (provider, state) are asked for. There is no index of locations and labels: where these are asked
// for, it looks at each machine of those.
func (db *DB) ListMachines(ctx context.Context, f MachineFilter) ([]MachineRow, error) {
	if f.Limit <= 0 {
		f.Limit = 100
	}
	return read(ctx, db.view, "list machines", func(ctx context.Context, t *transaction) (page []MachineRow, err error) {
		ids, err := t.listIDs(ctx, f)
		if err != nil || len(ids) == 0 {
			return nil, err
		}
		rows, err := t.many.ListMachines(ctx, ids)
		page = converted(rows, machineRow)
		slices.SortFunc(page, func(a, b MachineRow) int { return cmp.Compare(a.ID, b.ID) })
		return page, err
	})
}

// listIDs returns the IDs of a page, in order.
func (t *transaction) listIDs(ctx context.Context, f MachineFilter) (ids []string, err error) {
	if f.Provider == "" && len(f.States)+len(f.Locations)+len(f.Labels) == 0 {
		return t.q.ListMachineIDsAfter(ctx, statement.ListMachineIDsAfterParams{After: string(f.After), MaxRows: int64(f.Limit)})
	}
	providers, states := []string{string(f.Provider)}, f.States
	if f.Provider == "" {
		if providers, err = t.q.ListProviderNames(ctx); err != nil {
			return nil, err
		}
	}
	if len(states) == 0 {
		states = fleet.States()
	}
	for _, provider := range providers {
		for _, state := range states {
			found, err := t.listInState(ctx, provider, state, f)
			if err != nil {
				return nil, err
			}
			ids = append(ids, found...)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids) // a state may have been named twice
	return ids[:min(len(ids), f.Limit)], nil
}

// maxAtOnce bounds how many machines one statement reads to find those of a location or label.
const maxAtOnce = 10_000

// listInState returns the first IDs of a page that are in one state of one provider.
func (t *transaction) listInState(ctx context.Context, provider string, state fleet.State, f MachineFilter) (ids []string, err error) {
	after := string(f.After)
	if len(f.Locations)+len(f.Labels) == 0 {
		return t.q.ListMachinesInState(ctx, statement.ListMachinesInStateParams{
			Provider: provider, State: string(state), After: after, MaxRows: int64(f.Limit),
		})
	}
	for atOnce := max(f.Limit, 100); ; atOnce = max(atOnce, min(2*atOnce, maxAtOnce)) {
		rows, err := t.q.ListSelectableInState(ctx, statement.ListSelectableInStateParams{
			Provider: provider, State: string(state), After: after, MaxRows: int64(atOnce),
		})
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			if _, missing := f.missing(splitLines(r.Labels)); !missing && f.at(r.Location) {
				ids = append(ids, r.Machine)
			}
		}
		if len(rows) < atOnce || len(ids) >= f.Limit {
			return ids[:min(len(ids), f.Limit)], nil
		}
		after = rows[len(rows)-1].Machine
	}
}

func machineRow(r statement.MachineLine) MachineRow {
	if r.Process != "" {
		r.Reason = r.Process + " is under way"
	}
	return MachineRow{
		Machine: fleet.Machine{
			ID: fleet.MachineID(r.ID), Provider: fleet.ProviderName(r.Provider), ProviderID: fleet.ProviderID(r.ProviderID),
			CreatedAt: instant(r.CreatedAt),
		},
		State: fleet.State(r.State), Reason: r.Reason, StateSince: instant(r.Since), Hostname: r.Hostname, Address: r.Address,
		Location: r.Location, Labels: splitLines(r.Labels), AgentVersion: r.AgentVersion, LastSeenAt: instant(r.LastAt),
		TakeoverGeneration: fleet.TakeoverGeneration(r.TakeoverGeneration), InstallGeneration: fleet.InstallGeneration(r.InstallGeneration),
	}
}

// minPrefix is how much of a machine's ID must be given; maxNamed how many machines an answer of
// "ambiguous" names. An ID begins with the time that the machine was made: four characters are
// seven weeks, in which a name that was mistyped may find the only machine; eight are a minute.
const (
	minPrefix = 8
	maxNamed  = 5
)

// Resolve finds the machine that a person means: by its UUID, else by its host name, else by an
// unambiguous beginning of its UUID of at least eight characters; or by provider/provider-ID.
// KindNotFound; KindConflict when several fit, naming them.
func (db *DB) Resolve(ctx context.Context, ref string) (fleet.MachineID, error) {
	ref = strings.TrimSpace(ref)
	found, err := read(ctx, db.view, "resolve", func(ctx context.Context, t *transaction) ([]string, error) { return t.resolve(ctx, ref) })
	switch {
	case err != nil:
		return "", err
	case len(found) == 0:
		return "", fleet.Errorf(fleet.KindNotFound, "no machine is known as %q", ref)
	case len(found) > maxNamed:
		return "", fleet.Errorf(fleet.KindConflict, "%q fits several machines: %s and more", ref, strings.Join(found[:maxNamed], ", "))
	case len(found) > 1:
		return "", fleet.Errorf(fleet.KindConflict, "%q fits several machines: %s", ref, strings.Join(found, ", "))
	}
	return fleet.MachineID(found[0]), nil
}

func (t *transaction) resolve(ctx context.Context, ref string) ([]string, error) {
	if provider, id, ok := strings.Cut(ref, "/"); ok {
		return t.q.MachineByProviderID(ctx, statement.MachineByProviderIDParams{Provider: provider, ProviderID: id})
	}
	if ref == "" {
		return nil, nil
	}
	lower := strings.ToLower(ref)
	if id, err := fleet.ParseMachineID(ref); err == nil {
		lower = string(id)
	}
	ids, err := t.q.ListMachineIDs(ctx, statement.ListMachineIDsParams{Lowest: lower, MaxRows: maxNamed + 1})
	if err != nil {
		return nil, err
	}
	if slices.Contains(ids, lower) {
		return []string{lower}, nil
	}
	named, err := t.q.ListMachinesByHostname(ctx, statement.ListMachinesByHostnameParams{Hostname: ref, MaxRows: maxNamed + 1})
	if err != nil || len(named) > 0 || len(ref) < minPrefix {
		return named, err
	}
	return slices.DeleteFunc(ids, func(id string) bool { return !strings.HasPrefix(id, lower) }), nil
}

// HistoryRow is one line of a history.
type HistoryRow struct {
	At time.Time
	// StartedAt is when the work started that ended here, and Why it did; zero where the row is about
	// something else.
	StartedAt time.Time
	Why       string
	Actor     string
	Process   fleet.Process
	// Epoch of the work that it belongs to; 0: of none.
	Epoch   fleet.Epoch
	Event   fleet.Event
	Detail  string
	RetryAt time.Time
}

// newest asks for the newest rows of a subject's history.
func newest(subject string, n int) statement.ListHistoryParams {
	return statement.ListHistoryParams{Subject: subject, MaxRead: int64(n), MaxRows: int64(n)}
}

// History returns the newest rows of a machine's history, newest first; the first is the work that
// is under way, if there is some. A machine that is gone still has one.
func (db *DB) History(ctx context.Context, machine fleet.MachineID, limit int) ([]HistoryRow, error) {
	return db.history(ctx, fleet.Subject{Machine: machine}, newest(machineKey(machine), limit))
}

// ProviderHistory returns the same for a provider. withoutFinished leaves out the passes that
// finished, and looks among the newest 100,000 rows.
func (db *DB) ProviderHistory(ctx context.Context, name fleet.ProviderName, limit int, withoutFinished bool) ([]HistoryRow, error) {
	q := newest(providerKey(name), limit)
	if withoutFinished {
		q.Without, q.MaxRead = string(fleet.EventFinished), eventsAmong
	}
	return db.history(ctx, fleet.Subject{Provider: name}, q)
}

// eventsAmong bounds how many rows are read for those that are no passes that finished. Passes of
// two kinds, each once a minute, make as many in five weeks.
const eventsAmong = 100_000

// lanesOf reads the lanes of a subject.
func (t *transaction) lanesOf(ctx context.Context, s fleet.Subject) (lanes []lane, err error) {
	if s.Machine != "" {
		m, err := t.load(ctx, s.Machine)
		if err != nil {
			return nil, err
		}
		return []lane{m.lane}, nil
	}
	p, err := t.loadProvider(ctx, s.Provider)
	if err != nil {
		return nil, err
	}
	for _, l := range p.lanes {
		lanes = append(lanes, l.lane)
	}
	return lanes, nil
}

// running is the work that a lane is held for, as a row of history.
func running(l lane) HistoryRow {
	return HistoryRow{
		At: instant(l.since), StartedAt: instant(l.since), Why: l.why, Actor: l.holder.component + "@" + l.holder.host, Process: l.process,
		Epoch: l.epoch, Event: fleet.EventStarted,
	}
}

func (db *DB) history(ctx context.Context, of fleet.Subject, q statement.ListHistoryParams) ([]HistoryRow, error) {
	return read(ctx, db.view, "history", func(ctx context.Context, t *transaction) (list []HistoryRow, err error) {
		held, err := t.lanesOf(ctx, of)
		if err != nil && fleet.KindOf(err) != fleet.KindNotFound {
			return nil, err
		}
		for _, l := range held {
			if l.session != "" {
				list = append(list, running(l))
			}
		}
		slices.SortFunc(list, func(a, b HistoryRow) int { return b.At.Compare(a.At) })
		q.MaxRows = max(q.MaxRows-int64(len(list)), 0)
		rows, err := t.q.ListHistory(ctx, q)
		for _, r := range rows {
			list = append(list, HistoryRow{
				At: instant(r.At), StartedAt: instant(r.StartedAt), Why: r.Why, Actor: r.Actor, Process: fleet.Process(r.Process),
				Epoch: fleet.Epoch(r.Epoch), Event: fleet.Event(r.Event), Detail: r.Detail, RetryAt: instant(r.RetryAt),
			})
		}
		return list, err
	})
}
