// Package provider is the contract between Ironherd and the sources of its machines, and the shared
// client layer that every HTTP provider is built on: pacing, retry, budgets, metrics.
//
// A provider lists, gets and creates. Capability interfaces say what more it can do. It promises:
//
//   - It is safe for concurrent use, obeys its context everywhere, and keeps no state that a
//     restart would miss.
//   - It does no database work. It reports facts, and the loops record them.
//   - A list has everything or fails; it is never partial.
//   - Every error is of a kind of package fleet. It is KindNotFound only when the provider itself
//     said so about that very thing. What it does not understand is KindUnknown, so that nothing is
//     taken for gone that is not.
//   - A failed call returns no value besides its error.
//
// Package providertest is the suite that every kind of provider passes. Package builtin is the
// table of the kinds.
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

	// List returns every entry that is a machine or could become one, used or free, each once, in the
	// order of their IDs (CompareEntries).
	List(ctx context.Context) ([]Entry, error)

	// ListMachines returns the entries of List that have an ID, in the same order. It may cost fewer
	// calls, as it leaves free capacity aside.
	ListMachines(ctx context.Context) ([]Entry, error)

	// Get returns the machine of that ID with everything that List says of it. Where the provider says
	// more in answer to a direct question (address, host keys), Get returns that, too. KindNotFound:
	// the provider is certain that it does not have the machine.
	Get(ctx context.Context, id fleet.ProviderID) (Entry, error)

	// Create turns one named piece of capacity into a machine, once per token. The token travels with
	// the request; when a machine carries it already, Create returns that machine and makes no second
	// one. Create makes at most one call that could create something. When it fails, MayHaveCreated
	// tells whether the outcome of that call is open.
	//
	// Kinds: RaceLost (another owner has the capacity), NoCapacity, Conflict (the capacity is not free
	// now), Invalid, Temporary, Throttled, Timeout. ConcernsCapacity tells whether a failure before
	// the call is about that piece of capacity; a failure of what all creations need is not.
	Create(ctx context.Context, request CreateRequest) (Entry, error)

	// FindByToken returns the machine that carries the token. It asks the capacity first and then
	// looks through the whole list. KindNotFound: it looked through everything and found none. That is
	// evidence, not proof, because the request may still be on its way.
	FindByToken(ctx context.Context, capacity fleet.CapacityID, token fleet.Token) (Entry, error)
}

// The capabilities. Each call returns when the provider has accepted the request; what it leads to
// happens later, and only evidence from the machine or from Get tells that it did. A request may be
// repeated: what is so already is no error. KindNotFound: the provider is certain that it does not
// have the machine. KindConflict: the machine cannot be brought to that from the state in which it
// is now. A call whose error is KindTemporary or KindTimeout may have had its effect.

// Rebooter can restart a machine from outside. Only a changed boot ID tells that the machine came
// back.
type Rebooter interface {
	Reboot(ctx context.Context, id fleet.ProviderID) error
}

// Powerer can turn a machine off and on. PowerOn of a machine that is on, and PowerOff of one that
// is off, succeed and do nothing.
type Powerer interface {
	PowerOn(ctx context.Context, id fleet.ProviderID) error
	PowerOff(ctx context.Context, id fleet.ProviderID) error
	// PowerCycle turns a machine off, and on again. A provider without a cycle of its own turns it
	// off, waits until it is off, and turns it on. Then the context bounds the wait, and an error may
	// leave the machine off; PowerOn, or another PowerCycle, finishes what was begun. An error that
	// says that nothing was done (Throttled, Unauthenticated, Forbidden, InUse) is none of a cycle
	// that was begun: it is Temporary then.
	PowerCycle(ctx context.Context, id fleet.ProviderID) error
}

// Reinstaller can put the provider's own operating system on a machine again. That destroys what is
// on its disks, and the machine gets new host keys.
type Reinstaller interface {
	Reinstall(ctx context.Context, id fleet.ProviderID) error
}

// Releaser can give a machine back. Releasing what is gone succeeds.
type Releaser interface {
	Release(ctx context.Context, id fleet.ProviderID) error
}

