package bmdb

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// NewIntent is one piece of capacity that is about to be asked for.
type NewIntent struct {
	Capacity fleet.CapacityID
	Machine  fleet.MachineID
	Token    fleet.Token
	// PlannedAt is when the first call is meant to be made.
	PlannedAt time.Time
	// Install is what the machine is to run; nil: nothing is asked for. Its generation is 1, At is set
	// by the transaction.
	Install *fleet.InstallRequest
}

// The outcomes of tokens.
const (
	outcomeProvided   = "provided"
	outcomeRejected   = "rejected"
	outcomeOtherOwner = "other-owner"
	outcomeAdopted    = "adopted"
)

// OpenIntents opens as many of the intents, in their order, as maxMachines (0: no limit) allows,
// counting the machines of the provider and its open intents, and makes their machines. Capacity
// that has an open intent is skipped. Those that were opened are returned.
func OpenIntents(maxMachines int, intents []NewIntent, into *[]fleet.Intent) Change {
	return &change{
		text: fmt.Sprintf("open intents, at most %d machines: %+v", maxMachines, intents),
		do: func(ctx context.Context, t *transaction, w *Work, c *change) error {
			if err := wantProvider(w, c); err != nil {
				return err
			}
			*into = nil
			p, err := t.q.GetProvider(ctx, string(w.Subject.Provider))
			if err != nil {
				return fmt.Errorf("read provider %s: %w", w.Subject.Provider, err)
			}
			for _, n := range intents {
				if maxMachines > 0 && p.Machines+int64(len(*into)) >= int64(maxMachines) {
					break
				}
				open, err := t.q.GetIntentByCapacity(ctx, statement.GetIntentByCapacityParams{
					Provider: string(w.Subject.Provider), Capacity: string(n.Capacity),
				})
				if err != nil {
					return fmt.Errorf("read the intent for %s: %w", n.Capacity, err)
				}
				if len(open) > 0 {
					continue
				}
				i, err := t.openIntent(ctx, w, n)
				if err != nil {
					return fmt.Errorf("open the intent for %s: %w", n.Capacity, err)
				}
				*into = append(*into, i)
				c.touch(n.Machine)
			}
			return t.addMachines(ctx, w.Subject.Provider, len(*into))
		},
		again: func(ctx context.Context, t *transaction, _ *Work) error {
			*into = nil
			for _, n := range intents {
				i, err := t.q.GetIntent(ctx, string(n.Machine))
				if absent(err) {
					continue
				}
				if err != nil {
					return err
				}
				*into = append(*into, intentOf(i))
			}
			return nil
		},
	}
}

func (t *transaction) addMachines(ctx context.Context, provider fleet.ProviderName, n int) error {
	if n == 0 {
		return nil
	}
	if err := t.q.AddMachines(ctx, statement.AddMachinesParams{Added: int64(n), Name: string(provider)}); err != nil {
		return fmt.Errorf("count the machines of %s: %w", provider, err)
	}
	return nil
}

func (t *transaction) openIntent(ctx context.Context, w *Work, n NewIntent) (fleet.Intent, error) {
	now, provider := t.Now(), w.Subject.Provider
	err := t.q.InsertMachine(ctx, statement.InsertMachineParams{ID: string(n.Machine), Provider: string(provider), CreatedAt: micros(now)})
	if err != nil {
		return fleet.Intent{}, err
	}
	err = t.q.InsertIntent(ctx, statement.InsertIntentParams{
		Machine: string(n.Machine), Provider: string(provider), Capacity: string(n.Capacity), Token: string(n.Token),
		OpenedAt: micros(now), PlannedAt: micros(n.PlannedAt),
	})
	if err != nil {
		return fleet.Intent{}, err
	}
	err = t.q.InsertToken(ctx, statement.InsertTokenParams{
		Token: string(n.Token), Provider: string(provider), Machine: string(n.Machine), Capacity: string(n.Capacity), OpenedAt: micros(now),
	})
	if err != nil {
		return fleet.Intent{}, err
	}
	if n.Install != nil {
		request := *n.Install
		request.Generation = 1
		if err := t.putInstallRequest(ctx, n.Machine, request); err != nil {
			return fleet.Intent{}, err
		}
	}
	if err := w.note(ctx, t, n.Machine, fleet.EventIntentOpened, fmt.Sprintf("capacity %s, token %s", n.Capacity, n.Token)); err != nil {
		return fleet.Intent{}, err
	}
	return fleet.Intent{
		Machine: n.Machine, Provider: provider, Capacity: n.Capacity, Token: n.Token, OpenedAt: now, PlannedAt: n.PlannedAt,
	}, nil
}

