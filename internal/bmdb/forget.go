package bmdb

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/verb"
)

// forget removes a machine, where that is possible, with all that is known of it but its history.
// It is locked, and its provider.
func (t *transaction) forget(ctx context.Context, m *machineRecord, actor, reason string) error {
	var service verb.Service
	if !m.facts.Gone() {
		parts, err := t.attendance(ctx)
		if err != nil {
			return err
		}
		service = parts.service(m.facts.Provider)
	}
	abandoned, refused := verb.Forgettable(m.facts, service)
	if refused != nil {
		return refused
	}
	outcome := outcomeReleased
	if abandoned {
		outcome = outcomeForgotten
		reason += fmt.Sprintf("; no control plane serves %s, which may have it still", m.facts.Provider)
	}
	t.addEvent(fleet.Subject{Machine: m.facts.ID}, actor, "", fleet.EventForgotten, reason)
	if err := t.q.DeleteIntent(ctx, string(m.facts.ID)); err != nil {
		return err
	}
	if open := m.facts.OpenOperation(); open != nil && open.Operation == fleet.OperationRelease {
		// Its end would do so, and now there is none.
		if err := t.keepOut(ctx, m.facts, *open, 0); err != nil {
			return err
		}
	}
	if err := t.removeFacts(ctx, m, outcome); err != nil {
		return err
	}
	return t.rewriteProvider(ctx, m.facts.Provider)
}

// ForgetCommand is the command that forgets so many machines of a provider: one plan can have
// MaxPlanned of them, and --yes makes plan after plan.
func ForgetCommand(provider fleet.ProviderName, machines int) string {
	yes := ""
	if machines > MaxPlanned {
		yes = " --yes"
	}
	return fmt.Sprintf("ironherd machine forget --provider %s --reason WHY%s", provider, yes)
}

// ForgetProvider removes a provider that no control plane serves any more, with all that is known
// of it but its history. Where it is configured again, it begins anew. KindConflict while somebody
// serves it, and while it has machines.
func (db *DB) ForgetProvider(ctx context.Context, actor string, name fleet.ProviderName, reason string) error {
	return db.update(ctx, "forget provider", func(ctx context.Context, t *transaction) error {
		p, err := t.lockProvider(ctx, name)
		if err != nil {
			return err
		}
		parts, err := t.attendance(ctx)
		if err != nil {
			return err
		}
		if err := parts.checkUnserved(name); err != nil {
			return err
		}
		if n := p.row.Machines; n > 0 {
			return fleet.Errorf(fleet.KindConflict, "machines of provider %s are known (%d): `%s` removes them first", name, n, ForgetCommand(name, int(n)))
		}
		return t.forgetProvider(ctx, p, actor, reason)
	})
}

// forgetProvider removes a provider whose row is locked, and that has no machines. Its lanes stay,
// and with them their epochs (I3).
func (t *transaction) forgetProvider(ctx context.Context, p *providerRecord, actor, reason string) error {
	name := string(p.facts.Name)
	subject := fleet.Subject{Provider: p.facts.Name}
	for _, process := range slices.Sorted(maps.Keys(p.lanes)) {
		l := p.lanes[process]
		t.vacate(subject, &l.lane, actor, "the provider is forgotten")
		t.move(process, keyOf(subject), p.facts.Name, l.due, 0)
		l.due = 0
		t.buffer.lane(l)
		t.buffer.resetBackoff(keyOf(subject), process)
	}
	t.addEvent(subject, actor, "", fleet.EventForgotten, reason)
	for _, drop := range []func(context.Context, string) error{
		t.q.DropPenalties, t.q.DropDiscrepancies, t.q.DropAdoptions, t.q.DropStateCounts, t.q.DropConcurrencyLimits, t.q.DeleteProvider,
	} {
		if err := drop(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// removeFacts removes a machine with all that is known of it, and closes its token with that
// outcome. Nobody holds its lane. The rows of the machine and of its provider are locked.
func (t *transaction) removeFacts(ctx context.Context, m *machineRecord, outcome string) error {
	id := string(m.facts.ID)
	t.recordNames(m.facts)
	for _, drop := range []func(context.Context, string) error{
		t.q.DropProvided, t.q.DropAgentStarted, t.q.DropAgentSeen, t.q.DropLastSeen, t.q.DropHardware, t.q.DropHardwareReport,
		t.q.DropInstallRequest, t.q.DropInstallAttempt, t.q.DropInstallReport, t.q.DropInstallCancel, t.q.DropInstalled, t.q.DropProbe,
		t.q.DeleteInstallDeadline, t.q.DropMaintenance, t.q.DropOperationRequest, t.q.DropOperationAttempt,
		t.q.DropOperationReport, t.q.DeleteRepair, t.q.DeleteQuarantine,
	} {
		if err := drop(ctx, id); err != nil {
			return err
		}
	}
	err := t.q.DeleteMachineDiscrepancies(ctx, statement.DeleteMachineDiscrepanciesParams{Provider: string(m.facts.Provider), Machine: id})
	if err != nil {
		return err
	}
	if err := t.q.ReleaseToken(ctx, statement.ReleaseTokenParams{Machine: id, ClosedAt: micros(t.Now()), Outcome: outcome}); err != nil {
		return err
	}
	return t.removeMachine(ctx, m)
}

// recordNames keeps the names of a machine that goes, so that its history can be asked for by them.
func (t *transaction) recordNames(r fleet.Record) {
	names := []string{string(r.Provider) + "/" + string(r.ProviderID)}
	if r.Provided != nil && r.Provided.Hostname != "" {
		names = append(names, r.Provided.Hostname)
	}
	for _, name := range names {
		t.buffer.histories = append(t.buffer.histories, statement.InsertHistoryParams{
			Subject: nameKey(name), At: micros(t.Now()), Actor: actorBMDB, Event: string(fleet.EventForgotten), Detail: string(r.ID),
		})
	}
}

// ResolveFormer returns the machine that went last under that name (its ID, its host name, or
// provider/provider-ID). KindNotFound when history knows none any more.
func (db *DB) ResolveFormer(ctx context.Context, ref string) (fleet.MachineID, error) {
	ref = strings.TrimSpace(ref)
	return read(ctx, db.view, "resolve a former name", func(ctx context.Context, t *transaction) (fleet.MachineID, error) {
		last := func(subject string) ([]statement.ListHistoryRow, error) {
			return t.q.ListHistory(ctx, newest(subject, 1))
		}
		if id, err := fleet.ParseMachineID(ref); err == nil {
			if rows, err := last(machineKey(id)); err != nil || len(rows) > 0 {
				return id, err
			}
		}
		rows, err := last(nameKey(ref))
		if err == nil && len(rows) == 0 {
			err = fleet.Errorf(fleet.KindNotFound, "no machine is known as %q", ref)
		}
		if err != nil {
			return "", err
		}
		return fleet.MachineID(rows[0].Detail), nil
	})
}
