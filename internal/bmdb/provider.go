package bmdb

import (
	"context"
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// judgedProvider is a provider as read in one transaction, with what the last judgement left of it.
type judgedProvider struct {
	record fleet.ProviderRecord
	agenda map[fleet.Process]time.Time
	row    statement.Provider
	lanes  []statement.ListProviderLanesRow
}

// loadProvider reads everything that lifecycle judges the provider by. KindNotFound.
func (t *transaction) loadProvider(ctx context.Context, name fleet.ProviderName) (*judgedProvider, error) {
	row, err := t.q.GetProvider(ctx, string(name))
	if absent(err) {
		return nil, fleet.Errorf(fleet.KindNotFound, "there is no provider %s", name)
	}
	if err != nil {
		return nil, fmt.Errorf("read provider %s: %w", name, err)
	}
	changing, err := t.q.CountChanging(ctx, string(name))
	if err != nil {
		return nil, fmt.Errorf("count changing machines of %s: %w", name, err)
	}
	j := &judgedProvider{row: row, record: fleet.ProviderRecord{
		Name: name, Kind: row.Kind, LastPassAt: instant(row.LastPassAt), LastUpdateAt: instant(row.LastUpdateAt),
		Changing: int(changing), Holds: make(map[fleet.Lane]fleet.Hold),
	}}
	if j.lanes, err = t.q.ListProviderLanes(ctx, providerSubject(name)); err != nil {
		return nil, fmt.Errorf("read lanes of %s: %w", name, err)
	}
	for _, l := range j.lanes {
		if l.EndedAt == 0 {
			j.record.Holds[fleet.Lane(l.Lane)] = fleet.Hold{
				Session: fleet.SessionID(l.Session), Component: l.Component, Host: l.Host, Process: fleet.Process(l.Process),
				Epoch: fleet.Epoch(l.Epoch), Since: instant(l.Since), Deadline: instant(l.DeadlineAt),
			}
		}
	}
	if j.record.Backoffs, err = t.backoffs(ctx, providerSubject(name)); err != nil {
		return nil, err
	}
	j.agenda, err = t.agenda(ctx, providerSubject(name))
	return j, err
}

// freeDeadLanes ends, as expired, the work of sessions that have ended. The provider's row is
// locked.
func (t *transaction) freeDeadLanes(ctx context.Context, j *judgedProvider) error {
	for _, l := range j.lanes {
		if l.EndedAt == 0 {
			continue
		}
		err := t.expire(ctx, held{
			subject: fleet.Subject{Provider: j.record.Name}, lane: fleet.Lane(l.Lane), epoch: fleet.Epoch(l.Epoch),
			session: fleet.SessionID(l.Session), process: fleet.Process(l.Process), since: l.Since,
		})
		if err != nil {
			return err
		}
	}
	j.lanes = nil
	return nil
}

// rewriteProvider is rewrite for a provider; its row is locked.
func (t *transaction) rewriteProvider(ctx context.Context, name fleet.ProviderName) error {
	j, err := t.loadProvider(ctx, name)
	if err != nil {
		return err
	}
	return t.settleProvider(ctx, j)
}

func (t *transaction) settleProvider(ctx context.Context, j *judgedProvider) error {
	if err := t.freeDeadLanes(ctx, j); err != nil {
		return err
	}
	decisions, err := t.planProvider(ctx, j)
	if err != nil {
		return err
	}
	for _, d := range decisions {
		t.putAgenda(providerSubject(j.record.Name), j.record.Name, d, j.agenda)
	}
	return nil
}

func (t *transaction) planProvider(ctx context.Context, j *judgedProvider) ([]lifecycle.Decision, error) {
	env, err := t.environment(ctx)
	if err != nil {
		return nil, err
	}
	return lifecycle.DecideProvider(j.record, env, t.Now()), nil
}

// RegisterProvider makes a configured provider instance known and schedules its work. Called at
// every start; idempotent. KindConflict when the name was used for another kind of provider.
func (db *DB) RegisterProvider(ctx context.Context, name fleet.ProviderName, kind string, maxMachines int) error {
	return db.update(ctx, "register provider", func(ctx context.Context, t *transaction) error {
		err := t.q.InsertProvider(ctx, statement.InsertProviderParams{
			Name: string(name), Kind: kind, MaxMachines: int64(maxMachines), CreatedAt: micros(t.Now()),
		})
		if err != nil {
			return fmt.Errorf("register provider %s: %w", name, err)
		}
		l := locks{providers: []fleet.ProviderName{name}}
		if err := l.take(ctx, t); err != nil {
			return err
		}
		is, err := t.q.GetProvider(ctx, string(name))
		if err != nil {
			return fmt.Errorf("read provider %s: %w", name, err)
		}
		if is.Kind != kind {
			return fleet.Errorf(fleet.KindConflict, "provider %s is of kind %s in the database, not %s: use another name", name, is.Kind, kind)
		}
		if is.MaxMachines != int64(maxMachines) {
			err := t.q.SetMaxMachines(ctx, statement.SetMaxMachinesParams{MaxMachines: int64(maxMachines), Name: string(name)})
			if err != nil {
				return fmt.Errorf("register provider %s: %w", name, err)
			}
		}
		return t.rewriteProvider(ctx, name)
	})
}

// providerNames returns the names of all.
func (db *DB) providerNames(ctx context.Context) (names []fleet.ProviderName, err error) {
	err = db.view(ctx, "provider names", func(ctx context.Context, t *transaction) error {
		rows, err := t.q.ListProviders(ctx)
		names = make([]fleet.ProviderName, len(rows))
		for i, r := range rows {
			names[i] = fleet.ProviderName(r.Name)
		}
		return err
	})
	return names, err
}

// ProviderView is what the BMDB knows of one provider, in one snapshot.
type ProviderView struct {
	// Now is the database time of the snapshot.
	Now time.Time
	// Machines that have a provider ID, in the order of those.
	Machines []ProviderMachine
	// Intents that are open, in the order of their machines.
	Intents []fleet.Intent
	// ClosedTokens of intents that are not open any more, with their machines.
	ClosedTokens map[fleet.Token]fleet.MachineID
	// Penalties that are not over.
	Penalties     map[fleet.CapacityID]Penalty
	Discrepancies []Discrepancy
}

// ProviderMachine is one machine of a ProviderView.
type ProviderMachine struct {
	ID         fleet.MachineID
	ProviderID fleet.ProviderID
	CreatedAt  time.Time
	Provided   *fleet.Provided
}

// Penalty keeps a piece of capacity from being used.
type Penalty struct {
	Until time.Time
	Cause string
}

// Discrepancy is where provider and BMDB disagree.
type Discrepancy struct {
	Kind       fleet.DiscrepancyKind
	ProviderID fleet.ProviderID
	// Machine is empty where the BMDB knows none.
	Machine fleet.MachineID
	// Since is set by the BMDB.
	Since    time.Time
	Evidence string
	Remedy   string
}

// ViewProvider reads all that a pass needs, in one snapshot. KindNotFound when the provider was
// never registered.
func (db *DB) ViewProvider(ctx context.Context, name fleet.ProviderName) (ProviderView, error) {
	var v ProviderView
	err := db.view(ctx, "view provider", func(ctx context.Context, t *transaction) error {
		v = ProviderView{
			Now: t.Now(), ClosedTokens: make(map[fleet.Token]fleet.MachineID), Penalties: make(map[fleet.CapacityID]Penalty),
		}
		if _, err := t.q.GetProvider(ctx, string(name)); absent(err) {
			return fleet.Errorf(fleet.KindNotFound, "there is no provider %s", name)
		} else if err != nil {
			return err
		}
		if err := v.readMachines(ctx, t, name); err != nil {
			return err
		}
		intents, err := t.q.ListIntents(ctx, string(name))
		if err != nil {
			return err
		}
		for _, i := range intents {
			v.Intents = append(v.Intents, intentOf(i))
		}
		tokens, err := t.q.ListClosedTokens(ctx, string(name))
		if err != nil {
			return err
		}
		for _, k := range tokens {
			v.ClosedTokens[fleet.Token(k.Token)] = fleet.MachineID(k.Machine)
		}
		penalties, err := t.q.ListPenalties(ctx, statement.ListPenaltiesParams{Provider: string(name), Now: micros(t.Now())})
		if err != nil {
			return err
		}
		for _, p := range penalties {
			v.Penalties[fleet.CapacityID(p.Capacity)] = Penalty{Until: instant(p.Until), Cause: p.Cause}
		}
		discrepancies, err := t.q.ListProviderDiscrepancies(ctx, string(name))
		for _, d := range discrepancies {
			v.Discrepancies = append(v.Discrepancies, discrepancyOf(d))
		}
		return err
	})
	if err != nil {
		return ProviderView{}, fmt.Errorf("read what is known of provider %s: %w", name, err)
	}
	return v, nil
}

func (v *ProviderView) readMachines(ctx context.Context, t *transaction, name fleet.ProviderName) error {
	machines, err := t.q.ListProviderMachines(ctx, string(name))
	for _, m := range machines {
		v.Machines = append(v.Machines, ProviderMachine{
			ID: fleet.MachineID(m.ID), ProviderID: fleet.ProviderID(m.ProviderID), CreatedAt: instant(m.CreatedAt),
			Provided: providedOf(statement.FactProvided{
				At: m.ProvidedAt, CreatedAt: m.ProvidedCreatedAt, ActiveAt: m.ProvidedActiveAt, Status: m.ProvidedStatus,
				Detail: m.ProvidedDetail, Hostname: m.ProvidedHostname, Address: m.ProvidedAddress, Location: m.ProvidedLocation,
				Capacity: m.ProvidedCapacity, HostKeys: m.ProvidedHostKeys,
			}),
		})
	}
	return err
}

func intentOf(i statement.Intent) fleet.Intent {
	return fleet.Intent{
		Machine: fleet.MachineID(i.Machine), Provider: fleet.ProviderName(i.Provider), Capacity: fleet.CapacityID(i.Capacity),
		Token: fleet.Token(i.Token), OpenedAt: instant(i.OpenedAt), PlannedAt: instant(i.PlannedAt),
		CalledAt: instantPointer(i.CalledAt), Calls: int(i.Calls), Rejected: int(i.Rejected),
	}
}

func discrepancyOf(d statement.Discrepancy) Discrepancy {
	return Discrepancy{
		Kind: fleet.DiscrepancyKind(d.Kind), ProviderID: fleet.ProviderID(d.ProviderID), Machine: fleet.MachineID(d.Machine), Since: instant(d.Since),
		Evidence: d.Evidence, Remedy: d.Remedy,
	}
}
