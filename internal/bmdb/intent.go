package bmdb

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
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
	// ConfiguredAt is the database time when the configuration was read that says so; zero: now.
	ConfiguredAt time.Time
}

// The outcomes of tokens.
const (
	outcomeProvided   = "provided"
	outcomeRejected   = "rejected"
	outcomeOtherOwner = "other-owner"
	outcomeAdopted    = "adopted"
	outcomeReleased   = "released"
	outcomeForgotten  = "forgotten" // while its provider may have had the machine still
)

// ErrPaused is returned, with nothing changed, by what would let the pass under way create machines
// at a provider that a person has paused meanwhile.
var ErrPaused = &fleet.Error{Kind: fleet.KindConflict, Message: "the provider is paused"}

// unpaused fails with ErrPaused while the provider of the work is paused. Its row is locked, as it
// is for who pauses it.
func (c *commit) unpaused() error {
	if p := c.provider.facts.Paused; p != nil {
		return fmt.Errorf("paused by %s (%s): %w", p.Actor, p.Reason, ErrPaused)
	}
	return nil
}

// UnlessPaused goes with what takes a machine in without a call to create it. ErrPaused.
func UnlessPaused() Change {
	return Change{apply: func(_ context.Context, _ *transaction, c *commit) error { return c.unpaused() }}
}

// ErrTaken is returned, with nothing changed, by what would take in a host that may be a machine of
// another provider.
var ErrTaken = &fleet.Error{Kind: fleet.KindConflict, Message: "a machine of another provider has the address"}

// UnlessTaken goes with what takes in a host of a list: not while a machine of another provider has
// its address. apart are machines that are known to be other hosts all the same, as behind another
// jump host. ErrTaken.
//
// A host may be new in two lists at once. So the providers of the kind are locked together: of two
// passes the later one sees what the earlier one took in.
func UnlessTaken(address netip.Addr, apart []fleet.MachineID) Change {
	return Change{
		concerns: func(ctx context.Context, t *transaction, w *Work, l *locks) error {
			others, err := t.q.ListSiblings(ctx, string(w.Subject.Provider))
			for _, other := range others {
				l.providers = append(l.providers, fleet.ProviderName(other))
			}
			return err
		},
		apply: func(ctx context.Context, t *transaction, c *commit) error {
			if !address.IsValid() {
				return nil
			}
			there, err := t.q.ListMachinesByAddress(ctx, statement.ListMachinesByAddressParams{
				Address: address.String(), NotOf: string(c.work.Subject.Provider),
			})
			if err != nil {
				return err
			}
			for _, m := range there {
				if !slices.Contains(apart, fleet.MachineID(m.Machine)) {
					return fmt.Errorf("%s is the address of machine %s of provider %s: %w", address, m.Machine, m.Provider, ErrTaken)
				}
			}
			return nil
		},
	}
}

// OpenIntents opens as many of the intents, in their order, as maxMachines (0: no limit) allows,
// counting the machines of the provider and its open intents, and makes their machines. Capacity
// that has an open intent is skipped. Those that were opened are returned. ErrPaused.
func OpenIntents(maxMachines int, intents []NewIntent, into *[]fleet.Intent) Change {
	return Change{
		apply: func(ctx context.Context, t *transaction, c *commit) error {
			*into = nil
			if err := c.unpaused(); err != nil {
				return err
			}
			p, err := t.q.GetProvider(ctx, string(c.work.Subject.Provider))
			if err != nil {
				return err
			}
			for _, n := range intents {
				if maxMachines > 0 && p.Machines+int64(len(*into)) >= int64(maxMachines) {
					break
				}
				open, err := t.q.GetIntentByCapacity(ctx, statement.GetIntentByCapacityParams{
					Provider: string(c.work.Subject.Provider), Capacity: string(n.Capacity),
				})
				if err != nil {
					return err
				}
				if len(open) > 0 {
					continue
				}
				i, err := t.openIntent(ctx, c, n)
				if err != nil {
					return err
				}
				*into = append(*into, i)
				c.touch(n.Machine)
			}
			return t.addMachines(ctx, c.work.Subject.Provider, len(*into))
		},
		answers: true,
	}
}

func (t *transaction) addMachines(ctx context.Context, provider fleet.ProviderName, n int) error {
	if n == 0 {
		return nil
	}
	return t.q.AddMachines(ctx, statement.AddMachinesParams{Added: int64(n), Name: string(provider)})
}

