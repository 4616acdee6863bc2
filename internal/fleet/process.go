package fleet

import "fmt"

// Process is a kind of work.
type Process string

// The processes. Provision and update have a provider as their subject, the others a machine.
const (
	// ProcessProvision creates machines at a provider.
	ProcessProvision Process = "provision"
	// ProcessAgentStart puts our agent in charge of a machine.
	ProcessAgentStart Process = "agent-start"
	// ProcessInstall writes an operating system. The agent does it: the control plane hands out an
	// attempt in the answer to a heartbeat, and holds no lease for it.
	ProcessInstall Process = "install"
	// ProcessOperation carries out what a person asked for: reboot, power, release.
	ProcessOperation Process = "operation"
	// ProcessRecovery repairs a machine whose agent is silent.
	ProcessRecovery Process = "recovery"
	// ProcessProbe asks installed systems whether they are up, where their install request wants that.
	ProcessProbe Process = "probe"
	// ProcessUpdate refreshes what is known from a provider.
	ProcessUpdate Process = "update"
)

// Processes lists all processes in the order in which they are shown.
func Processes() []Process {
	return []Process{ProcessProvision, ProcessAgentStart, ProcessInstall, ProcessOperation, ProcessRecovery, ProcessProbe, ProcessUpdate}
}

// MachineProcesses lists the processes whose subject is a machine. The agenda has rows for them
// under that machine.
func MachineProcesses() []Process {
	return []Process{ProcessAgentStart, ProcessInstall, ProcessOperation, ProcessRecovery, ProcessProbe}
}

// ParseProcess returns the process of that name, or an error of kind Invalid that lists the names.
func ParseProcess(s string) (Process, error) {
	for _, p := range Processes() {
		if string(p) == s {
			return p, nil
		}
	}
	return "", Errorf(KindInvalid, "no process is named %q: use one of %s", s, Names(Processes()))
}

// Role returns the role whose control planes do the process. An install is handed out by the agent
// API.
func (p Process) Role() Role {
	switch p {
	case ProcessProvision:
		return RoleProvisioner
	case ProcessAgentStart:
		return RoleInitializer
	case ProcessInstall:
		return RoleAgentAPI
	case ProcessOperation:
		return RoleOperations
	case ProcessRecovery:
		return RoleRecoverer
	case ProcessProbe:
		return RoleProber
	case ProcessUpdate:
		return RoleUpdater
	}
	panic(fmt.Sprintf("process %q has no role", string(p)))
}

// Looped reports whether a loop of a control plane does the process, so that what is due for long
// is overdue. An install waits for its agent to ask.
func (p Process) Looped() bool { return p != ProcessInstall }

// OfProvider reports whether the subject of the process is a provider. Otherwise it is a machine.
func (p Process) OfProvider() bool { return p == ProcessProvision || p == ProcessUpdate }

// Lane returns the lane of its subject that work of this process holds.
func (p Process) Lane() Lane {
	switch p {
	case ProcessProvision:
		return laneProvision
	case ProcessUpdate:
		return laneUpdate
	case ProcessAgentStart, ProcessInstall, ProcessOperation, ProcessRecovery, ProcessProbe:
		return LaneHost
	}
	panic(fmt.Sprintf("process %q has no lane", string(p)))
}

// Lane is a part of a subject that one session at a time can hold. Two pieces of work exclude each
// other exactly when they have the same subject and the same lane.
type Lane string

// The lanes.
const (
	// LaneHost is everything that touches the host of a machine.
	LaneHost Lane = "host"
	// laneProvision is creation and discrepancy checking at one provider.
	laneProvision Lane = "provision"
	// laneUpdate is refreshing the facts of one provider. It is not laneProvision, because create_rate
	// can stretch a pass of creations over minutes.
	laneUpdate Lane = "update"
)

// Subject is what work is done on: a machine, or a provider. Exactly one field is set.
type Subject struct {
	Machine  MachineID
	Provider ProviderName
}

// String returns the machine's ID or the provider's name.
func (s Subject) String() string {
	if s.Machine != "" {
		return string(s.Machine)
	}
	return string(s.Provider)
}

// Epoch numbers the holders of one lane of one subject. It grows strictly, across all processes of
// the lane, for ever.
type Epoch int64
