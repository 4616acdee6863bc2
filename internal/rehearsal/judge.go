package rehearsal

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// checkDatabase lets the database judge itself (I2 and what else it knows), and looks at sessions.
func (w *world) checkDatabase() error {
	findings, err := w.db.Check(w.ctx)
	if err != nil {
		return fmt.Errorf("check the database: %w", err)
	}
	for _, f := range findings {
		w.watch.violate(f.Invariant, "%s: %s", f.Subject, f.Detail)
	}
	sessions, err := w.db.Sessions(w.ctx, false)
	if err != nil {
		return fmt.Errorf("list the sessions: %w", err)
	}
	late := 3*w.setup.Janitor.Interval + w.longestStop()
	for _, s := range sessions {
		if over := w.now.Sub(s.Deadline); over > late {
			w.watch.violate("rule 4", "the session of %s on %s has not ended %s after its deadline", s.Component, s.Host, over)
		}
	}
	return nil
}

// longestStop is how long everything may stand still.
func (w *world) longestStop() (longest time.Duration) {
	for _, e := range w.plan.Events {
		if e.What == Pause || e.What == Crash || e.What == DatabaseOutage || e.What == LostCommits {
			longest += e.For + 15*time.Second
		}
	}
	return longest
}

// machines lists all machines.
func (w *world) machines() (all []bmdb.MachineRow, err error) {
	for {
		filter := bmdb.MachineFilter{Limit: 1000}
		if len(all) > 0 {
			filter.After = all[len(all)-1].ID
		}
		page, err := w.db.ListMachines(w.ctx, filter)
		if err != nil {
			return nil, fmt.Errorf("list the machines: %w", err)
		}
		all = append(all, page...)
		if len(page) < filter.Limit {
			return all, nil
		}
	}
}

// left says what is not well; "" when everything is (I11).
func (w *world) left() (string, error) {
	rows, err := w.machines()
	if err != nil {
		return "", err
	}
	w.states, w.unwatched = make(map[fleet.State]int), 0
	known := make(map[fleet.ProviderID]bmdb.MachineRow)
	left := ""
	for _, row := range rows {
		w.states[row.State]++
		known[row.ProviderID] = row
		if why := w.unwell(row); why != "" && left == "" {
			left = fmt.Sprintf("machine %s (%s) %s: it is %s: %s", w.name(string(row.ID)), row.ProviderID, why, row.State, w.anonymous(row.Reason))
		}
	}
	if left != "" {
		return left, nil
	}
	for _, p := range w.providers {
		if left, err := w.leftAt(p.base(), known); left != "" || err != nil {
			return left, err
		}
	}
	for _, c := range w.controllers {
		for _, st := range c.strands {
			if st.task != nil && w.now.Sub(st.task.claimed) > time.Hour {
				return fmt.Sprintf("%s of %s has been going on since %s", st.task.Work.Process, w.subject(st.task.Work), st.task.claimed), nil
			}
		}
	}
	return "", nil
}

// unwell says why a machine is not where it should be; "" when it is.
func (w *world) unwell(row bmdb.MachineRow) string {
	d := w.deviceOf(row)
	switch row.State {
	case fleet.StateAvailable:
		if d != nil && (d.host.agent == nil || !d.host.reachable()) {
			return "has no agent"
		}
	case fleet.StateInstalled:
		r, there := w.watch.record(row.ID) // the newest request may have been called off
		if d == nil || !there {
			break
		}
		var runs fleet.InstallGeneration
		if r.Installed != nil {
			runs = r.Installed.Generation
		}
		if d.host.system.generation != runs {
			return fmt.Sprintf("holds install %d on its disk, and is said to run %d", d.host.system.generation, runs)
		}
		if w.plan.Lead && !d.host.reachable() { // of seeds nothing is expected here
			return w.unanswered(d.host, r)
		}
	case fleet.StateUnreachable:
		switch {
		case d == nil:
		case d.host.reachable():
			return "answers"
		case w.plan.Lead && d.host.comes():
			return "is on its way"
		}
	case fleet.StateQuarantined, fleet.StateFailed:
		if d == nil || !d.host.sick {
			return "was never sick"
		}
	case fleet.StateSilent: // a host that nothing can restart is tried for ever
		m, err := w.db.MachineDetails(w.ctx, row.ID)
		if err != nil || d == nil || d.host.reachable() || !lifecycle.OnlyStarts(m.Record, m.Environment, m.Now) {
			return "is on its way"
		}
	case fleet.StateProvided: // a host that never answered is tried for ever, and its reason says so
		if d == nil || !d.host.dead && !d.host.hangs && !d.host.diskLost {
			return "is on its way"
		}
	case fleet.StateOff: // its device must be off, too
		if d != nil && d.status == fleet.ProviderStatusActive {
			return "is on"
		}
	default:
		return "is on its way"
	}
	return ""
}

