package bmdb

import (
	"context"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// RegisterProvider makes a configured provider instance known and schedules its work. Called at
// every start; idempotent. KindConflict when the name was used for another kind of provider.
func (db *DB) RegisterProvider(ctx context.Context, name fleet.ProviderName, kind string, maxMachines int) error {
	return db.update(ctx, "register provider", func(ctx context.Context, t *transaction) error {
		err := t.q.InsertProvider(ctx, statement.InsertProviderParams{
			Name: string(name), Kind: kind, MaxMachines: int64(maxMachines), CreatedAt: micros(t.Now()),
		})
		if err != nil {
			return err
		}
		for _, process := range []fleet.Process{fleet.ProcessProvision, fleet.ProcessUpdate} {
			lane := statement.InsertProviderLaneParams{Provider: string(name), Process: string(process)}
			if err := t.q.InsertProviderLane(ctx, lane); err != nil {
				return err
			}
		}
		p, err := t.lockProvider(ctx, name)
		if fleet.KindOf(err) == fleet.KindNotFound { // ForgetProvider came between
			return fleet.Errorf(fleet.KindTemporary, "provider %s is being forgotten: start again", name)
		}
		if err != nil {
			return err
		}
		if err := requireKind(p.row, kind); err != nil {
			return err
		}
		if p.row.MaxMachines != int64(maxMachines) {
			err := t.q.SetMaxMachines(ctx, statement.SetMaxMachinesParams{MaxMachines: int64(maxMachines), Name: string(name)})
			if err != nil {
				return err
			}
		}
		return t.rewriteProvider(ctx, name)
	})
}

// CheckProvider is KindConflict where RegisterProvider or SetSource would be, and writes nothing.
func (db *DB) CheckProvider(ctx context.Context, name fleet.ProviderName, kind, source string) error {
	return db.view(ctx, "check provider", func(ctx context.Context, t *transaction) error {
		is, err := t.q.GetProvider(ctx, string(name))
		if absent(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := requireKind(is, kind); err != nil {
			return err
		}
		return requireSource(is, source)
	})
}

func requireKind(is statement.Provider, kind string) error {
	if is.Kind == kind {
		return nil
	}
	return fleet.Errorf(fleet.KindConflict, "provider %s is of kind %s in the database, not %s: use another name", is.Name, is.Kind, kind)
}

// SetSource records what the machines of the provider belong to: the project of an API. Called at
// every start. KindConflict while it has machines of another one: they would count as gone, and run
// on. KindNotFound when it was never registered.
func (db *DB) SetSource(ctx context.Context, name fleet.ProviderName, source string) error {
	return db.onProvider(ctx, "set source", name, func(ctx context.Context, t *transaction, p *providerRecord) error {
		if p.row.Source == source || source == "" {
			return nil
		}
		if err := requireSource(p.row, source); err != nil {
			return err
		}
		return t.q.SetSource(ctx, statement.SetSourceParams{Source: source, Name: string(name)})
	})
}

// requireSource: where either does not say, nothing tells them apart.
func requireSource(is statement.Provider, source string) error {
	if is.Machines == 0 || is.Source == "" || source == "" || is.Source == source {
		return nil
	}
	name := fleet.ProviderName(is.Name)
	return fleet.Errorf(fleet.KindConflict, "provider %s has machines of project %s (%d, with those that are being created), and the configuration has project %s: "+
		"they would count as gone, and run on. Give project %s a provider of its own name, or put project %s back. To give up the machines of project %s, take provider %s "+
		"out of the configuration, then `%s` and `ironherd provider forget %s --reason WHY`: neither gives anything back at the provider",
		name, is.Source, is.Machines, source, source, is.Source, is.Source, name, ForgetCommand(name, int(is.Machines)), name)
}

// SetLevers records what the provider can do to its machines. When that has changed, its machines
// are judged again. Called at every start. KindNotFound when it was never registered.
func (db *DB) SetLevers(ctx context.Context, name fleet.ProviderName, levers []fleet.Lever) error {
	list := joinWords(levers)
	return db.onProvider(ctx, "set levers", name, func(ctx context.Context, t *transaction, p *providerRecord) error {
		if p.row.Levers == list {
			return nil
		}
		if err := t.q.SetLevers(ctx, statement.SetLeversParams{Levers: list, Name: string(name)}); err != nil {
			return err
		}
		return t.renumber(ctx)
	})
}
