package rehearsal

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// checkDatabase lets the database judge itself (I2 and what else it knows), and looks at sessions
// and backoffs.
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
	w.states = make(map[fleet.State]int)
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
		if d != nil && d.host.system.generation != row.InstallGeneration {
			return fmt.Sprintf("holds install %d on its disk, and is said to run %d", d.host.system.generation, row.InstallGeneration)
		}
	case fleet.StateUnreachable:
		if d != nil && d.host.reachable() {
			return "answers"
		}
	case fleet.StateQuarantined, fleet.StateFailed:
		if d == nil || !d.host.sick {
			return "was never sick"
		}
	case fleet.StateProvided: // a host that never answered is tried for ever, and its reason says so
		if d == nil || !d.host.dead && !d.host.hangs && !d.host.diskLost {
			return "is on its way"
		}
	case fleet.StateOff:
	default:
		return "is on its way"
	}
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
	for _, d := range s.devices {
		if row, ok := known[d.id]; !ok || row.Provider != s.name {
			return fmt.Sprintf("nobody knows device %s on %s", d.id, d.capacity), nil
		}
	}
	for _, m := range view.Machines {
		if s.find(m.ProviderID) == nil {
			return fmt.Sprintf("machine %s is no device of %s", w.name(string(m.ID)), s.name), nil
		}
	}
	i := slices.IndexFunc(w.setup.Providers, func(p Provider) bool { return p.Name == s.name })
	most := w.setup.Providers[i].Provisioner.MaxMachines
	for _, capacity := range s.capacity {
		if _, out := view.Penalties[capacity]; !out && s.on(capacity) == nil && (most == 0 || len(view.Machines) < most) {
			return fmt.Sprintf("nothing is made of %s", capacity), nil
		}
	}
	return "", nil
}

// finish judges the whole when it is over.
func (w *world) finish(left string) error {
	w.notWell = left
	if left == "" {
		w.well = w.elapsed()
		w.note("everything is well")
	} else {
		if w.plan.Lead { // whoever rehearses a scenario is told, and judges
			return w.checkDatabase()
		}
		w.watch.violate("I11", "%s after the faults had stopped: %s", w.elapsed()-w.plan.Length, left)
	}
	if err := w.checkDatabase(); err != nil {
		return err
	}
	if err := w.checkHistory(); err != nil {
		return err
	}
	return w.checkAcknowledged()
}

// checkHistory looks for the end of every work (I4).
func (w *world) checkHistory() error {
	type work struct {
		process fleet.Process
		epoch   fleet.Epoch
	}
	ended := make(map[fleet.Subject]map[work][]fleet.Event)
	held := make(map[fleet.Subject]map[work]bool)
	for _, c := range w.watch.claims {
		if ended[c.subject] == nil {
			var rows []bmdb.HistoryRow
			var err error
			if c.subject.Machine != "" {
				rows, err = w.db.History(w.ctx, c.subject.Machine, 1_000_000)
			} else {
				rows, err = w.db.ProviderHistory(w.ctx, c.subject.Provider, 1_000_000)
			}
			if err != nil {
				return fmt.Errorf("read history: %w", err)
			}
			ended[c.subject], held[c.subject] = make(map[work][]fleet.Event), make(map[work]bool)
			for _, row := range rows {
				switch id := (work{row.Process, row.Epoch}); row.Event {
				case fleet.EventStarted:
					held[c.subject][id] = true
				case fleet.EventFinished, fleet.EventFailed, fleet.EventCancelled, fleet.EventExpired, fleet.EventRevoked:
					ended[c.subject][id] = append(ended[c.subject][id], row.Event)
				}
			}
		}
		id := work{c.process, c.epoch}
		ends := ended[c.subject][id]
		switch {
		case held[c.subject][id] && len(ends) == 0 && c.committed == nil:
		case c.process == fleet.ProcessProbe && len(ends) == 0 && mayBeQuiet(c.committed):
			// its fact stands in for it
		case len(ends) != 1:
			w.watch.violate("I4", "%s of %s under epoch %d has %d ends in history", c.process, c.subject, c.epoch, len(ends))
		case c.committed != nil && ends[0] != eventOf(c.committed):
			w.watch.violate("I4", "%s of %s under epoch %d was committed as %s, and history says %s", c.process, c.subject, c.epoch,
				eventOf(c.committed), ends[0])
		}
	}
	return nil
}

// mayBeQuiet reports whether a probe may have ended without a row of its own: it was committed as
// finished, or nobody knows.
func mayBeQuiet(o shepherd.Outcome) bool { return o == nil || eventOf(o) == fleet.EventFinished }

func eventOf(o shepherd.Outcome) fleet.Event {
	switch o.(type) {
	case shepherd.Finish:
		return fleet.EventFinished
	case shepherd.Fail:
		return fleet.EventFailed
	}
	return fleet.EventCancelled
}

// checkAcknowledged looks for what was acknowledged to agents (I8), and at backoffs (I5).
func (w *world) checkAcknowledged() error {
	records := make(map[fleet.MachineID]fleet.Record)
	rows, err := w.machines()
	if err != nil {
		return err
	}
	for _, row := range rows {
		r, err := w.db.Machine(w.ctx, row.ID)
		if err != nil {
			return fmt.Errorf("read a machine: %w", err)
		}
		records[row.ID] = r
		for process, b := range r.Backoffs {
			if b.Interval < 0 || b.Interval > w.longestBackoff() || b.NotBefore.Sub(w.now) > 2*w.longestBackoff() {
				w.watch.violate("I5", "%s of %s waits %s, until %s", process, row.ID, b.Interval, b.NotBefore)
			}
		}
	}
	for _, ack := range w.watch.reports {
		r, there := records[ack.machine]
		if !there || r.InstallReport == nil && r.InstallAttempt == nil {
			continue // the machine is gone
		}
		has, want := r.InstallReport, ack.report
		if has == nil || has.Generation < want.Generation || has.Generation == want.Generation && has.Attempt < want.Attempt ||
			has.Generation == want.Generation && has.Attempt == want.Attempt && want.OK && !has.OK {
			w.watch.violate("I8", "the report of install %d/%d of %s was acknowledged, and is not there", want.Generation, want.Attempt, ack.machine)
		}
	}
	for _, ack := range w.watch.ups {
		if r, there := records[ack.machine]; there && (r.Installed == nil || r.Installed.Generation < ack.id.generation) {
			w.watch.violate("I8", "install %d/%d of %s was acknowledged as up, and is not there", ack.id.generation, ack.id.number, ack.machine)
		}
	}
	return nil
}

// longestBackoff is the longest that anything may wait after a failure.
func (w *world) longestBackoff() time.Duration {
	longest := time.Duration(0)
	c := w.setup
	for _, b := range []fleet.Backoff{
		c.Policy.InstallRetry, c.Initializer.StartBackoff, c.Initializer.ProviderBackoff, c.Initializer.IDBackoff, c.Recoverer.Backoff, c.Operations.Backoff,
	} {
		longest = max(longest, b.Initial, b.Maximum)
	}
	return longest
}
