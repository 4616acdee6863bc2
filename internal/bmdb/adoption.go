package bmdb

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// RequestAdoption asks for a machine of the provider that the BMDB does not know to be managed: the
// next pass takes it in, as installed where the operator says so. Asking again for the same changes
// nothing. KindNotFound unless it was asked for already, or is a discrepancy of the kind
// unknown-machine. KindConflict when it is a machine of another provider.
func (db *DB) RequestAdoption(ctx context.Context, actor string, name fleet.ProviderName, id fleet.ProviderID, installed bool, reason string) error {
	return db.onProvider(ctx, "request adoption", name, func(ctx context.Context, t *transaction, _ *providerRecord) error {
		rows, err := t.q.ListProviderDiscrepancies(ctx, string(name))
		if err != nil {
			return err
		}
		asked, err := t.q.ListAdoptions(ctx, string(name))
		if err != nil {
			return err
		}
		// What was asked for is no discrepancy any more, and may wait for a list that lags.
		i := slices.IndexFunc(asked, func(a statement.ListAdoptionsRow) bool { return a.ProviderID == string(id) })
		if i < 0 && !slices.ContainsFunc(rows, func(d statement.Discrepancy) bool {
			return d.Kind == string(fleet.DiscrepancyUnknownMachine) && d.ProviderID == string(id)
		}) {
			return fleet.Errorf(fleet.KindNotFound, "no unknown machine %s is reported at %s: `ironherd discrepancy list` has those that are", id, name)
		}
		if err := t.notElsewhere(ctx, name, id); err != nil {
			return err
		}
		if i >= 0 && (asked[i].Installed != 0) == installed {
			return nil
		}
		words := string(id)
		if installed {
			words += ", as installed"
		}
		t.addEvent(fleet.Subject{Provider: name}, actor, fleet.ProcessProvision, fleet.EventAdoptionRequested,
			fmt.Sprintf("%s; %s", words, reason))
		return t.q.PutAdoption(ctx, statement.PutAdoptionParams{
			Provider: string(name), ProviderID: string(id), At: micros(t.Now()), Actor: actor, Installed: bit(installed),
		})
	})
}

// AdoptToken takes in a device that carries one of our tokens, as the machine that the token was
// made for, under the same UUID. An intent that is still open is closed by it. Where the intent had
// been closed with nothing made, the machine is to run what is configured now, unless its intent
// was opened after that configuration was read.
func AdoptToken(token fleet.Token, id fleet.ProviderID, capacity fleet.CapacityID, p fleet.Provided, configured Configured) Change {
	return Change{
		concerns: func(ctx context.Context, t *transaction, _ *Work, l *locks) error {
			k, err := t.q.GetToken(ctx, string(token))
			if absent(err) {
				return nil
			}
			l.machines = append(l.machines, fleet.MachineID(k.Machine))
			return err
		},
		apply: func(ctx context.Context, t *transaction, c *commit) error {
			k, err := t.q.GetToken(ctx, string(token))
			if absent(err) || err == nil && k.Provider != string(c.work.Subject.Provider) {
				return fleet.Errorf(fleet.KindNotFound, "token %s is not one of ours at %s", token, c.work.Subject.Provider)
			}
			if err != nil {
				return err
			}
			machine := fleet.MachineID(k.Machine)
			c.touch(machine)
			return t.adopt(ctx, c, adoption{machine: machine, id: id, capacity: capacity, provided: p, token: k, configured: configured})
		},
	}
}

// AdoptEntry takes in, by an operator's word, a used machine that the BMDB does not know, under a
// new UUID. It is marked as installed where the operator said so. KindConflict when it is a machine
// already, also of another provider.
func AdoptEntry(machine fleet.MachineID, id fleet.ProviderID, capacity fleet.CapacityID, p fleet.Provided) Change {
	return Change{
		machines: []fleet.MachineID{machine},
		apply: func(ctx context.Context, t *transaction, c *commit) error {
			c.touch(machine)
			if err := t.notElsewhere(ctx, c.work.Subject.Provider, id); err != nil {
				return err
			}
			asked, err := t.dropAdoption(ctx, c, id)
			if err != nil {
				return err
			}
			a := adoption{machine: machine, id: id, capacity: capacity, provided: p}
			if len(asked) > 0 && asked[0].Installed != 0 {
				a.installedBy = asked[0].Actor
			}
			return t.adopt(ctx, c, a)
		},
	}
}

// DropAdoption ends the request to take in a machine that is not there to be taken in any more.
func DropAdoption(id fleet.ProviderID) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		_, err := t.dropAdoption(ctx, c, id)
		return err
	}}
}

// dropAdoption ends the request for a machine, and returns what was asked for, if anything was.
func (t *transaction) dropAdoption(ctx context.Context, c *commit, id fleet.ProviderID) ([]statement.DeleteAdoptionRow, error) {
	return t.q.DeleteAdoption(ctx, statement.DeleteAdoptionParams{Provider: string(c.work.Subject.Provider), ProviderID: string(id)})
}

type adoption struct {
	machine  fleet.MachineID
	id       fleet.ProviderID
	capacity fleet.CapacityID
	provided fleet.Provided
	// token is what it carries, with what is configured for machines that do; empty: none.
	token      statement.Token
	configured Configured
	// installedBy is who says that an operating system runs there; empty: nobody does.
	installedBy string
}