// Keeper is a provider whose machines stay where they are when they are given back, such as the
// hosts of a list. They are left clean instead. A Keeper is no Releaser.
type Keeper interface {
	// KeepsMachines reports whether they stay.
	KeepsMachines() bool
}

// Levers returns what a provider can do to its machines, in the order in which levers are listed. A
// Keeper's machines can be given back, too, and are left clean.
func Levers(p Provider) []fleet.Lever {
	var levers []fleet.Lever
	if _, ok := p.(Rebooter); ok {
		levers = append(levers, fleet.LeverReboot)
	}
	if _, ok := p.(Powerer); ok {
		levers = append(levers, fleet.LeverPower)
	}
	if _, ok := p.(Reinstaller); ok {
		levers = append(levers, fleet.LeverReinstall)
	}
	if _, ok := p.(Releaser); ok || Keeps(p) {
		levers = append(levers, fleet.LeverRelease)
	}
	if Keeps(p) {
		levers = append(levers, fleet.LeverClean)
	}
	return levers
}

// Keeps reports whether the provider is a Keeper.
func Keeps(p Provider) bool {
	keeper, ok := p.(Keeper)
	return ok && keeper.KeepsMachines()
}

// Paced is a provider whose calls are limited.
type Paced interface {
	// Pacing says how they are, in one clause.
	Pacing() string
}

// Injector is a provider that can put a host key into the machines that it creates.
type Injector interface {
	// InjectsHostKey reports whether Create does so with CreateRequest.HostKey.
	InjectsHostKey() bool
}

// CreateRequest is what Create needs.
type CreateRequest struct {
	// Capacity is the entry's capacity ID; never empty, never a wildcard.
	Capacity fleet.CapacityID
	Token    fleet.Token
	// Machine is the ID under which the machine will be known; providers may derive a host name from
	// it.
	Machine fleet.MachineID
	// HostKey is to be the only SSH host key of the machine, until something else is installed on it.
	// Its zero value asks for none. Providers that are no Injector leave it aside.
	HostKey HostKey
	// BeforeCall is called in front of each call that could create something. An error from it stops
	// Create before the call, and one of PutOff for a while only: then it is called again. The
	// provisioner records here that the call is about to be made.
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
	// Labels are those that somebody gave the machine, each as fleet.NewLabel returns it, in order.
	Labels []string
	// Tokens are the creation tokens that the machine carries: everything that has the form of
	// fleet.Token, whoever made it.
	Tokens []fleet.Token
	// HostKeys are host keys that the provider attests, in authorized_keys form.
	HostKeys []string
	// InjectedKey is the host key that Create has put into the machine, in authorized_keys form: the
	// provider's own operating system shows it after a reinstall, too. Only Get says it.
	InjectedKey string
	// Access says how the machine is reached over SSH, where that differs from other machines.
	Access Access
	// CreatedAt is the provider's time of creation; zero when it does not say.
	CreatedAt time.Time

	// Invalid says why this entry must not be used for anything, in one sentence; empty for a good
	// entry. It concerns this entry alone.
	Invalid string
}

// StaysHere reports whether the machine is this host: it is reached on loopback, and not from
// another one.
func (e Entry) StaysHere() bool {
	return e.Address.IsLoopback() && (e.Access.Jump == nil || e.Access.Jump.Address.Addr().IsLoopback())
}

// Access says how a machine is reached over SSH. What is zero is as for all machines.
type Access struct {
	Port uint16
	User string
	// Jump is a host that the connection goes through; nil: it goes directly.
	Jump *Jump
}

// Jump is a host that connections to machines go through.
type Jump struct {
	Address netip.AddrPort
	// User there; empty: as for all machines.
	User string
	// HostKey is the one key of that host, in authorized_keys form.
	HostKey string
}

// MayHaveCreated reports whether a failed Create may have created a machine. It has not when it
// failed before any call that could, or when the provider has definitely refused each such call.
func MayHaveCreated(err error) bool {
	switch fleet.KindOf(err) {
	case fleet.KindInvalid, fleet.KindConflict, fleet.KindNoCapacity, fleet.KindRaceLost, fleet.KindUnauthenticated,
		fleet.KindForbidden, fleet.KindUnsupported, fleet.KindNotFound, fleet.KindThrottled, fleet.KindLeaseLost:
		return false
	}
	return true
}