// putInstallRequest writes the request as of now.
func (t *transaction) putInstallRequest(ctx context.Context, machine fleet.MachineID, r fleet.InstallRequest) error {
	image, err := json.Marshal(r.Image)
	if err != nil {
		return fmt.Errorf("encode the image: %w", err)
	}
	disk, err := json.Marshal(r.RootDisk)
	if err != nil {
		return fmt.Errorf("encode the disk selector: %w", err)
	}
	data := r.FirstBootData
	if data == nil {
		data = []byte{}
	}
	err = t.q.PutInstallRequest(ctx, statement.PutInstallRequestParams{
		Machine: string(machine), Generation: int64(r.Generation), At: micros(t.Now()), Actor: r.Actor, Image: string(image),
		RootDisk: string(disk), FirstBootData: data,
	})
	if err != nil {
		return fmt.Errorf("write the install request: %w", err)
	}
	return nil
}

// onIntent is a change of one open intent. KindConflict when none is open.
func onIntent(text string, machine fleet.MachineID,
	do func(ctx context.Context, t *transaction, w *Work, c *change, i statement.Intent) error,
) *change {
	return &change{
		text: text + " " + string(machine), machines: []fleet.MachineID{machine},
		do: func(ctx context.Context, t *transaction, w *Work, c *change) error {
			if err := wantProvider(w, c); err != nil {
				return err
			}
			i, err := t.q.GetIntent(ctx, string(machine))
			if absent(err) || err == nil && i.Provider != string(w.Subject.Provider) {
				return fleet.Errorf(fleet.KindConflict, "machine %s has no open intent at %s", machine, w.Subject.Provider)
			}
			if err != nil {
				return fmt.Errorf("read the intent of machine %s: %w", machine, err)
			}
			c.touch(machine)
			return do(ctx, t, w, c, i)
		},
	}
}

// IntentCalled is committed before a call that could create something.
func IntentCalled(machine fleet.MachineID) Change {
	return onIntent("intent called", machine, func(ctx context.Context, t *transaction, w *Work, _ *change, i statement.Intent) error {
		if i.CalledAt == 0 {
			i.CalledAt = micros(t.Now())
			if err := t.q.CallToken(ctx, statement.CallTokenParams{CalledAt: i.CalledAt, Token: i.Token}); err != nil {
				return fmt.Errorf("record the call: %w", err)
			}
		}
		err := t.q.SetIntentCalls(ctx, statement.SetIntentCallsParams{
			Machine: i.Machine, CalledAt: i.CalledAt, Calls: i.Calls + 1, Rejected: i.Rejected,
		})
		if err != nil {
			return fmt.Errorf("record the call: %w", err)
		}
		return w.note(ctx, t, machine, fleet.EventProviderAsked, fmt.Sprintf("call %d for capacity %s", i.Calls+1, i.Capacity))
	})
}

