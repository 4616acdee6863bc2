package bmdb

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Change is one fact written in the transaction of a Work. Changes are applied in the given order,
// all or none. The functions of this package make them; for work on a machine they concern that
// machine.
type Change interface {
	// String tells one change from another.
	fmt.Stringer
	// concerns returns the machines whose rows the change needs besides the work's own. It runs before
	// any lock is taken.
	concerns(ctx context.Context, t *transaction) ([]fleet.MachineID, error)
	// apply writes. Everything concerned is locked.
	apply(ctx context.Context, t *transaction, w *Work) error
	// recall fills in what the caller wants to know, when the change was committed before and the
	// reply was lost.
	recall(ctx context.Context, t *transaction, w *Work) error
	// touched returns the machines whose agendas apply made stale.
	touched() []fleet.MachineID
}

// change is every Change.
type change struct {
	text     string
	machines []fleet.MachineID
	find     func(ctx context.Context, t *transaction) ([]fleet.MachineID, error)
	do       func(ctx context.Context, t *transaction, w *Work, c *change) error
	again    func(ctx context.Context, t *transaction, w *Work) error
	// touches is what do made stale, the work's own subject apart.
	touches []fleet.MachineID
}

func (c *change) String() string { return c.text }

func (c *change) concerns(ctx context.Context, t *transaction) ([]fleet.MachineID, error) {
	if c.find == nil {
		return c.machines, nil
	}
	found, err := c.find(ctx, t)
	return slices.Concat(c.machines, found), err
}

func (c *change) apply(ctx context.Context, t *transaction, w *Work) error {
	c.touches = nil
	return c.do(ctx, t, w, c)
}

func (c *change) recall(ctx context.Context, t *transaction, w *Work) error {
	if c.again == nil {
		return nil
	}
	return c.again(ctx, t, w)
}

func (c *change) touched() []fleet.MachineID { return c.touches }

func (c *change) touch(id fleet.MachineID) { c.touches = append(c.touches, id) }

// wantMachine fails a change that only makes sense in work on a machine.
func wantMachine(w *Work, c *change) error {
	if w.Subject.Machine == "" {
		return fleet.Errorf(fleet.KindInvalid, "%s needs work on a machine, not on %s", c.text, w.Subject)
	}
	return nil
}

// wantProvider fails a change that only makes sense in work on a provider.
func wantProvider(w *Work, c *change) error {
	if w.Subject.Provider == "" {
		return fleet.Errorf(fleet.KindInvalid, "%s needs work on a provider, not on %s", c.text, w.Subject)
	}
	return nil
}

// note appends to the history of the machine, or of the work's subject when there is none.
func (w *Work) note(ctx context.Context, t *transaction, machine fleet.MachineID, event fleet.Event, detail string) error {
	subject := w.Subject
	if machine != "" {
		subject = fleet.Subject{Machine: machine}
	}
	return t.record(ctx, history{
		subject: subject, actor: w.session.actor(), process: w.Process, epoch: w.Epoch, event: event, detail: detail, session: w.Session,
	})
}

// SetAgentStarted records a takeover that succeeded. At is set by the transaction. KindConflict
// unless the takeover generation is the one that was minted last.
func SetAgentStarted(s fleet.AgentStarted) Change {
	return &change{
		text: fmt.Sprintf("agent started: %+v", s),
		do: func(ctx context.Context, t *transaction, w *Work, c *change) error {
			if err := wantMachine(w, c); err != nil {
				return err
			}
			id := w.Subject.Machine
			m, err := t.q.GetMachine(ctx, string(id))
			if err != nil {
				return fmt.Errorf("read machine %s: %w", id, err)
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
				return fmt.Errorf("record the agent's start: %w", err)
			}
			return w.note(ctx, t, id, fleet.EventAgentStarted, fmt.Sprintf("takeover generation %d, agent %s", s.TakeoverGeneration, s.AgentVersion))
		},
	}
}

// MintTakeover makes the machine's takeover generation grow and returns it.
func MintTakeover(into *fleet.TakeoverGeneration) Change {
	return &change{
		text: "mint a takeover generation",
		do: func(ctx context.Context, t *transaction, w *Work, c *change) error {
			if err := wantMachine(w, c); err != nil {
				return err
			}
			g, err := t.q.MintTakeover(ctx, string(w.Subject.Machine))
			if err != nil {
				return fmt.Errorf("mint a takeover generation: %w", err)
			}
			*into = fleet.TakeoverGeneration(g)
			return w.note(ctx, t, w.Subject.Machine, fleet.EventTakeover, fmt.Sprintf("takeover generation %d", g))
		},
		// the lane is ours: nobody minted since
		again: func(ctx context.Context, t *transaction, w *Work) error {
			m, err := t.q.GetMachine(ctx, string(w.Subject.Machine))
			*into = fleet.TakeoverGeneration(m.TakeoverGeneration)
			return err
		},
	}
}

