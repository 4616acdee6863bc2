package bmdb

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// CountedAtMost is fleet.CountedAtMost: no statement of a summary counts further.
const CountedAtMost = fleet.CountedAtMost

// Summary is the fleet in figures.
type Summary struct {
	// At is the database time that it is of.
	At       time.Time
	Machines int
	States   map[fleet.State]int
	// Processes in the order of fleet.Processes.
	Processes []ProcessSummary
	// Discrepancies, at most CountedAtMost.
	Discrepancies int
	// HostKeyRefused are the machines on which no agent is started because we refuse the key of their
	// host, which is not the known one. LoginRefused are those whose host refuses us otherwise, as
	// where it does not know our SSH key.
	HostKeyRefused, LoginRefused Counted
	// Unasked are the machines whose installed system could not be asked whether it is up, for
	// policy.unreachable_after or longer. The first is the one of which that is so for longest, and
	// UnaskedSince is when it failed there first.
	Unasked      Counted
	UnaskedSince time.Time
	// RecoveryHold is what stops recovery; nil when nothing does. A stop whose time is over is none.
	RecoveryHold *fleet.RecoveryHold
	// Missing are the roles that no live control plane has, and that have something to do: a loop
	// while its process is due, the janitor always. For the agent API see Environment.ListenerUpSince.
	Missing []fleet.Role
}

// Counted is of how many machines something is true, at most CountedAtMost, and of which first.
type Counted struct {
	N     int
	First fleet.MachineID
}

// ProcessSummary is one process in figures.
type ProcessSummary struct {
	Process fleet.Process
	// Running is the work that is under way.
	Running int
	// Due are the subjects for which it is due, at most CountedAtMost, without those of providers for
	// which nobody does it (ProviderRow.Unserved). So is OldestDue.
	Due int
	// NoRoom are those of Due that wait until fewer of their provider or location are under recovery,
	// because the policy limits how many are at once. OldestDue is of the others.
	NoRoom int
	// BackingOff are the backoffs that are not over, at most CountedAtMost.
	BackingOff int
	// OldestDue is since when the longest due row is; zero when none is. It is no earlier than this
	// process has last seen that none could start: what was held until then was due long before.
	OldestDue time.Time
}

// Startable is for how many subjects the process is due and could start.
func (p ProcessSummary) Startable() int { return p.Due - p.NoRoom }

// idle is when nothing of a process could start, as a summary has told last. Safe for concurrent
// use.
type idle struct {
	mu   sync.Mutex
	seen map[fleet.Process]time.Time
}

// note remembers what could not start, and corrects since when the rest is due. What was never done
// is left: nobody knows since when it is there. So is an instant from before a clock was set back.
func (i *idle) note(s *Summary) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.seen == nil {
		i.seen = make(map[fleet.Process]time.Time)
	}
	for n := range s.Processes {
		p := &s.Processes[n]
		switch seen := i.seen[p.Process]; {
		case p.Startable() == 0:
			i.seen[p.Process] = s.At
		case p.OldestDue.Unix() > 0 && p.OldestDue.Before(seen) && !seen.After(s.At):
			p.OldestDue = seen
		}
	}
}

// OfRole returns the figures of the process that the role does; its zero value for a role that does
// none.
func (s Summary) OfRole(role fleet.Role) ProcessSummary {
	for _, p := range s.Processes {
		if p.Process.Role() == role {
			return p
		}
	}
	return ProcessSummary{}
}