func (t *transaction) adopt(ctx context.Context, c *commit, a adoption) error {
	m, err := t.row(ctx, a.machine)
	switch {
	case fleet.KindOf(err) == fleet.KindNotFound:
		if err := t.insertMachine(ctx, a.machine, c.work.Subject.Provider); err != nil {
			return err
		}
		if err := t.addMachines(ctx, c.work.Subject.Provider, 1); err != nil {
			return err
		}
		if a.token.Token != "" && !a.configured.readBefore(a.token.OpenedAt) {
			if err := t.wantAsConfigured(ctx, c, a.machine, a.configured); err != nil {
				return err
			}
		}
	case err != nil:
		return err
	case m.ProviderID == string(a.id): // it is there already
		return t.setProvided(ctx, c, a.machine, a.id, a.provided)
	}
	if a.token.Token != "" {
		err := t.closeIntent(ctx, statement.Intent{Machine: string(a.machine), Token: a.token.Token}, outcomeAdopted)
		if err != nil {
			return err
		}
	}
	if a.provided.Capacity == "" {
		a.provided.Capacity = a.capacity
	}
	c.addHistory(t, a.machine, fleet.EventAdopted, fmt.Sprintf("%s on capacity %s", a.id, a.capacity))
	if a.installedBy != "" {
		if err := t.putMarked(ctx, a.machine, 1); err != nil {
			return err
		}
		t.addEvent(fleet.Subject{Machine: a.machine}, a.installedBy, "", fleet.EventMarkedInstalled, "it was adopted as such")
	}
	return t.setProvided(ctx, c, a.machine, a.id, a.provided)
}

// Elsewhere is what another provider's machine has in common with an entry of a list.
type Elsewhere struct {
	Machine  fleet.MachineID
	Provider fleet.ProviderName
	// ByToken: the entry carries the token that the machine was made with. Otherwise it has the
	// machine's provider ID.
	ByToken bool
}

// Elsewhere returns those of the entries of a provider, given with their tokens, that are machines
// of other providers of its kind. They are so where two providers are one: it was renamed, or it
// was configured twice. A machine that the other provider has said it does not have is none, nor is
// one that was given back. It is not for lists of hosts, whose IDs are their own.
func (db *DB) Elsewhere(
	ctx context.Context, name fleet.ProviderName, entries map[fleet.ProviderID][]fleet.Token,
) (map[fleet.ProviderID]Elsewhere, error) {
	return read(ctx, db.view, "look at other providers", func(ctx context.Context, t *transaction) (map[fleet.ProviderID]Elsewhere, error) {
		others, err := t.q.ListSiblings(ctx, string(name))
		if err != nil || len(others) == 0 {
			return nil, err
		}
		found := make(map[fleet.ProviderID]Elsewhere)
		for id, tokens := range entries {
			is, err := t.elsewhere(ctx, name, id, tokens)
			if err != nil {
				return nil, err
			}
			if is.Machine != "" {
				found[id] = is
			}
		}
		return found, nil
	})
}

// SharedAddresses returns the addresses of a provider's machines that machines of other providers
// have, too, those aside that are gone.
func (db *DB) SharedAddresses(ctx context.Context, name fleet.ProviderName) (map[netip.Addr]bool, error) {
	return read(ctx, db.view, "look for shared addresses", func(ctx context.Context, t *transaction) (map[netip.Addr]bool, error) {
		rows, err := t.q.ListSharedAddresses(ctx, string(name))
		if err != nil {
			return nil, err
		}
		shared := make(map[netip.Addr]bool, len(rows))
		for _, row := range rows {
			if address, err := netip.ParseAddr(row); err == nil {
				shared[address] = true
			}
		}
		return shared, nil
	})
}

// notElsewhere fails with KindConflict when a provider ID is that of a machine of another provider.
func (t *transaction) notElsewhere(ctx context.Context, name fleet.ProviderName, id fleet.ProviderID) error {
	is, err := t.elsewhere(ctx, name, id, nil)
	if err == nil && is.Machine != "" {
		err = fleet.Errorf(fleet.KindConflict, "%s is machine %s of provider %s already, and one machine has one provider: was %s renamed, or is one project "+
			"configured twice?", id, is.Machine, is.Provider, name)
	}
	return err
}

// elsewhere looks for the machine of one entry among the other providers of the same kind.
func (t *transaction) elsewhere(ctx context.Context, name fleet.ProviderName, id fleet.ProviderID, tokens []fleet.Token) (none Elsewhere, err error) {
	byID, err := t.q.ListElsewhere(ctx, statement.ListElsewhereParams{Name: string(name), ProviderID: string(id)})
	if err != nil {
		return none, err
	}
	if len(byID) > 0 {
		return Elsewhere{Machine: fleet.MachineID(byID[0].ID), Provider: fleet.ProviderName(byID[0].Provider)}, nil
	}
	for _, token := range tokens {
		byToken, err := t.q.ListElsewhereByToken(ctx, statement.ListElsewhereByTokenParams{Name: string(name), Token: string(token)})
		if err != nil {
			return none, err
		}
		if len(byToken) > 0 {
			return Elsewhere{Machine: fleet.MachineID(byToken[0].Machine), Provider: fleet.ProviderName(byToken[0].Provider), ByToken: true}, nil
		}
	}
	return none, nil
}
