package provisioner

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// survey is what follows from one list of the provider and one view of the BMDB.
type survey struct {
	// used counts the machines in the list, known those that the BMDB expects there.
	used, known int
	// free is capacity that a machine can be created on, in the order of the IDs. penalized counts
	// what would be free but for a penalty.
	free      []fleet.CapacityID
	penalized int
	// keptOut is capacity that only a person lets be used again, with who took it out. keptOutAt are
	// hosts that have the address of such capacity, with that in words.
	keptOut, keptOutAt []string

	// found are open intents whose machine is in the list.
	found []sighting
	// retry are open intents whose capacity is still free.
	retry []fleet.Intent
	// held are such intents that have an unanswered call and are beyond max_machines: they are looked
	// for, and not tried again.
	held []fleet.Intent
	// futile are open intents that are not to become machines: no call is unanswered, and the capacity
	// is not free, or max_machines allows no more.
	futile []finding
	// contested are open intents with an unanswered call whose capacity is not free.
	contested []finding
	// adopt are machines with a token that was closed. released are those whose token is of a machine
	// that was given back: the list lags, or the provider has it still.
	adopt, released []sighting
	// failedCapacity is the capacity of machines that the provider gave up, where it has no penalty
	// yet.
	failedCapacity []fleet.CapacityID

	// unknown are used machines that the BMDB does not know. duplicate are those that carry the token
	// of a machine which is another one.
	unknown   []provider.Entry
	duplicate []sighting
	// forgotten are those of the unknown whose machine was forgotten while the provider had it.
	forgotten map[fleet.ProviderID]fleet.MachineID
	// failed are machines that the provider gave up and that are not known here. Nothing here removes
	// them, and each holds its capacity until somebody does.
	failed []provider.Entry
	// missing are machines that the list should have and does not. gone are machines that are not in
	// the list, and of which the provider has said that it does not have them. back are those of
	// which it has said so and that are in the list again.
	missing, gone, back []bmdb.ProviderMachine

	// elsewhere are entries that are machines already, of another provider or under another ID.
	elsewhere []otherMachine

	// unusable are the reasons why entries are left alone.
	unusable []string
}

// sighting is an entry that carries a token of ours.
type sighting struct {
	token   fleet.Token
	machine fleet.MachineID
	entry   provider.Entry
}

// finding is an open intent and what was found about it.
type finding struct {
	intent   fleet.Intent
	evidence string
}

// surveyor is one run of takeSurvey.
type surveyor struct {
	survey
	settling time.Duration
	view     bmdb.ProviderView
	closed   map[fleet.Token]bmdb.ClosedToken

	machines   map[fleet.ProviderID]bmdb.ProviderMachine
	byID       map[fleet.MachineID]bmdb.ProviderMachine
	byCapacity map[fleet.CapacityID]bool
	intents    map[fleet.CapacityID]fleet.Intent
	byToken    map[fleet.Token]fleet.Intent

	listed map[fleet.ProviderID]bool
	// accounted are the machines of intents and tokens that an entry of the list explains.
	accounted map[fleet.MachineID]bool
	// occupied is who has a piece of capacity, in words.
	occupied map[fleet.CapacityID]string
}

// takeSurvey surveys a list. The error is of kind Invalid: the availability of an entry is not
// known here, so nothing in the list can be relied on. closed are the tokens of unexplained that
// are of intents which are not open any more, with their machines.
func takeSurvey(
	entries []provider.Entry, view bmdb.ProviderView, closed map[fleet.Token]bmdb.ClosedToken, settling time.Duration,
) (survey, error) {
	s := newSurveyor(view, settling)
	s.closed, s.forgotten = closed, make(map[fleet.ProviderID]fleet.MachineID)
	var unused []provider.Entry
	for _, entry := range entries {
		used, err := s.isUsed(entry)
		switch {
		case err != nil:
			return survey{}, err
		case used:
			s.takeUsed(entry)
		default:
			unused = append(unused, entry)
		}
	}
	for _, entry := range unused { // afterwards: where an entry says that capacity is used, it is
		s.takeUnused(entry)
	}
	s.takeIntents()
	s.takeMissing()
	slices.Sort(s.free)
	return s.survey, nil
}

// unexplained returns the tokens that the entries carry which are not of machines that the BMDB
// knows by their IDs: the BMDB is asked what became of those, and not what became of all tokens
// that there ever were.
func unexplained(entries []provider.Entry, view bmdb.ProviderView) (tokens []fleet.Token) {
	known := make(map[fleet.ProviderID]bool, len(view.Machines))
	for _, m := range view.Machines {
		known[m.ProviderID] = true
	}
	for _, entry := range entries {
		if !known[entry.ID] {
			tokens = append(tokens, entry.Tokens...)
		}
	}
	return tokens
}

