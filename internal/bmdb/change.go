package bmdb

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// Change is one fact written in the transaction of a Work. Changes are applied in the given order,
// all or none. The functions of this package make them; for work on a machine they concern that
// machine.
type Change struct {
	// machines whose rows the change needs besides the work's own.
	machines []fleet.MachineID
	// concerns adds what else it needs. It runs before any lock is taken. May be nil.
	concerns func(ctx context.Context, t *transaction, w *Work, l *locks) error
	// apply writes. Everything concerned is locked.
	apply func(ctx context.Context, t *transaction, c *commit) error
	// answers says that apply has an answer for the caller.
	answers bool
}

// addHistory appends to the history of the machine, or of the work's subject when there is none.
func (c *commit) addHistory(t *transaction, machine fleet.MachineID, event fleet.Event, detail string) {
	w, subject := c.work, c.work.Subject
	if machine != "" {
		subject = fleet.Subject{Machine: machine}
	}
	t.addHistory(history{
		subject: subject, actor: w.session.actor(), process: w.Process, epoch: w.Epoch, event: event, detail: detail, session: w.Session,
	})
}

// SetAgentStarted records a takeover that succeeded. At is set by the transaction. KindConflict
// unless the takeover generation is the one that was minted last.
func SetAgentStarted(s fleet.AgentStarted) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		id := c.work.Subject.Machine
		m, err := t.row(ctx, id)
		if err != nil {
			return err
		}
		if m.TakeoverGeneration != int64(s.TakeoverGeneration) {
			return fleet.Errorf(fleet.KindConflict, "takeover generation %d of machine %s is not the newest: %d is", s.TakeoverGeneration, id,
				m.TakeoverGeneration)
		}
		err = t.q.PutAgentStarted(ctx, statement.PutAgentStartedParams{
			Machine: string(id), At: micros(t.Now()), TakeoverGeneration: int64(s.TakeoverGeneration), PublicKey: s.PublicKey,
			AgentVersion: s.AgentVersion, BootID: s.BootID,
		})
		if err != nil {
			return err
		}
		c.addHistory(t, id, fleet.EventAgentStarted, fmt.Sprintf("takeover generation %d, agent %s", s.TakeoverGeneration, s.AgentVersion))
		if !lifecycle.StartIsStep(c.machine.facts, *t.env, t.Now(), s.BootID) {
			return nil
		}
		c.addHistory(t, id, fleet.EventRepairStep, string(fleet.RungAgentStart))
		return t.putRepair(ctx, c.machine, fleet.RungAgentStart)
	}}
}

// MintTakeover makes the machine's takeover generation grow, above the one that the host says it
// has seen (0: it has not said), and returns it.
func MintTakeover(seen fleet.TakeoverGeneration, into *fleet.TakeoverGeneration) Change {
	return Change{
		apply: func(ctx context.Context, t *transaction, c *commit) error {
			g, err := t.q.MintTakeover(ctx, statement.MintTakeoverParams{ID: string(c.work.Subject.Machine), Seen: int64(seen)})
			if err != nil {
				return err
			}
			*into = fleet.TakeoverGeneration(g)
			detail := fmt.Sprintf("takeover generation %d", g)
			if seen > 0 {
				detail += fmt.Sprintf("; the host has seen %d, which this database has not: was it restored from a backup?", seen)
			}
			c.addHistory(t, c.work.Subject.Machine, fleet.EventTakeover, detail)
			return nil
		},
		answers: true,
	}
}