// IntentAnswered is committed after a definite rejection of such a call. KindConflict when no call
// is open.
func IntentAnswered(machine fleet.MachineID) Change {
	return onIntent("intent answered", machine, func(ctx context.Context, t *transaction, w *Work, _ *change, i statement.Intent) error {
		if i.Rejected >= i.Calls {
			return fleet.Errorf(fleet.KindConflict, "no call for machine %s is open", machine)
		}
		err := t.q.SetIntentCalls(ctx, statement.SetIntentCallsParams{
			Machine: i.Machine, CalledAt: i.CalledAt, Calls: i.Calls, Rejected: i.Rejected + 1,
		})
		if err != nil {
			return fmt.Errorf("record the rejection: %w", err)
		}
		return w.note(ctx, t, machine, fleet.EventProviderRefused, fmt.Sprintf("call %d of %d for capacity %s", i.Rejected+1, i.Calls, i.Capacity))
	})
}

// CloseIntentProvided closes an intent on the device that carries its token: the machine gets its
// provider ID and its first fact. Closing it once more in the same way changes nothing.
func CloseIntentProvided(machine fleet.MachineID, id fleet.ProviderID, p fleet.Provided) Change {
	c := onIntent("intent provided", machine, func(ctx context.Context, t *transaction, w *Work, c *change, i statement.Intent) error {
		if err := t.closeIntent(ctx, i, outcomeProvided); err != nil {
			return err
		}
		if err := w.note(ctx, t, machine, fleet.EventCreated, fmt.Sprintf("%s on capacity %s", id, i.Capacity)); err != nil {
			return err
		}
		return t.setProvided(ctx, w, c, fact{machine, id, p})
	})
	first := c.do
	c.do = func(ctx context.Context, t *transaction, w *Work, c *change) error {
		m, err := t.q.GetMachine(ctx, string(machine))
		if err != nil && !absent(err) {
			return fmt.Errorf("read machine %s: %w", machine, err)
		}
		if err == nil && m.IntentOpenedAt == 0 && m.ProviderID == string(id) {
			return t.setProvided(ctx, w, c, fact{machine, id, p})
		}
		return first(ctx, t, w, c)
	}
	c.text += fmt.Sprintf(" %s %+v", id, p)
	return c
}

func (t *transaction) closeIntent(ctx context.Context, i statement.Intent, outcome string) error {
	if _, err := t.q.DeleteIntent(ctx, i.Machine); err != nil {
		return fmt.Errorf("close the intent: %w", err)
	}
	err := t.q.CloseToken(ctx, statement.CloseTokenParams{Token: i.Token, ClosedAt: micros(t.Now()), Outcome: outcome})
	if err != nil {
		return fmt.Errorf("close the token: %w", err)
	}
	return nil
}

// CloseIntentRejected closes an intent all of whose calls were definitely rejected; KindConflict
// otherwise. The machine's row goes, its history and its token stay.
func CloseIntentRejected(machine fleet.MachineID, cause string) Change {
	c := onIntent("intent rejected", machine, func(ctx context.Context, t *transaction, w *Work, _ *change, i statement.Intent) error {
		if i.Calls != i.Rejected {
			return fleet.Errorf(fleet.KindConflict, "%d of %d calls for machine %s are not rejected: its intent stays open", i.Calls-i.Rejected,
				i.Calls, machine)
		}
		return t.giveUpIntent(ctx, w, i, outcomeRejected, cause)
	})
	c.text += " " + cause
	return c
}

// CloseIntentOtherOwner closes an intent whose capacity another owner has, as confirmed by two
// complete lists after the settling time, which is the caller's duty. The machine's row goes, its
// history and its token stay.
func CloseIntentOtherOwner(machine fleet.MachineID, evidence string) Change {
	c := onIntent("intent lost", machine, func(ctx context.Context, t *transaction, w *Work, _ *change, i statement.Intent) error {
		return t.giveUpIntent(ctx, w, i, outcomeOtherOwner, evidence)
	})
	c.text += " " + evidence
	return c
}

func (t *transaction) giveUpIntent(ctx context.Context, w *Work, i statement.Intent, outcome, why string) error {
	if err := t.closeIntent(ctx, i, outcome); err != nil {
		return err
	}
	if _, err := t.q.DeleteMachine(ctx, i.Machine); err != nil {
		return fmt.Errorf("remove machine %s: %w", i.Machine, err)
	}
	if err := t.addMachines(ctx, fleet.ProviderName(i.Provider), -1); err != nil {
		return err
	}
	return w.note(ctx, t, fleet.MachineID(i.Machine), fleet.EventIntentClosed, outcome+": "+why)
}

