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
	// ProcessInstall writes an operating system. It is done by the agent: the control plane hands an
	// attempt out in the answer to a heartbeat, and holds no lease for it.
	ProcessInstall Process = "install"
	// ProcessRecovery repairs a machine whose agent is silent.
	ProcessRecovery Process = "recovery"
	// ProcessUpdate refreshes what is known from a provider.
	ProcessUpdate Process = "update"
)

// Processes lists all processes in the order in which they are shown.
func Processes() []Process {
	return []Process{ProcessProvision, ProcessAgentStart, ProcessInstall, ProcessRecovery, ProcessUpdate}
}

// MachineProcesses lists the processes that have a machine as their subject and therefore rows of
// their own in its agenda.
func MachineProcesses() []Process {
	return []Process{ProcessAgentStart, ProcessInstall, ProcessRecovery}
}

// ParseProcess returns the process of that name, or an error of kind Invalid that lists the names.
func ParseProcess(s string) (Process, error) {
	for _, p := range Processes() {
		if string(p) == s {
			return p, nil
		}
	}
	return "", Errorf(KindInvalid, "no process is named %q: use one of %v", s, Processes())
}

// OfProvider says whether the subject of the process is a provider (otherwise it is a machine).
func (p Process) OfProvider() bool { return p == ProcessProvision || p == ProcessUpdate }

// Lane returns what work of this process holds of its subject. Two works exclude each other exactly
// when subject and lane are equal.
func (p Process) Lane() Lane {
	switch p {
	case ProcessProvision:
		return LaneProvision
	case ProcessUpdate:
		return LaneUpdate
	case ProcessAgentStart, ProcessInstall, ProcessRecovery:
		return LaneHost
	}
	panic(fmt.Sprintf("process %q has no lane", string(p)))
}

// Lane is what excludes what on one subject.
type Lane string

// The lanes.
const (
	// LaneHost is everything that touches the host of a machine.
	LaneHost Lane = "host"
	// LaneProvision is creation and discrepancy checking at one provider.
	LaneProvision Lane = "provision"
	// LaneUpdate is refreshing the facts of one provider. It is apart from LaneProvision, because a
	// pass of creations may be paced over minutes.
	LaneUpdate Lane = "update"
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