// SetProvided records what the provider says of one of its machines; the first answer about an ID
// gives the machine that ID. Nothing is written when nothing changed, or when the machine was given
// back or forgotten meanwhile. At, CreatedAt and ActiveAt are kept by the BMDB.
func SetProvided(machine fleet.MachineID, id fleet.ProviderID, p fleet.Provided) Change {
	return Change{
		machines: []fleet.MachineID{machine},
		concerns: func(ctx context.Context, t *transaction, _ *Work, l *locks) error {
			m, err := t.row(ctx, machine)
			if err == nil && changesPace(providedOfMachine(m), &p) {
				l.providers = append(l.providers, fleet.ProviderName(m.Provider))
			}
			if fleet.KindOf(err) == fleet.KindNotFound {
				return nil // nobody wants the fact any more
			}
			return err
		},
		apply: func(ctx context.Context, t *transaction, c *commit) error {
			return t.setProvided(ctx, c, machine, id, p)
		},
	}
}

// changesPace says whether a provider may have to be asked at another pace for what it says now.
// A machine that has been off for long has settled, and no longer when it is something else.
func changesPace(was, is *fleet.Provided) bool {
	may := lifecycle.MayChange(is)
	return may != lifecycle.MayChange(was) || may && was.Status != is.Status
}

// setProvided writes what a provider says of a machine whose row is locked, if it is anything new.
func (t *transaction) setProvided(ctx context.Context, c *commit, machine fleet.MachineID, id fleet.ProviderID, p fleet.Provided) error {
	m, err := t.row(ctx, machine)
	if fleet.KindOf(err) == fleet.KindNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if id != "" && m.ProviderID != string(id) {
		if err := t.setProviderID(ctx, m, id); err != nil {
			return err
		}
		c.touch(machine)
	}
	was := providedOfMachine(m)
	now := t.Now()
	p.At, p.CreatedAt, p.ActiveAt = now, now, nil
	if was != nil {
		p.At, p.CreatedAt, p.ActiveAt = was.At, was.CreatedAt, was.ActiveAt
	}
	if p.Status == fleet.ProviderStatusActive && p.ActiveAt == nil {
		p.ActiveAt = &now
	}
	if len(p.HostKeys) == 0 {
		p.HostKeys = nil
	}
	if len(p.Labels) == 0 {
		p.Labels = nil
	}
	if was != nil && reflect.DeepEqual(*was, p) {
		return nil
	}
	c.touch(machine)
	if changesPace(was, &p) {
		c.touched = append(c.touched, fleet.Subject{Provider: fleet.ProviderName(m.Provider)})
	}
	if was != nil && was.Status != p.Status {
		p.At = now
	}
	address := ""
	if p.Address.IsValid() {
		address = p.Address.String()
	}
	err = t.q.PutProvided(ctx, statement.PutProvidedParams{
		Machine: string(machine), Provider: m.Provider, At: micros(p.At), CreatedAt: micros(p.CreatedAt),
		ActiveAt: microsPointer(p.ActiveAt), Status: string(p.Status), Detail: p.Detail, Hostname: p.Hostname, Address: address,
		Location: p.Location, Labels: joinLines(p.Labels), Capacity: string(p.Capacity), HostKeys: joinLines(p.HostKeys),
	})
	if err != nil {
		return err
	}
	if was == nil || was.Status != p.Status {
		c.addHistory(t, machine, fleet.EventProviderStatus, p.Says())
	}
	if was == nil {
		return nil
	}
	if p.Status == fleet.ProviderStatusCreating && was.Status != p.Status {
		if err := t.noteReinstalled(ctx, machine); err != nil {
			return err
		}
	}
	return t.endStartWait(ctx, machine, *was, p)
}

// noteReinstalled records that the provider reinstalls a machine on which an installed system is to
// run. It is not for us: recovery leaves such a machine alone.
func (t *transaction) noteReinstalled(ctx context.Context, machine fleet.MachineID) error {
	m, err := t.load(ctx, machine)
	if err != nil || !lifecycle.Installed(m.facts) {
		return err
	}
	return t.q.PutErased(ctx, statement.PutErasedParams{Machine: string(machine), At: micros(t.Now())})
}