// Summary counts. It reads the counts of the states, which are kept, what sessions said of their
// works when they were last extended, and what is due or backing off, up to a bound.
func (db *DB) Summary(ctx context.Context) (Summary, error) {
	s, err := read(ctx, db.view, "summary", func(ctx context.Context, t *transaction) (Summary, error) {
		s := Summary{At: t.Now(), States: make(map[fleet.State]int)}
		env, err := t.environment(ctx)
		if err != nil {
			return s, err
		}
		if stopped(env.RecoveryHold, t.Now()) {
			s.RecoveryHold = env.RecoveryHold
		}
		states, err := t.q.CountStates(ctx)
		if err != nil {
			return s, err
		}
		for _, c := range states {
			if s.States[fleet.State(c.State)] += int(c.N); s.States[fleet.State(c.State)] == 0 {
				delete(s.States, fleet.State(c.State))
			}
			s.Machines += int(c.N)
		}
		discrepancies, err := t.q.CountDiscrepancies(ctx, CountedAtMost)
		if err != nil {
			return s, err
		}
		s.Discrepancies = int(discrepancies)
		refused, err := t.q.CountRefusedHostKeys(ctx, statement.CountRefusedHostKeysParams{
			Process: string(fleet.ProcessAgentStart), State: string(fleet.StateProvided), MaxRows: CountedAtMost,
		})
		if err != nil {
			return s, err
		}
		s.HostKeyRefused = Counted{int(refused.N), fleet.MachineID(refused.First)}
		refusing, err := t.q.CountHostsRefusing(ctx, statement.CountHostsRefusingParams{
			Process: string(fleet.ProcessAgentStart), State: string(fleet.StateProvided), MaxRows: CountedAtMost,
		})
		if err != nil {
			return s, err
		}
		s.LoginRefused = Counted{int(refusing.N), fleet.MachineID(refusing.First)}
		unasked, err := t.q.CountUnasked(ctx, statement.CountUnaskedParams{
			Before: micros(t.Now().Add(-env.Policy.UnreachableAfter)), MaxRows: CountedAtMost,
		})
		if err != nil && !absent(err) {
			return s, err
		}
		s.Unasked, s.UnaskedSince = Counted{int(unasked.N), fleet.MachineID(unasked.First)}, instant(unasked.Since)
		parts, err := t.attendance(ctx)
		if err != nil {
			return s, err
		}
		s.Processes, err = t.summarize(ctx, parts)
		s.Missing = slices.DeleteFunc(parts.missing(), func(role fleet.Role) bool {
			return role != fleet.RoleJanitor && (role == fleet.RoleAgentAPI || s.OfRole(role).Due == 0)
		})
		return s, err
	})
	if err == nil {
		db.idle.note(&s)
	}
	return s, err
}

func (t *transaction) summarize(ctx context.Context, parts attendance) (list []ProcessSummary, err error) {
	sessions, err := t.q.ListLiveSessions(ctx)
	if err != nil {
		return nil, err
	}
	running := make(map[fleet.Process]int)
	for _, live := range sessions {
		for process, n := range decodeRunning(live.Running) {
			running[process] += n
		}
	}
	providers, err := t.q.ListProviders(ctx)
	if err != nil {
		return nil, err
	}
	without := make(map[fleet.Role][]place)
	for _, p := range providers {
		for _, role := range parts.unserved(fleet.ProviderName(p.Name)) {
			without[role] = append(without[role], place{provider: fleet.ProviderName(p.Name)})
		}
	}
	for _, process := range fleet.Processes() {
		due, err := t.countDue(ctx, process, without[process.Role()])
		if err != nil {
			return nil, err
		}
		backoffs, err := t.q.CountBackoffs(ctx, statement.CountBackoffsParams{Process: string(process), Now: micros(t.Now()), MaxRows: CountedAtMost})
		if err != nil {
			return nil, err
		}
		p := ProcessSummary{
			Process: process, Running: running[process], Due: int(due.N), OldestDue: instant(due.Since), BackingOff: int(backoffs),
		}
		if p.Due > 0 && limited(process) {
			full, err := t.withoutRoom(ctx, providers)
			if err != nil {
				return nil, err
			}
			if due, err = t.countDue(ctx, process, slices.Concat(without[process.Role()], full)); err != nil {
				return nil, err
			}
			p.NoRoom, p.OldestDue = p.Due-int(due.N), instant(due.Since)
		}
		list = append(list, p)
	}
	return list, nil
}

// countDue counts what is due of a process, but for the places that without names.
func (t *transaction) countDue(ctx context.Context, process fleet.Process, without []place) (statement.CountDueRow, error) {
	most := int64(CountedAtMost)
	if len(without) > 0 { // what nobody does is the oldest, and stays there: it must not hide all else
		most *= 10
	}
	var providers, locations strings.Builder
	for _, p := range without {
		if p.location == "" {
			providers.WriteString(p.name())
		} else {
			locations.WriteString(p.name())
		}
	}
	row, err := t.q.CountDue(ctx, statement.CountDueParams{
		Process: string(process), Now: micros(t.Now()), Without: providers.String(), Locations: locations.String(), MaxRows: most,
	})
	row.N = min(row.N, CountedAtMost)
	return row, err
}

// encodeRunning and decodeRunning store how many works of each process a session has.
func encodeRunning(running map[fleet.Process]int) string {
	text, _ := json.Marshal(running) // strings and numbers always can be
	return string(text)
}

func decodeRunning(text string) (running map[fleet.Process]int) {
	// what another version wrote, and this one cannot read, is not counted
	_ = json.Unmarshal([]byte(text), &running)
	return running
}

// OldestByState returns, for each state that some machine is in, since when the one that is in it
// for longest is.
func (db *DB) OldestByState(ctx context.Context) (map[fleet.State]time.Time, error) {
	return read(ctx, db.peek, "time in state", func(ctx context.Context, t *transaction) (map[fleet.State]time.Time, error) {
		rows, err := t.q.ListOldestInStates(ctx)
		oldest := make(map[fleet.State]time.Time, len(rows))
		for _, r := range rows {
			oldest[fleet.State(r.State)] = instant(r.Since)
		}
		return oldest, err
	})
}