func (t *transaction) openIntent(ctx context.Context, c *commit, n NewIntent) (fleet.Intent, error) {
	now, provider := t.Now(), c.work.Subject.Provider
	if err := t.insertMachine(ctx, n.Machine, provider); err != nil {
		return fleet.Intent{}, err
	}
	err := t.q.InsertIntent(ctx, statement.InsertIntentParams{
		Machine: string(n.Machine), Provider: string(provider), Capacity: string(n.Capacity), Token: string(n.Token),
		OpenedAt: micros(now), PlannedAt: micros(n.PlannedAt),
		ConfiguredAt: micros(n.ConfiguredAt),
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
	c.addHistory(t, n.Machine, fleet.EventIntentOpened, fmt.Sprintf("capacity %s, token %s", n.Capacity, n.Token))
	return fleet.Intent{
		Machine: n.Machine, Provider: provider, Capacity: n.Capacity, Token: n.Token, OpenedAt: now, PlannedAt: n.PlannedAt,
	}, nil
}

// Configured is what a provider's configuration asks for on the machines that are created there.
type Configured struct {
	// Actor stands for the configuration.
	Actor string
	// Install is what they are to run; nil: nothing is asked for.
	Install *fleet.InstallRequest
	// ReadAt is the database time when the configuration was read; zero: now.
	ReadAt time.Time
}

// readBefore reports whether the configuration was read before an instant.
func (c Configured) readBefore(at int64) bool {
	return !c.ReadAt.IsZero() && instant(at).After(c.ReadAt)
}

// InstallAsConfigured goes before CloseIntentProvided. The configuration may have changed since the
// intent was opened: the machine is to run what it asks for now, in place of what it asked for
// then. What a person has asked for or called off stays. It changes nothing without an open intent,
// nor one that was opened by a configuration that was read later than this one was.
func InstallAsConfigured(machine fleet.MachineID, configured Configured) Change {
	return Change{
		machines: []fleet.MachineID{machine},
		apply: func(ctx context.Context, t *transaction, c *commit) error {
			i, err := t.q.GetIntent(ctx, string(machine))
			if absent(err) || err == nil && configured.readBefore(cmp.Or(i.ConfiguredAt, i.OpenedAt)) {
				return nil
			}
			if err != nil {
				return err
			}
			return t.wantAsConfigured(ctx, c, machine, configured)
		},
	}
}

// wantAsConfigured is for a machine on which no install can have begun.
func (t *transaction) wantAsConfigured(ctx context.Context, c *commit, machine fleet.MachineID, configured Configured) error {
	m, err := t.load(ctx, machine)
	if err != nil {
		return err
	}
	was := m.facts.InstallRequest
	if was == nil && configured.Install == nil ||
		was != nil && (was.Generation != 1 || was.Actor != configured.Actor || m.facts.InstallCalledOff(1)) {
		return nil
	}
	return t.installAsConfigured(ctx, c, m.facts, configured.Install)
}

func (t *transaction) installAsConfigured(ctx context.Context, c *commit, r fleet.Record, install *fleet.InstallRequest) error {
	if install == nil {
		c.addHistory(t, r.ID, fleet.EventInstallCancelled, "the configuration of the provider asks for none any more")
		c.touch(r.ID)
		return t.q.DropInstallRequest(ctx, string(r.ID))
	}
	if r.InstallRequest != nil {
		if same, err := t.sameInstall(ctx, r, *install); same || err != nil {
			return err
		}
	}
	request := *install
	request.Generation = 1
	c.addHistory(t, r.ID, fleet.EventInstallRequested, fmt.Sprintf("the configuration of the provider has changed: %s (%s)",
		request.Image.Label(), request.Image.Identity()))
	c.touch(r.ID)
	return t.putInstallRequest(ctx, r.ID, request)
}

// putInstallRequest writes the request as of now.
func (t *transaction) putInstallRequest(ctx context.Context, machine fleet.MachineID, r fleet.InstallRequest) error {
	image, err := json.Marshal(r.Image)
	if err != nil {
		return err
	}
	disk, err := json.Marshal(r.RootDisk)
	if err != nil {
		return err
	}
	seenUp, err := seenUpText(r.SeenUp)
	if err != nil {
		return err
	}
	data := r.FirstBootData
	if data == nil {
		data = []byte{}
	}
	return t.q.PutInstallRequest(ctx, statement.PutInstallRequestParams{
		Machine: string(machine), Generation: int64(r.Generation), At: micros(t.Now()), Actor: r.Actor, Image: string(image),
		RootDisk: string(disk), FirstBootData: data, SeenUp: seenUp,
	})
}

// onIntent is a change of one open intent. KindConflict when none is open.
func onIntent(machine fleet.MachineID,
	do func(ctx context.Context, t *transaction, c *commit, i statement.Intent) error,
) Change {
	return Change{
		machines: []fleet.MachineID{machine},
		apply: func(ctx context.Context, t *transaction, c *commit) error {
			i, err := t.q.GetIntent(ctx, string(machine))
			if absent(err) || err == nil && i.Provider != string(c.work.Subject.Provider) {
				return fleet.Errorf(fleet.KindConflict, "machine %s has no open intent at %s", machine, c.work.Subject.Provider)
			}
			if err != nil {
				return err
			}
			c.touch(machine)
			return do(ctx, t, c, i)
		},
	}
}

// IntentCalled is committed before a call that could create something. ErrPaused: the call is not
// to be made. So none is begun after a person was told that the provider is paused (rule 8).
func IntentCalled(machine fleet.MachineID) Change {
	return onIntent(machine, func(ctx context.Context, t *transaction, c *commit, i statement.Intent) error {
		if err := c.unpaused(); err != nil {
			return err
		}
		i.CalledAt = micros(t.Now())
		if i.Calls == 0 {
			if err := t.q.CallToken(ctx, statement.CallTokenParams{CalledAt: i.CalledAt, Token: i.Token}); err != nil {
				return err
			}
		}
		err := t.q.SetIntentCalls(ctx, statement.SetIntentCallsParams{
			Machine: i.Machine, CalledAt: i.CalledAt, Calls: i.Calls + 1, Rejected: i.Rejected,
		})
		if err != nil {
			return err
		}
		c.addHistory(t, machine, fleet.EventProviderAsked, fmt.Sprintf("call %d for capacity %s", i.Calls+1, i.Capacity))
		return nil
	})
}

// IntentAnswered is committed after a definite rejection of such a call. before is when the last
// call was made, before this one, that is not answered; it counts where there is one. KindConflict
// when no call is open.
func IntentAnswered(machine fleet.MachineID, before *time.Time) Change {
	return onIntent(machine, func(ctx context.Context, t *transaction, c *commit, i statement.Intent) error {
		if i.Rejected >= i.Calls {
			return fleet.Errorf(fleet.KindConflict, "no call for machine %s is open", machine)
		}
		if before != nil && i.Rejected+1 < i.Calls {
			i.CalledAt = micros(*before)
		}
		err := t.q.SetIntentCalls(ctx, statement.SetIntentCallsParams{
			Machine: i.Machine, CalledAt: i.CalledAt, Calls: i.Calls, Rejected: i.Rejected + 1,
		})
		if err != nil {
			return err
		}
		c.addHistory(t, machine, fleet.EventProviderRefused, fmt.Sprintf("call %d of %d for capacity %s", i.Rejected+1, i.Calls, i.Capacity))
		return nil
	})
}

// CloseIntentProvided closes an intent on the device that carries its token: the machine gets its
// provider ID and its first fact. Closing it once more in the same way changes nothing.
func CloseIntentProvided(machine fleet.MachineID, id fleet.ProviderID, p fleet.Provided) Change {
	ch := onIntent(machine, func(ctx context.Context, t *transaction, c *commit, i statement.Intent) error {
		if err := t.closeIntent(ctx, i, outcomeProvided); err != nil {
			return err
		}
		c.addHistory(t, machine, fleet.EventCreated, fmt.Sprintf("%s on capacity %s", id, i.Capacity))
		return t.setProvided(ctx, c, machine, id, p)
	})
	first := ch.apply
	ch.apply = func(ctx context.Context, t *transaction, c *commit) error {
		m, err := t.row(ctx, machine)
		if err != nil && fleet.KindOf(err) != fleet.KindNotFound {
			return err
		}
		if err == nil && m.IntentOpenedAt == 0 && m.ProviderID == string(id) {
			return t.setProvided(ctx, c, machine, id, p)
		}
		return first(ctx, t, c)
	}
	return ch
}

func (t *transaction) closeIntent(ctx context.Context, i statement.Intent, outcome string) error {
	if err := t.q.DeleteIntent(ctx, i.Machine); err != nil {
		return err
	}
	return t.q.CloseToken(ctx, statement.CloseTokenParams{Token: i.Token, ClosedAt: micros(t.Now()), Outcome: outcome})
}

// CloseIntentRejected closes an intent all of whose calls were definitely rejected; KindConflict
// otherwise. The machine's row goes, its history and its token stay.
func CloseIntentRejected(machine fleet.MachineID, cause string) Change {
	return onIntent(machine, func(ctx context.Context, t *transaction, c *commit, i statement.Intent) error {
		if i.Calls != i.Rejected {
			return fleet.Errorf(fleet.KindConflict, "%d of %d calls for machine %s are not rejected: its intent stays open", i.Calls-i.Rejected,
				i.Calls, machine)
		}
		return t.giveUpIntent(ctx, c, i, outcomeRejected, cause)
	})
}

// CloseIntentOtherOwner closes an intent whose capacity another owner has, as confirmed by two
// complete lists after the settling time, which is the caller's duty. The machine's row goes, its
// history and its token stay.
func CloseIntentOtherOwner(machine fleet.MachineID, evidence string) Change {
	return onIntent(machine, func(ctx context.Context, t *transaction, c *commit, i statement.Intent) error {
		return t.giveUpIntent(ctx, c, i, outcomeOtherOwner, evidence)
	})
}

// CloseIntentNothingMade closes an intent that has an unanswered call, and whose capacity is given
// up. After the settling time no machine carries the token, which is the caller's duty. The
// machine's row goes, its history and its token stay.
func CloseIntentNothingMade(machine fleet.MachineID, evidence string) Change {
	return onIntent(machine, func(ctx context.Context, t *transaction, c *commit, i statement.Intent) error {
		return t.giveUpIntent(ctx, c, i, outcomeRejected, evidence)
	})
}

func (t *transaction) giveUpIntent(ctx context.Context, c *commit, i statement.Intent, outcome, why string) error {
	if err := t.closeIntent(ctx, i, outcome); err != nil {
		return err
	}
	m, err := t.load(ctx, fleet.MachineID(i.Machine))
	if err != nil {
		return err
	}
	if err := t.removeMachine(ctx, m); err != nil {
		return err
	}
	c.addHistory(t, fleet.MachineID(i.Machine), fleet.EventIntentClosed, outcome+": "+why)
	return nil
}

// SetPenalty keeps a piece of capacity from being used for as long as it says.
func SetPenalty(capacity fleet.CapacityID, until time.Duration, cause string) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		provider := string(c.work.Subject.Provider)
		if err := t.q.DeletePastPenalties(ctx, statement.DeletePastPenaltiesParams{Provider: provider, Now: micros(t.Now())}); err != nil {
			return err
		}
		at := t.Now().Add(until)
		made, err := t.q.PutPenalty(ctx, statement.PutPenaltyParams{Provider: provider, Capacity: string(capacity), Until: micros(at), Cause: cause})
		if err != nil || made == 0 { // a longer one is there
			return err
		}
		c.addHistory(t, "", fleet.EventPenalty, fmt.Sprintf("capacity %s until %s: %s", capacity, fleet.Instant(at), cause))
		return nil
	}}
}

// UnusableNamed is how many entries that are left alone the result of a pass names. One more line
// says how many more there are.
const UnusableNamed = 100

// SetPassResult sets what is shown of the provider's last pass: a clause, and then a line for each
// entry of its list that is left alone, as far as to UnusableNamed.
func SetPassResult(summary string) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		return t.q.SetPassResult(ctx, statement.SetPassResultParams{Result: summary, Name: string(c.work.Subject.Provider)})
	}}
}

// FailPass is SetPassResult of a pass that has failed before it knew which entries are left alone:
// those of the pass before it still are.
func FailPass(summary string) Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		p, err := t.q.GetProvider(ctx, string(c.work.Subject.Provider))
		if err != nil {
			return err
		}
		_, entries, _ := strings.Cut(p.PassResult, "\n")
		return t.q.SetPassResult(ctx, statement.SetPassResultParams{Result: strings.TrimSuffix(summary+"\n"+entries, "\n"), Name: p.Name})
	}}
}
