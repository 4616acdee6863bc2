package provider

import (
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Presence is what a list says of a machine that the BMDB knows. A list lags, so that only the
// provider's answer, when it is asked for the machine by its ID, makes one gone or brings it back.
// A list of hosts does not lag: a host is back when that list has it.
type Presence string

const (
	// PresenceListed: the list has it.
	PresenceListed Presence = "listed"
	// PresenceMissing: the list should have it, and has not.
	PresenceMissing Presence = "missing"
	// PresenceLeft: the list does not have it, and need not, because the provider was deleting it or
	// had given it up. Only the provider's answer says whether it is gone.
	PresenceLeft Presence = "left"
	// PresenceExcused: nothing follows from what the list says. It is being given back, and whoever
	// asked for that says what became of it; or it is so young that a list may not have it yet.
	PresenceExcused Presence = "excused"
	// PresenceGone: it is gone, and the list does not have it.
	PresenceGone Presence = "gone"
	// PresenceBack: it is gone, and the list has it.
	PresenceBack Presence = "back"
)

// PresenceOf returns what it says of a machine that a list has it, or has it not. releasing is true
// while the provider may have been asked to take it back; settling is how long lists may lag.
func PresenceOf(fact fleet.Provided, listed, releasing bool, now time.Time, settling time.Duration) Presence {
	switch status := fact.Status; {
	case releasing && (!listed || status == fleet.ProviderStatusGone):
		return PresenceExcused
	case status == fleet.ProviderStatusGone && listed:
		return PresenceBack
	case status == fleet.ProviderStatusGone:
		return PresenceGone
	case listed:
		return PresenceListed
	case Young(fact.CreatedAt, now, settling):
		return PresenceExcused
	case status == fleet.ProviderStatusFailed, status == fleet.ProviderStatusDeleting:
		return PresenceLeft
	}
	return PresenceMissing
}

// Expected reports whether the list should have the machine: it counts as known for SuddenLoss.
func (p Presence) Expected() bool { return p == PresenceListed || p == PresenceMissing }

// Young reports whether something was created so recently that a list may not have it right. A time
// that nobody knows, or one in the far future, says nothing.
func Young(created, now time.Time, settling time.Duration) bool {
	age := now.Sub(created)
	return age < settling && age > -settling
}

// SuddenLoss reports whether so many of the machines that a list should have are missing from it
// that the list must be wrong: at least three, and more than half.
func SuddenLoss(known, missing int) bool { return missing >= 3 && 2*missing > known }