// CountLate counts the machines that have been in a state since before an instant, and says since
// when the first of them has; zero where there is none. It reads an index of those alone.
func (db *DB) CountLate(ctx context.Context, state fleet.State, before time.Time) (n int, oldest time.Time, err error) {
	row, err := read(ctx, db.peek, "count late machines", func(ctx context.Context, t *transaction) (statement.CountLateAnywhereRow, error) {
		return t.q.CountLateAnywhere(ctx, statement.CountLateAnywhereParams{State: string(state), Before: micros(before)})
	})
	return int(row.N), instant(row.Oldest), err
}

// Phase is how long one phase of a machine's way took.
type Phase struct {
	// Name: provision, agent-start, report, install.
	Name               string
	Count              int
	P50, P95, P99, Max time.Duration
}

// phaseSample is how many of the newest machines the phases are computed of.
const phaseSample = 10_000

// Phases returns the durations of each phase over the newest ten thousand machines: provision from
// the first call (for an adopted machine: from its adoption) until the provider hands it over;
// agent-start from there until the agent was started; report until the hardware was known; install
// from when it could begin until the installed system was seen.
func (db *DB) Phases(ctx context.Context) ([]Phase, error) {
	return read(ctx, db.view, "phases", func(ctx context.Context, t *transaction) ([]Phase, error) {
		rows, err := t.q.ListPhases(ctx, phaseSample)
		samples := make([][]time.Duration, 4)
		for _, r := range rows {
			from := r.CalledAt
			if from == 0 {
				from = r.CreatedAt
			}
			for i, edge := range [][2]int64{
				{from, r.ActiveAt}, {r.ActiveAt, r.StartedAt}, {r.StartedAt, r.HardwareAt}, {max(r.HardwareAt, r.RequestedAt), r.InstalledAt},
			} {
				if edge[0] != 0 && edge[1] >= edge[0] {
					samples[i] = append(samples[i], lasting(edge[1]-edge[0]))
				}
			}
		}
		phases := make([]Phase, len(samples))
		for i, name := range []string{"provision", "agent-start", "report", "install"} {
			phases[i] = phaseOf(name, samples[i])
		}
		return phases, err
	})
}

func phaseOf(name string, sample []time.Duration) Phase {
	p := Phase{Name: name, Count: len(sample)}
	if len(sample) == 0 {
		return p
	}
	slices.Sort(sample)
	at := func(percent int) time.Duration { return sample[(len(sample)*percent+99)/100-1] }
	p.P50, p.P95, p.P99, p.Max = at(50), at(95), at(99), sample[len(sample)-1]
	return p
}

// ProviderRow is one line of the list of providers.
type ProviderRow struct {
	fleet.ProviderRecord
	MaxMachines   int
	Machines      int // open intents included
	OpenIntents   int
	Discrepancies int // at most CountedAtMost
	PassResult    string
	// Penalties is how much of its capacity sits out a penalty.
	Penalties int
	// Decisions on provision and update, as of now.
	Decisions []lifecycle.Decision
	// Unserved are the roles that live control planes have, but none of them for this provider, as
	// when it has left the configuration. Abandoned: nobody has any role for it, so that it can be
	// forgotten.
	Unserved  []fleet.Role
	Abandoned bool
}

// Failing returns the failures in a row of a process of the provider; zero when it succeeded last.
// What waits, as passes do while the provider is paused, is tried by nobody, and so does not count;
// nor does what nobody does at this provider.
func (p ProviderRow) Failing(process fleet.Process) fleet.BackoffState {
	for _, d := range p.Decisions {
		if d.Process == process && d.Verdict != lifecycle.Waiting && !slices.Contains(p.Unserved, process.Role()) {
			return p.Backoffs[process]
		}
	}
	return fleet.BackoffState{}
}

// Unusable are the entries of its list that the last pass has left alone: why, a line for each. Of
// more than UnusableNamed, the last line says how many more there are.
func (p ProviderRow) Unusable() []string { return strings.Split(p.PassResult, "\n")[1:] }