// AdoptToken takes in a device that carries one of our tokens, as the machine that the token was
// made for, under the same UUID. An intent that is still open is closed by it.
func AdoptToken(token fleet.Token, id fleet.ProviderID, capacity fleet.CapacityID, p fleet.Provided) Change {
	return &change{
		text: fmt.Sprintf("adopt token %s: %s on %s, %+v", token, id, capacity, p),
		find: func(ctx context.Context, t *transaction) ([]fleet.MachineID, error) {
			k, err := t.q.GetToken(ctx, string(token))
			if absent(err) {
				return nil, nil
			}
			return []fleet.MachineID{fleet.MachineID(k.Machine)}, err
		},
		do: func(ctx context.Context, t *transaction, w *Work, c *change) error {
			if err := wantProvider(w, c); err != nil {
				return err
			}
			k, err := t.q.GetToken(ctx, string(token))
			if absent(err) || err == nil && k.Provider != string(w.Subject.Provider) {
				return fleet.Errorf(fleet.KindNotFound, "token %s is not one of ours at %s", token, w.Subject.Provider)
			}
			if err != nil {
				return fmt.Errorf("read token %s: %w", token, err)
			}
			machine := fleet.MachineID(k.Machine)
			c.touch(machine)
			return t.adopt(ctx, w, c, adoption{machine: machine, id: id, capacity: capacity, provided: p, token: k})
		},
	}
}

// AdoptEntry takes in, by an operator's word, a used machine that the BMDB does not know, under a
// new UUID.
func AdoptEntry(machine fleet.MachineID, id fleet.ProviderID, capacity fleet.CapacityID, p fleet.Provided) Change {
	return &change{
		text: fmt.Sprintf("adopt %s as %s on %s, %+v", id, machine, capacity, p), machines: []fleet.MachineID{machine},
		do: func(ctx context.Context, t *transaction, w *Work, c *change) error {
			if err := wantProvider(w, c); err != nil {
				return err
			}
			c.touch(machine)
			return t.adopt(ctx, w, c, adoption{machine: machine, id: id, capacity: capacity, provided: p})
		},
	}
}

type adoption struct {
	machine  fleet.MachineID
	id       fleet.ProviderID
	capacity fleet.CapacityID
	provided fleet.Provided
	token    statement.Token // empty: none
}

