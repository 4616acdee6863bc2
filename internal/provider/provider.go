// Package provider is the contract between Ironherd and the sources of its machines, and the shared
// client layer that every HTTP provider is built on: pacing, retry, budgets, metrics.
//
// A provider lists, gets and creates; what more it can do is said by capability interfaces. It
// promises:
//
//   - It is safe for concurrent use, obeys its context everywhere, and keeps no state that a
//     restart would miss.
//   - It does no database work: it reports, the loops record.
//   - List returns everything or fails; never a partial list.
//   - Every error is of a kind of package fleet. A kind of NotFound is returned only when the
//     provider itself said so about that very thing; whatever is not understood is KindUnknown, and
//     unknown never turns into gone.
//   - On failure no value is returned.
//
// Package providertest is the suite that every kind of provider passes.
package provider

import (
	"context"
	"net/netip"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Provider is the part of the contract that every kind of provider fulfils.
type Provider interface {
	// Kind names the kind of provider, such as "equinix" or "static".
	Kind() string

	// List returns every entry that could be or become a machine here: what is used and what is free,
	// in the order of their IDs, each once.
	List(ctx context.Context) ([]Entry, error)

	// Get returns the machine of that ID with everything that List says of it and, where the provider
	// has more to say in a direct question (address, host keys), that too. KindNotFound only when the
	// provider is certain.
	Get(ctx context.Context, id fleet.ProviderID) (Entry, error)

	// Create turns one named piece of capacity into a machine, once per token: the token travels with
	// the request, and a machine that carries it already is returned instead of a second one. It makes
	// at most one call that could create something. When it fails, MayHaveCreated tells whether that
	// call's outcome is open.
	//
	// Kinds: RaceLost (another owner has the capacity), NoCapacity, Conflict (the capacity is not free
	// now), Invalid, Temporary, Throttled, Timeout.
	Create(ctx context.Context, request CreateRequest) (Entry, error)

	// FindByToken returns the machine that carries the token, asking the capacity first and then the
	// whole list. KindNotFound when a complete look found none: the request may still be on its way,
	// so this is evidence, not proof.
	FindByToken(ctx context.Context, capacity fleet.CapacityID, token fleet.Token) (Entry, error)
}

// Rebooter can restart a machine from outside. The call returns when the request was accepted;
// whether the machine came back is known only from a changed boot ID.
type Rebooter interface {
	Reboot(ctx context.Context, id fleet.ProviderID) error
}

// Releaser can give a machine back. Releasing what is gone succeeds.
type Releaser interface {
	Release(ctx context.Context, id fleet.ProviderID) error
}

// CreateRequest is what Create needs.
type CreateRequest struct {
	// Capacity is the entry's capacity ID; never empty, never a wildcard.
	Capacity fleet.CapacityID
	Token    fleet.Token
	// Machine is the ID under which the machine will be known; providers may derive a host name from
	// it.
	Machine fleet.MachineID
	// BeforeCall is called before each call that could create something; an error from it stops Create
	// before the call. The provisioner commits the call to its intent here.
	BeforeCall func(ctx context.Context) error
}

// Entry is one thing in a provider's list: a machine, or a free piece of capacity.
type Entry struct {
	Availability fleet.Availability
	// ID of the machine; empty for free capacity. For a provider whose capacity is the machine (a host
	// list), equal to Capacity.
	ID fleet.ProviderID
	// Capacity that the machine occupies, or that is free; empty for a machine on no particular
	// capacity.
	Capacity fleet.CapacityID

	Status fleet.ProviderStatus
	// Detail is the provider's own word for the status, with progress where it reports some.
	Detail   string
	Hostname string
	// Address is the public IPv4 address, else the public IPv6 address; invalid while there is none.
	Address  netip.Addr
	Location string
	// Tokens are the creation tokens that the machine carries. Anything that looks like one of ours
	// (fleet.Token's form).
	Tokens []fleet.Token
	// HostKeys are host keys that the provider attests, in authorized_keys form.
	HostKeys []string
	// CreatedAt is the provider's time of creation; zero when it does not say.
	CreatedAt time.Time

	// Invalid says why this entry must not be used for anything, in one sentence; empty for a good
	// entry. It concerns this entry alone.
	Invalid string
}

// MayHaveCreated reports whether a failed Create has left a request whose outcome is not known:
// anything but a definite answer of the provider to the one call that was made, or a failure before
// it.
func MayHaveCreated(err error) bool {
	switch fleet.KindOf(err) {
	case fleet.KindInvalid, fleet.KindConflict, fleet.KindNoCapacity, fleet.KindRaceLost, fleet.KindUnauthenticated,
		fleet.KindForbidden, fleet.KindUnsupported, fleet.KindNotFound, fleet.KindThrottled, fleet.KindLeaseLost:
		return false
	}
	return true
}
