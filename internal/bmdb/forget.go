package bmdb

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// forget removes a machine that is forgettable, with all that is known of it but its history. It is
// locked, and its provider.
func (t *transaction) forget(ctx context.Context, m *machineRecord, actor, reason string) error {
	unserved, refused, err := t.forgettable(ctx, m.record)
	if err = cmp.Or(err, refused); err != nil {
		return err
	}
	outcome := outcomeReleased
	if unserved {
		outcome = outcomeForgotten
		reason += fmt.Sprintf("; no control plane serves %s, which may have it still", m.record.Provider)
	}
	t.recordEvent(fleet.Subject{Machine: m.record.ID}, actor, "", fleet.EventForgotten, reason)
	if err := t.q.DeleteIntent(ctx, string(m.record.ID)); err != nil {
		return err
	}
	if open := m.record.OpenOperation(); open != nil && open.Operation == fleet.OperationRelease {
		// Its end would do so, and now there is none.
		if err := t.keepOut(ctx, m.record, *open, 0); err != nil {
			return err
		}
	}
	if err := t.removeFacts(ctx, m, outcome); err != nil {
		return err
	}
	return t.rewriteProvider(ctx, m.record.Provider)
}

// forgettable returns why a machine cannot be forgotten: its provider has not said that it is gone,
// and can be asked. Unserved: nobody can ask it, because no control plane serves it any more.
func (t *transaction) forgettable(ctx context.Context, r fleet.Record) (unserved bool, refused, err error) {
	if gone(r) {
		return false, nil, nil
	}
	parts, err := t.attendance(ctx)
	if err != nil {
		return false, nil, err
	}
	if parts.servedUntil(fleet.RoleOperations, r.Provider) >= parts.now { // by who would give it back
		return false, mayBeThere(r), nil
	}
	refused = parts.checkUnserved(r.Provider)
	return refused == nil, refused, nil
}

func gone(r fleet.Record) bool {
	return r.Provided != nil && r.Provided.Status == fleet.ProviderStatusGone
}

// mayBeThere is why a machine is not forgotten that its provider may still have.
func mayBeThere(r fleet.Record) error {
	switch open := r.OpenOperation(); {
	case r.Intent != nil:
		return fleet.Errorf(fleet.KindConflict, "machine %s is not created yet, and provider %s may make it still: it goes by itself when "+
			"capacity %s is refused for good or is not free any more", r.Name(), r.Provider, r.Intent.Capacity)
	case open != nil && open.Operation.GivesBack():
		return fleet.Errorf(fleet.KindConflict, "provider %s has not said that machine %s is gone: its %s is under way",
			r.Provider, r.Name(), open.Operation)
	case slices.Contains(r.Levers, fleet.LeverRelease):
		return fleet.Errorf(fleet.KindConflict, "provider %s has not said that machine %s is gone: `ironherd machine release %s --reason WHY` gives it back",
			r.Provider, r.Name(), r.ID)
	}
	return fleet.Errorf(fleet.KindConflict, "provider %s has not said that machine %s is gone, and cannot be asked to take it back: remove it there",
		r.Provider, r.Name())
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
	name := string(p.record.Name)
	subject := fleet.Subject{Provider: p.record.Name}
	for _, process := range slices.Sorted(maps.Keys(p.lanes)) {
		l := p.lanes[process]
		switch {
		case l.dead():
			t.expire(subject, &l.lane)
		case l.session != "":
			t.end(subject, &l.lane, history{actor: actor, event: fleet.EventRevoked, detail: "the provider is forgotten"})
		}
		t.buffer.move(process, subjectKey(subject), p.record.Name, l.due, 0)
		l.due = 0
		t.buffer.lane(l)
		t.buffer.resetBackoff(subjectKey(subject), process)
	}
	t.recordEvent(subject, actor, "", fleet.EventForgotten, reason)
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
	id := string(m.record.ID)
	t.recordNames(m.record)
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
	err := t.q.DeleteMachineDiscrepancies(ctx, statement.DeleteMachineDiscrepanciesParams{Provider: string(m.record.Provider), Machine: id})
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
			Subject: nameSubject(name), At: micros(t.Now()), Actor: actorBMDB, Event: string(fleet.EventForgotten), Detail: string(r.ID),
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
			if rows, err := last(machineSubject(id)); err != nil || len(rows) > 0 {
				return id, err
			}
		}
		rows, err := last(nameSubject(ref))
		if err == nil && len(rows) == 0 {
			err = fleet.Errorf(fleet.KindNotFound, "no machine is known as %q", ref)
		}
		if err != nil {
			return "", err
		}
		return fleet.MachineID(rows[0].Detail), nil
	})
}