// endStartWait ends the wait of a machine's agent start where the provider says what it waited for.
// It waits long where the provider does not have the machine, says that it is off, or has no
// address for it, and where nobody answers at the address.
func (t *transaction) endStartWait(ctx context.Context, machine fleet.MachineID, was, is fleet.Provided) error {
	switch {
	case was.Status != is.Status && (was.Status == fleet.ProviderStatusGone || is.Status == fleet.ProviderStatusActive):
		t.buffer.resetBackoff(machineKey(machine), fleet.ProcessAgentStart)
	case is.Address.IsValid() && was.Address != is.Address:
		return t.q.EndWait(ctx, statement.EndWaitParams{
			Now: micros(t.Now()), Subject: machineKey(machine), Process: string(fleet.ProcessAgentStart),
		})
	}
	return nil
}

func (t *transaction) setProviderID(ctx context.Context, m statement.MachineRecord, id fleet.ProviderID) error {
	if m.ProviderID != "" {
		return fleet.Errorf(fleet.KindConflict, "machine %s is %s at %s, not %s", m.ID, m.ProviderID, m.Provider, id)
	}
	others, err := t.q.MachineByProviderID(ctx, statement.MachineByProviderIDParams{Provider: m.Provider, ProviderID: string(id)})
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return fleet.Errorf(fleet.KindConflict, "%s at %s is machine %s already", id, m.Provider, others[0])
	}
	return t.q.SetProviderID(ctx, statement.SetProviderIDParams{ID: m.ID, ProviderID: string(id)})
}

// RecordHistory appends to the history of the work's subject.
func RecordHistory(event fleet.Event, detail string) Change {
	return RecordMachineHistory("", event, detail)
}

// RecordMachineHistory appends to the history of a machine from work on its provider.
func RecordMachineHistory(machine fleet.MachineID, event fleet.Event, detail string) Change {
	return Change{apply: func(_ context.Context, t *transaction, c *commit) error {
		c.addHistory(t, machine, event, detail)
		return nil
	}}
}

// PinHostKeys remembers the host keys seen at first contact, in authorized_keys form, in place of
// those remembered before. See DB.HostKeys.
func PinHostKeys(machine fleet.MachineID, keys []string) Change {
	return Change{
		machines: []fleet.MachineID{machine},
		apply: func(ctx context.Context, t *transaction, c *commit) error {
			c.addHistory(t, machine, fleet.EventHostKeysPinned, fmt.Sprintf("%d keys", len(keys)))
			return t.putHostKeys(ctx, machine, fleet.HostKeyFirstUse, keys...)
		},
	}
}

// InjectHostKey remembers a host key that goes with the request to create the machine, in
// authorized_keys form, besides others that went with earlier requests for it: any of them may be
// the one that made it. It is committed before the request is made. Idempotent; what was learned of
// the machine itself stays.
func InjectHostKey(machine fleet.MachineID, key, fingerprint string) Change {
	return Change{
		machines: []fleet.MachineID{machine},
		apply: func(ctx context.Context, t *transaction, c *commit) error {
			was, err := t.hostKeys(ctx, machine)
			if err != nil || len(was.Known) > 0 && was.Source != fleet.HostKeyInjected || slices.Contains(was.Known, key) {
				return err
			}
			c.addHistory(t, machine, fleet.EventHostKeysPinned, "made for this machine: "+fingerprint)
			return t.putHostKeys(ctx, machine, fleet.HostKeyInjected, append(was.Known, key)...)
		},
	}
}

// RefuseHostKey remembers the key that the host has shown in place of those that are known, in
// authorized_keys form, for a person to look at. See DB.AcceptHostKey.
func RefuseHostKey(key, fingerprint string) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		machine := c.work.Subject.Machine
		was, err := t.hostKeys(ctx, machine)
		if err != nil || was.Refused == key {
			return err
		}
		c.addHistory(t, machine, fleet.EventHostKeyRefused, fingerprint)
		return t.q.RefuseHostKey(ctx, statement.RefuseHostKeyParams{Machine: string(machine), Refused: key, RefusedAt: micros(t.Now())})
	}}
}