func (t *transaction) adopt(ctx context.Context, w *Work, c *change, a adoption) error {
	m, err := t.q.GetMachine(ctx, string(a.machine))
	switch {
	case absent(err):
		err = t.q.InsertMachine(ctx, statement.InsertMachineParams{
			ID: string(a.machine), Provider: string(w.Subject.Provider), CreatedAt: micros(t.Now()),
		})
		if err != nil {
			return fmt.Errorf("take in machine %s: %w", a.machine, err)
		}
		if err := t.addMachines(ctx, w.Subject.Provider, 1); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("read machine %s: %w", a.machine, err)
	case m.ProviderID == string(a.id): // it is there already
		return t.setProvided(ctx, w, c, fact{a.machine, a.id, a.provided})
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
	if err := w.note(ctx, t, a.machine, fleet.EventAdopted, fmt.Sprintf("%s on capacity %s", a.id, a.capacity)); err != nil {
		return err
	}
	return t.setProvided(ctx, w, c, fact{a.machine, a.id, a.provided})
}

// SetPenalty keeps a piece of capacity from being used for as long as it says.
func SetPenalty(capacity fleet.CapacityID, until time.Duration, cause string) Change {
	return &change{
		text: fmt.Sprintf("penalty of %s for %s: %s", until, capacity, cause),
		do: func(ctx context.Context, t *transaction, w *Work, c *change) error {
			if err := wantProvider(w, c); err != nil {
				return err
			}
			provider := string(w.Subject.Provider)
			if err := t.q.DeletePastPenalties(ctx, statement.DeletePastPenaltiesParams{Provider: provider, Now: micros(t.Now())}); err != nil {
				return fmt.Errorf("write the penalty: %w", err)
			}
			at := t.Now().Add(until)
			err := t.q.PutPenalty(ctx, statement.PutPenaltyParams{Provider: provider, Capacity: string(capacity), Until: micros(at), Cause: cause})
			if err != nil {
				return fmt.Errorf("write the penalty: %w", err)
			}
			return w.note(ctx, t, "", fleet.EventPenalty, fmt.Sprintf("capacity %s until %s: %s", capacity, at.Format(time.DateTime), cause))
		},
	}
}

// SetDiscrepancies replaces the discrepancies of the provider; Since stays for those that were
// there.
func SetDiscrepancies(discrepancies []Discrepancy) Change {
	return &change{
		text: fmt.Sprintf("discrepancies: %+v", discrepancies),
		do: func(ctx context.Context, t *transaction, w *Work, c *change) error {
			if err := wantProvider(w, c); err != nil {
				return err
			}
			return t.setDiscrepancies(ctx, w, discrepancies)
		},
	}
}

func (t *transaction) setDiscrepancies(ctx context.Context, w *Work, discrepancies []Discrepancy) error {
	provider := string(w.Subject.Provider)
	rows, err := t.q.ListProviderDiscrepancies(ctx, provider)
	if err != nil {
		return fmt.Errorf("read discrepancies: %w", err)
	}
	old := make(map[Discrepancy]Discrepancy, len(rows))
	for _, r := range rows {
		d := discrepancyOf(r)
		old[d.identity()] = d
	}
	for _, d := range discrepancies {
		was, there := old[d.identity()]
		delete(old, d.identity())
		if there && was.Evidence == d.Evidence && was.Remedy == d.Remedy {
			continue
		}
		err := t.q.PutDiscrepancy(ctx, statement.PutDiscrepancyParams{
			Provider: provider, Kind: string(d.Kind), ProviderID: string(d.ProviderID), Machine: string(d.Machine), Since: micros(t.Now()),
			Evidence: d.Evidence, Remedy: d.Remedy,
		})
		if err != nil {
			return fmt.Errorf("write a discrepancy: %w", err)
		}
		if there {
			continue
		}
		if err := w.note(ctx, t, d.Machine, fleet.EventDiscrepancy, string(d.Kind)+": "+d.Evidence); err != nil {
			return err
		}
	}
	for gone := range old {
		err := t.q.DeleteDiscrepancy(ctx, statement.DeleteDiscrepancyParams{
			Provider: provider, Kind: string(gone.Kind), ProviderID: string(gone.ProviderID), Machine: string(gone.Machine),
		})
		if err != nil {
			return fmt.Errorf("clear a discrepancy: %w", err)
		}
		if err := w.note(ctx, t, gone.Machine, fleet.EventDiscrepancyCleared, string(gone.Kind)); err != nil {
			return err
		}
	}
	return nil
}

// identity is what stays the same while a discrepancy lasts.
func (d Discrepancy) identity() Discrepancy {
	return Discrepancy{Kind: d.Kind, ProviderID: d.ProviderID, Machine: d.Machine}
}

// SetPassResult sets what is shown of the provider's last pass.
func SetPassResult(summary string) Change {
	return &change{
		text: "pass result: " + summary,
		do: func(ctx context.Context, t *transaction, w *Work, c *change) error {
			if err := wantProvider(w, c); err != nil {
				return err
			}
			err := t.q.SetPassResult(ctx, statement.SetPassResultParams{Result: summary, Name: string(w.Subject.Provider)})
			if err != nil {
				return fmt.Errorf("write the pass's result: %w", err)
			}
			return nil
		},
	}
}