// SetProvided records what the provider says of one of its machines; the first answer about an ID
// gives the machine that ID. Nothing is written when nothing changed. At, CreatedAt and ActiveAt
// are kept by the BMDB.
func SetProvided(machine fleet.MachineID, id fleet.ProviderID, p fleet.Provided) Change {
	return &change{
		text: fmt.Sprintf("provided %s %s: %+v", machine, id, p), machines: []fleet.MachineID{machine},
		do: func(ctx context.Context, t *transaction, w *Work, c *change) error {
			return t.setProvided(ctx, w, c, fact{machine, id, p})
		},
	}
}

// fact is what a provider says of one machine.
type fact struct {
	machine  fleet.MachineID
	id       fleet.ProviderID
	provided fleet.Provided
}

// setProvided writes the fact of a machine whose row is locked, if it says anything new.
func (t *transaction) setProvided(ctx context.Context, w *Work, c *change, f fact) error {
	machine, id, p := f.machine, f.id, f.provided
	m, err := t.q.GetMachine(ctx, string(machine))
	if absent(err) {
		return fleet.Errorf(fleet.KindNotFound, "there is no machine %s", machine)
	}
	if err != nil {
		return fmt.Errorf("read machine %s: %w", machine, err)
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
	if was != nil && reflect.DeepEqual(*was, p) {
		return nil
	}
	c.touch(machine)
	p.At = now
	address := ""
	if p.Address.IsValid() {
		address = p.Address.String()
	}
	err = t.q.PutProvided(ctx, statement.PutProvidedParams{
		Machine: string(machine), Provider: m.Provider, At: micros(p.At), CreatedAt: micros(p.CreatedAt),
		ActiveAt: microsPointer(p.ActiveAt), Status: string(p.Status), Detail: p.Detail, Hostname: p.Hostname, Address: address,
		Location: p.Location, Capacity: string(p.Capacity), HostKeys: joinLines(p.HostKeys),
	})
	if err != nil {
		return fmt.Errorf("record what the provider says of machine %s: %w", machine, err)
	}
	if was == nil || was.Status != p.Status {
		return w.note(ctx, t, machine, fleet.EventProviderStatus, statusDetail(p))
	}
	return nil
}

func statusDetail(p fleet.Provided) string {
	if p.Detail == "" || p.Detail == string(p.Status) {
		return string(p.Status)
	}
	return fmt.Sprintf("%s (%s)", p.Status, p.Detail)
}

func (t *transaction) setProviderID(ctx context.Context, m statement.GetMachineRow, id fleet.ProviderID) error {
	if m.ProviderID != "" {
		return fleet.Errorf(fleet.KindConflict, "machine %s is %s at %s, not %s", m.ID, m.ProviderID, m.Provider, id)
	}
	others, err := t.q.MachineByProviderID(ctx, statement.MachineByProviderIDParams{Provider: m.Provider, ProviderID: string(id)})
	if err != nil {
		return fmt.Errorf("look for %s: %w", id, err)
	}
	if len(others) > 0 {
		return fleet.Errorf(fleet.KindConflict, "%s at %s is machine %s already", id, m.Provider, others[0])
	}
	if err := t.q.SetProviderID(ctx, statement.SetProviderIDParams{ID: m.ID, ProviderID: string(id)}); err != nil {
		return fmt.Errorf("record the provider ID of machine %s: %w", m.ID, err)
	}
	return nil
}

// RecordHistory appends to the history of the work's subject.
func RecordHistory(event fleet.Event, detail string) Change {
	return &change{
		text: "history: " + string(event) + ": " + detail,
		do: func(ctx context.Context, t *transaction, w *Work, _ *change) error {
			return w.note(ctx, t, w.Subject.Machine, event, detail)
		},
	}
}

// RecordMachineHistory appends to the history of a machine from work on its provider.
func RecordMachineHistory(machine fleet.MachineID, event fleet.Event, detail string) Change {
	return &change{
		text: fmt.Sprintf("history of %s: %s: %s", machine, event, detail),
		do: func(ctx context.Context, t *transaction, w *Work, c *change) error {
			if err := wantProvider(w, c); err != nil {
				return err
			}
			return w.note(ctx, t, machine, event, detail)
		},
	}
}

// PinHostKeys remembers the host keys seen at first contact, in authorized_keys form, in place of
// those remembered before. See DB.HostKeys.
func PinHostKeys(machine fleet.MachineID, keys []string) Change {
	return &change{
		text: fmt.Sprintf("pin host keys of %s: %q", machine, keys), machines: []fleet.MachineID{machine},
		do: func(ctx context.Context, t *transaction, w *Work, _ *change) error {
			err := t.q.PutHostKeys(ctx, statement.PutHostKeysParams{Machine: string(machine), At: micros(t.Now()), Pinned: joinLines(keys)})
			if err != nil {
				return fmt.Errorf("pin the host keys of machine %s: %w", machine, err)
			}
			return w.note(ctx, t, machine, fleet.EventHostKeysPinned, fmt.Sprintf("%d keys", len(keys)))
		},
	}
}