func newSurveyor(view bmdb.ProviderView, settling time.Duration) *surveyor {
	s := &surveyor{
		settling: settling, view: view,
		machines:   make(map[fleet.ProviderID]bmdb.ProviderMachine, len(view.Machines)),
		byID:       make(map[fleet.MachineID]bmdb.ProviderMachine, len(view.Machines)),
		byCapacity: make(map[fleet.CapacityID]bool, len(view.Machines)),
		intents:    make(map[fleet.CapacityID]fleet.Intent, len(view.Intents)),
		byToken:    make(map[fleet.Token]fleet.Intent, len(view.Intents)),
		listed:     make(map[fleet.ProviderID]bool),
		accounted:  make(map[fleet.MachineID]bool),
		occupied:   make(map[fleet.CapacityID]string),
	}
	for _, m := range view.Machines {
		s.byID[m.ID] = m
		if m.ProviderID != "" {
			s.machines[m.ProviderID] = m
		}
		if m.Provided != nil && m.Provided.Capacity != "" {
			s.byCapacity[m.Provided.Capacity] = true
		}
	}
	for _, intent := range view.Intents {
		s.intents[intent.Capacity] = intent
		s.byToken[intent.Token] = intent
	}
	return s
}

// isUsed resolves the availability of an entry.
func (s *surveyor) isUsed(entry provider.Entry) (bool, error) {
	switch entry.Availability {
	case fleet.AvailabilityKnownUsed:
		return true, nil
	case fleet.AvailabilityKnownUnused:
		return false, nil
	case fleet.AvailabilityPossiblyUsed:
		_, known := s.machines[entry.ID]
		return known && entry.ID != "", nil
	}
	return false, fleet.Errorf(fleet.KindInvalid, "the provider lists %q with the availability %.40q, which is not known here",
		cmp.Or(string(entry.ID), string(entry.Capacity)), entry.Availability)
}

// takeUsed takes in an entry of a used machine. One that is young and carries no token is left for
// a later pass. A token that this database does not know excuses nothing: the view is older than
// the list, but no other process opens intents while this one has the pass, and an intent is there
// before the call. So the machine is of another database, or of what this one has lost.
func (s *surveyor) takeUsed(entry provider.Entry) {
	s.used++
	s.listed[entry.ID] = true
	if entry.Capacity != "" {
		s.occupied[entry.Capacity] = string(entry.ID)
	}
	if entry.Invalid != "" {
		s.unusable = append(s.unusable, entry.Invalid)
		return
	}
	if _, known := s.machines[entry.ID]; known {
		s.penalize(entry)
		return
	}
	if entry.ID == "" || s.takeToken(entry) {
		return
	}
	_, intended := s.intents[entry.Capacity]
	switch {
	case intended && entry.Capacity != "": // takeIntents tells it
	case len(entry.Tokens) == 0 && provider.Young(entry.CreatedAt, s.view.Now, s.settling):
	case ending(entry):
		s.leaveFailed(entry)
	default:
		s.unknown = append(s.unknown, entry)
	}
}

// takeToken reports whether the entry carries a token that explains it.
func (s *surveyor) takeToken(entry provider.Entry) bool {
	for _, token := range entry.Tokens {
		if intent, open := s.byToken[token]; open {
			seen := sighting{token, intent.Machine, entry}
			if s.accounted[intent.Machine] {
				if ending(entry) {
					s.leaveFailed(entry)
				} else {
					s.duplicate = append(s.duplicate, seen)
				}
				return true
			}
			s.accounted[intent.Machine] = true
			s.found = append(s.found, seen)
			return true
		}
		was, closed := s.closed[token]
		if closed && was.Forgotten {
			s.forgotten[entry.ID] = was.Machine
		}
		if !closed || was.Forgotten {
			continue
		}
		machine := was.Machine
		seen := sighting{token, machine, entry}
		other, exists := s.byID[machine]
		switch {
		case ending(entry):
			s.leaveFailed(entry)
		case was.Released:
			s.released = append(s.released, seen)
		case exists && other.ProviderID != "" || s.accounted[machine]:
			s.duplicate = append(s.duplicate, seen)
		default:
			s.accounted[machine] = true
			s.adopt = append(s.adopt, seen)
		}
		return true
	}
	return false
}

// leaveFailed takes in a machine that the provider gave up and that the BMDB does not know as
// one of its machines. A young one may go by itself.
func (s *surveyor) leaveFailed(entry provider.Entry) {
	if entry.Status != fleet.ProviderStatusFailed || provider.Young(entry.CreatedAt, s.view.Now, s.settling) {
		return
	}
	s.failed = append(s.failed, entry)
}

// penalize notes the capacity of a machine that the provider gave up.
func (s *surveyor) penalize(entry provider.Entry) {
	if entry.Status == fleet.ProviderStatusFailed && entry.Capacity != "" && !s.hasPenalty(entry.Capacity) {
		s.failedCapacity = append(s.failedCapacity, entry.Capacity)
	}
}

