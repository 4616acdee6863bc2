package fleet

import "slices"

// State is what people are shown and filter by. It is computed from the facts by package lifecycle;
// nobody sets it.
type State string

// The states, in the order of a machine's way.
const (
	// StateCreating: an intent is open; the provider has not confirmed the machine yet.
	StateCreating State = "creating"
	// StateProvisioning: the provider is making the machine, or deleting it.
	StateProvisioning State = "provisioning"
	// StateProvided: the provider handed it over; no agent is in charge yet.
	StateProvided State = "provided"
	// StateStarted: the agent was started and has not spoken yet, or not since a maintenance, a
	// quarantine or a restart (or being switched on) before which it had fallen silent.
	StateStarted State = "agent-started"
	// StateAvailable: the agent speaks, the hardware is known, nothing more is wanted.
	StateAvailable State = "available"
	// StateInstalling: an install is wanted or under way.
	StateInstalling State = "installing"
	// StateBooting: the disk is written; the installed system has not been seen yet.
	StateBooting State = "booting"
	// StateInstalled: the installed system has been seen to come up.
	StateInstalled State = "installed"
	// StateReturning: a reinstall was called off before anything was written, when its agent had been
	// started. The installed system that the disk holds is not seen to be back yet.
	StateReturning State = "returning"
	// StateUnreachable: the installed system is watched, and does not answer. Or its provider says
	// that the machine is off, though nobody has switched it off. Or its provider has reinstalled the
	// machine for somebody else. It is left alone.
	StateUnreachable State = "unreachable"
	// StateSilent: the agent stopped speaking, or never spoke.
	StateSilent State = "silent"
	// StateFailed: the provider gave the machine up.
	StateFailed State = "failed"
	// StateMissing: the provider is certain that it does not have the machine.
	StateMissing State = "missing"
	// StateUnreadable: something that is recorded of the machine cannot be read; nothing is done to
	// it.
	StateUnreadable State = "unreadable"
	// StateRefused: the agent refused the install that is wanted, because of what a disk holds: an
	// install of this machine that is not older, or something that the request does not allow to be
	// erased. Or it is too old to understand the request. A person decides.
	StateRefused State = "refused"
	// StateOff: switched off by an operator; nothing is done until it is switched on.
	StateOff State = "off"
	// StateReleasing: it is being given back to its provider.
	StateReleasing State = "releasing"
	// StateMaintenance: an operator works on it; nothing touches the host.
	StateMaintenance State = "maintenance"
	// StateQuarantined: kept away from all work.
	StateQuarantined State = "quarantined"
)

// Moving says whether a machine in this state gets on without anybody's help.
func (s State) Moving() bool {
	switch s {
	case StateCreating, StateProvisioning, StateProvided, StateStarted, StateInstalling, StateBooting, StateReturning, StateReleasing:
		return true
	case StateAvailable, StateInstalled, StateUnreachable, StateSilent, StateFailed, StateMissing, StateUnreadable, StateRefused, StateOff,
		StateMaintenance, StateQuarantined:
	}
	return false
}

// Trouble says whether somebody should look at a machine in this state.
func (s State) Trouble() bool {
	switch s {
	case StateUnreachable, StateSilent, StateFailed, StateMissing, StateUnreadable, StateRefused, StateQuarantined:
		return true
	case StateCreating, StateProvisioning, StateProvided, StateStarted, StateAvailable, StateInstalling, StateBooting, StateInstalled, StateReturning,
		StateOff, StateReleasing, StateMaintenance:
	}
	return false
}

// Calls says whether an agent, or an installed system, of a machine in this state ought to call us.
func (s State) Calls() bool {
	switch s {
	case StateStarted, StateAvailable, StateInstalling, StateBooting, StateReturning, StateSilent, StateRefused:
		return true
	case StateCreating, StateProvisioning, StateProvided, StateInstalled, StateUnreachable, StateFailed, StateMissing, StateUnreadable,
		StateOff, StateReleasing, StateMaintenance, StateQuarantined:
	}
	return false
}

// States lists all states in that order.
func States() []State {
	return []State{
		StateCreating, StateProvisioning, StateProvided, StateStarted, StateAvailable, StateInstalling, StateBooting,
		StateInstalled, StateReturning, StateUnreachable, StateSilent, StateFailed, StateMissing, StateUnreadable, StateRefused, StateOff,
		StateReleasing, StateMaintenance, StateQuarantined,
	}
}

// ParseState returns the state of that name, or an error of kind Invalid that lists the names.
func ParseState(s string) (State, error) {
	if state := State(s); slices.Contains(States(), state) {
		return state, nil
	}
	return "", Errorf(KindInvalid, "no state is named %q: use one of %s", s, Names(States()))
}

// Words returns what a machine in the state is, as in "it is silent".
func (s State) Words() string {
	if s == StateMaintenance {
		return "in maintenance"
	}
	return string(s)
}