// unanswered says why an installed machine that does not answer is not where it should be; "" when
// nobody will ever find that, and then it counts as unwatched.
func (w *world) unanswered(h *host, r fleet.Record) string {
	switch {
	case h.comes():
		return "is not up"
	case lifecycle.Watched(r):
		return "does not answer, and that is not found yet"
	}
	w.unwatched++
	return ""
}

func (w *world) deviceOf(row bmdb.MachineRow) *device {
	for _, p := range w.providers {
		if s := p.base(); s.name == row.Provider {
			return s.find(row.ProviderID)
		}
	}
	return nil
}

// leftAt says what is not well at a provider (I7).
func (w *world) leftAt(s *source, known map[fleet.ProviderID]bmdb.MachineRow) (string, error) {
	view, err := w.db.ViewProvider(w.ctx, s.name)
	if err != nil {
		return "", fmt.Errorf("view the provider: %w", err)
	}
	switch {
	case len(view.Intents) > 0:
		return fmt.Sprintf("%d intents are open at %s", len(view.Intents), s.name), nil
	case len(view.Discrepancies) > 0:
		return fmt.Sprintf("there is a discrepancy at %s: %s", s.name, w.anonymous(view.Discrepancies[0].Evidence)), nil
	}
	i := slices.IndexFunc(w.setup.Providers, func(p Provider) bool { return p.Name == s.name })
	most := w.setup.Providers[i].Provisioner.MaxMachines
	full := most > 0 && len(view.Machines) >= most
	for _, d := range s.devices {
		if s.list && full {
			break // the hosts of a list are there, whether they are taken in or not
		}
		if row, ok := known[d.id]; !ok || row.Provider != s.name {
			return fmt.Sprintf("nobody knows device %s on %s", d.id, d.capacity), nil
		}
	}
	for _, m := range view.Machines {
		if s.find(m.ProviderID) == nil {
			return fmt.Sprintf("machine %s is no device of %s", w.name(string(m.ID)), s.name), nil
		}
	}
	for _, capacity := range s.capacity {
		if _, out := view.Penalties[capacity]; !out && s.on(capacity) == nil && !full {
			return fmt.Sprintf("nothing is made of %s", capacity), nil
		}
	}
	return "", nil
}

const needsSomebody = "nothing goes on by itself any more"

// verdict says how things are when nothing is left to do.
func (w *world) verdict() string {
	for state, n := range w.states {
		if n > 0 && state.Trouble() {
			return needsSomebody
		}
	}
	if w.unwatched > 0 {
		return needsSomebody
	}
	return "everything is well"
}

// finish judges the whole when it is over.
func (w *world) finish(left string) error {
	w.unsettled = left
	if left == "" {
		if w.quiet.IsZero() {
			w.quiet = w.now
		}
		w.settled = w.quiet.Sub(w.began)
		i := slices.IndexFunc(w.timeline, func(m Moment) bool { return m.At > w.settled })
		if i < 0 {
			i = len(w.timeline)
		}
		w.timeline = slices.Insert(w.timeline, i, Moment{At: w.settled, What: w.verdict(), Times: 1})
	} else {
		if w.plan.Lead { // whoever rehearses a scenario is told, and judges
			return w.checkDatabase()
		}
		w.watch.violate("I11", "%s after the faults had stopped: %s", w.elapsed()-w.plan.Length, left)
	}
	if err := w.checkDatabase(); err != nil {
		return err
	}
	if err := w.watch.checkHistory(); err != nil {
		return err
	}
	return w.checkRecords()
}