func (s *surveyor) hasPenalty(capacity fleet.CapacityID) bool {
	penalty, ok := s.view.Penalties[capacity]
	return ok && penalty.Until.After(s.view.Now)
}

func (s *surveyor) takeUnused(entry provider.Entry) {
	intent, intended := s.intents[entry.Capacity]
	switch {
	case entry.Invalid != "":
		s.unusable = append(s.unusable, entry.Invalid)
		if intended { // the entry says nothing that can be used, so the intent stays as it is
			s.accounted[intent.Machine] = true
		}
	case entry.Capacity == "":
		s.unusable = append(s.unusable, "a free entry has no capacity ID")
	case s.occupied[entry.Capacity] != "" || s.byCapacity[entry.Capacity]:
		// A machine has it, whatever this entry says: lists lag.
	case intended:
		if !s.accounted[intent.Machine] {
			s.accounted[intent.Machine] = true
			s.retry = append(s.retry, intent)
		}
	case s.hasPenalty(entry.Capacity) && s.view.Penalties[entry.Capacity].ForEver():
		s.keptOut = append(s.keptOut, fmt.Sprintf("%s by %s", entry.Capacity, s.view.Penalties[entry.Capacity].Cause))
	case s.hasPenalty(entry.Capacity):
		s.penalized++
	default:
		// A second entry of the same capacity is no second candidate.
		s.occupied[entry.Capacity] = "a candidate"
		s.free = append(s.free, entry.Capacity)
	}
}

// takeIntents sorts the open intents that no entry of the list accounts for.
func (s *surveyor) takeIntents() {
	slices.SortFunc(s.retry, func(a, b fleet.Intent) int { return cmp.Compare(a.Capacity, b.Capacity) })
	for _, intent := range s.view.Intents {
		if s.accounted[intent.Machine] {
			continue
		}
		evidence := fmt.Sprintf("capacity %s is not in the list", intent.Capacity)
		if owner := s.occupied[intent.Capacity]; owner != "" {
			evidence = fmt.Sprintf("capacity %s is held by %s, which does not carry our token", intent.Capacity, owner)
		}
		if intent.Calls > intent.Rejected {
			s.contested = append(s.contested, finding{intent, evidence})
		} else {
			s.futile = append(s.futile, finding{intent, evidence})
		}
	}
}

// cut takes open intents that are beyond max_machines, which may have been lowered since they were
// opened, from those that are tried again: the newest first. It gives up those without an
// unanswered call. Where these are too few, it holds others: each stays open, because it may have
// become a machine.
func (s *survey) cut(view bmdb.ProviderView, limit int) {
	beyond := len(view.Machines) + len(view.Intents) - len(s.futile) - limit
	if limit == 0 || beyond <= 0 {
		return
	}
	newest := slices.SortedFunc(slices.Values(s.retry), func(a, b fleet.Intent) int {
		return cmp.Or(b.OpenedAt.Compare(a.OpenedAt), cmp.Compare(b.Capacity, a.Capacity))
	})
	cut := make(map[fleet.MachineID]bool)
	for _, intent := range newest {
		if len(cut) < beyond && intent.Calls == intent.Rejected {
			cut[intent.Machine] = true
			s.futile = append(s.futile, finding{intent, fmt.Sprintf("there may be %d machines at most (max_machines)", limit)})
		}
	}
	for _, intent := range newest {
		if len(cut) < beyond && !cut[intent.Machine] {
			cut[intent.Machine] = true
			s.held = append(s.held, intent)
		}
	}
	s.retry = slices.DeleteFunc(s.retry, func(intent fleet.Intent) bool { return cut[intent.Machine] })
}

// takeMissing finds the machines that the list should have. Of those that it need not have any more
// the updater asks what became of them.
func (s *surveyor) takeMissing() {
	for _, m := range s.view.Machines {
		if m.ProviderID == "" || m.Provided == nil {
			continue
		}
		is := provider.PresenceOf(*m.Provided, s.listed[m.ProviderID], m.Releasing, s.view.Now, s.settling)
		if is.Expected() {
			s.known++
		}
		switch is {
		case provider.PresenceBack:
			s.back = append(s.back, m)
		case provider.PresenceGone:
			s.gone = append(s.gone, m)
		case provider.PresenceMissing:
			s.missing = append(s.missing, m)
		case provider.PresenceListed, provider.PresenceLeft, provider.PresenceExcused:
		}
	}
}

// ending reports whether an entry goes away by itself, or waits for somebody to remove it. It is no
// discrepancy.
func ending(entry provider.Entry) bool {
	switch entry.Status {
	case fleet.ProviderStatusFailed, fleet.ProviderStatusDeleting, fleet.ProviderStatusGone:
		return true
	}
	return false
}