// Providers lists the providers in the order of their names.
func (db *DB) Providers(ctx context.Context) ([]ProviderRow, error) {
	return read(ctx, db.view, "list providers", func(ctx context.Context, t *transaction) (list []ProviderRow, err error) {
		rows, err := t.q.ListProviders(ctx)
		if err != nil {
			return list, err
		}
		parts, err := t.attendance(ctx)
		if err != nil {
			return list, err
		}
		for _, p := range rows {
			row, err := t.providerRow(ctx, p)
			if err != nil {
				return list, err
			}
			row.Unserved, row.Abandoned = parts.unserved(row.Name), parts.checkUnserved(row.Name) == nil
			for i, d := range row.Decisions {
				if role := d.Process.Role(); slices.Contains(row.Unserved, role) {
					row.Decisions[i].Reason += ", but " + lifecycle.NobodyServes(row.Name, role)
				}
			}
			list = append(list, row)
		}
		return list, nil
	})
}

func (t *transaction) providerRow(ctx context.Context, p statement.Provider) (ProviderRow, error) {
	loaded, err := t.loadProvider(ctx, fleet.ProviderName(p.Name))
	if err != nil {
		return ProviderRow{}, err
	}
	plan, err := t.judgeProvider(ctx, loaded)
	if err != nil {
		return ProviderRow{}, err
	}
	counts, err := t.q.CountOfProvider(ctx, statement.CountOfProviderParams{Provider: p.Name, Now: micros(t.Now()), MaxRows: CountedAtMost})
	return ProviderRow{
		ProviderRecord: loaded.facts, MaxMachines: int(p.MaxMachines), Machines: int(p.Machines), OpenIntents: int(counts.Intents),
		Discrepancies: int(counts.Discrepancies), PassResult: p.PassResult, Penalties: int(counts.Penalties),
		Decisions: []lifecycle.Decision{plan[fleet.ProcessProvision], plan[fleet.ProcessUpdate]},
	}, err
}

// SessionRow is one line of the list of sessions.
type SessionRow struct {
	ID        fleet.SessionID
	Component string
	Host      string
	PID       int
	StartedAt time.Time
	Deadline  time.Time
	// EndedAt is zero while the session lives; Cause says why it ended.
	EndedAt time.Time
	Cause   string
	// Providers are the names of those that it serves; * stands for all.
	Providers []string
	// Held are its leases, at most a thousand: those of providers, then those of machines, in the
	// order of their IDs.
	Held []HeldLane
}

// HeldLane is one lease of a session.
type HeldLane struct {
	Process fleet.Process
	Subject fleet.Subject
	Epoch   fleet.Epoch
	Since   time.Time
}

// maxSessions bounds the list of sessions that have ended, and maxHeld that of the leases of each.
const (
	maxSessions = 1000
	maxHeld     = 1000
)

// Sessions lists the sessions that live, or all, newest first. It reads all machines for what they
// hold.
func (db *DB) Sessions(ctx context.Context, all bool) ([]SessionRow, error) {
	return read(ctx, db.view, "list sessions", func(ctx context.Context, t *transaction) (list []SessionRow, err error) {
		rows, err := t.q.ListLiveSessions(ctx)
		slices.Reverse(rows)
		if all {
			rows, err = t.q.ListSessions(ctx, maxSessions)
		}
		if err != nil {
			return list, err
		}
		leases, err := t.q.ListHeld(ctx)
		if err != nil {
			return list, err
		}
		held := make(map[string][]HeldLane)
		for _, l := range leases {
			if len(held[l.Session]) < maxHeld {
				held[l.Session] = append(held[l.Session], HeldLane{
					Process: fleet.Process(l.Process), Subject: fleet.Subject{Machine: fleet.MachineID(l.Machine), Provider: fleet.ProviderName(l.Provider)},
					Epoch: fleet.Epoch(l.Epoch), Since: instant(l.Since),
				})
			}
		}
		for _, s := range rows {
			list = append(list, SessionRow{
				ID: fleet.SessionID(s.ID), Component: s.Component, Host: s.Host, PID: int(s.Pid), StartedAt: instant(s.StartedAt),
				Deadline: instant(s.DeadlineAt), EndedAt: instant(s.EndedAt), Cause: s.Cause, Held: held[s.ID], Providers: strings.Fields(s.Providers),
			})
		}
		return list, nil
	})
}

// DiscrepancyRow is one line of the list of discrepancies.
type DiscrepancyRow struct {
	Provider fleet.ProviderName
	Discrepancy
}

// Discrepancies lists so many, by provider; 0: all.
func (db *DB) Discrepancies(ctx context.Context, limit int) ([]DiscrepancyRow, error) {
	return read(ctx, db.view, "list discrepancies", func(ctx context.Context, t *transaction) ([]DiscrepancyRow, error) {
		rows, err := t.q.ListDiscrepancies(ctx, cmp.Or(int64(limit), math.MaxInt64))
		return converted(rows, func(r statement.Discrepancy) DiscrepancyRow {
			return DiscrepancyRow{Provider: fleet.ProviderName(r.Provider), Discrepancy: discrepancyOf(r)}
		}), err
	})
}
