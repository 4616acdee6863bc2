package rehearsal

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Plan says everything of a rehearsal: the same plan gives the same trace.
type Plan struct {
	// Seed of what the plan leaves open: latencies, and which call a fault hits.
	Seed uint64 `json:"seed"`
	// Machines is how much capacity each provider has.
	Machines int `json:"machines"`
	// Controllers is how many control planes run.
	Controllers int `json:"controllers"`
	// Length is how long the faults last; what still lasts then is put right.
	Length time.Duration `json:"length"`
	// Settle is within what time from then all must be well.
	Settle time.Duration `json:"settle"`
	// Install asks for an operating system on every machine that is created.
	Install bool `json:"install,omitempty"`
	// Lead: the plan begins when the fleet is there, and everything is well.
	Lead bool `json:"lead,omitempty"`
	// Events are the faults, and what people ask for, in the order of their instants.
	Events []Event `json:"events,omitempty"`
}

// Event is one fault, or one thing that a person asks for.
type Event struct {
	What What          `json:"what"`
	At   time.Duration `json:"at"`
	// For is how long it lasts.
	For time.Duration `json:"for,omitempty"`
	// Target is the number of a controller, of a piece of capacity, or of a rack.
	Target int `json:"target,omitempty"`
	// Share of the calls or machines that it hits, in percent.
	Share int `json:"share,omitempty"`
	// Step: a controller crashes or stops at its so-many-th step from At on, a step being whatever its
	// loops do to the outside.
	Step int `json:"step,omitempty"`
	// In: only steps in the middle of an act of this process count; empty: all do.
	In fleet.Process `json:"in,omitempty"`
}

// What is a kind of fault, or of request.
type What string

// The faults of controllers and of their database.
const (
	// Crash kills a controller; it comes back after For.
	Crash What = "crash"
	// Pause stops a controller for For; it does not know.
	Pause What = "pause"
	// DatabaseOutage: no transaction gets through.
	DatabaseOutage What = "database-outage"
	// LostCommits: transactions fail, and it is not known whether they were committed.
	LostCommits What = "lost-commits"
	// ListenerDown: no agent API is up, and each control plane knows that of its own.
	ListenerDown What = "listener-down"
	// AgentsCutOff: no agent reaches a control plane, although each records that its agent API is up.
	AgentsCutOff What = "agents-cut-off"
)

// The faults of providers.
const (
	// LostReplies: calls are not answered, before they had their effect or after.
	LostReplies What = "lost-replies"
	// Throttled: calls are refused because there were too many.
	Throttled What = "throttled"
	// ProviderOutage: calls fail and do nothing.
	ProviderOutage What = "provider-outage"
	// StaleList: lists say what was so at the beginning.
	StaleList What = "stale-list"
	// PartialList: lists leave most out.
	PartialList What = "partial-list"
	// DoubleList: lists name things twice.
	DoubleList What = "double-list"
	// CreateFails: the provider gives up what it creates.
	CreateFails What = "create-fails"
	// SlowRestarts: a share of the restarts comes late, or never.
	SlowRestarts What = "slow-restarts"
	// Vanishes: the provider loses a machine. After For somebody forgets it.
	Vanishes What = "vanishes"
	// Foreign: somebody makes a machine by hand, where nothing is yet. After For it is adopted.
	Foreign What = "foreign"
)

// The faults of hosts and agents.
const (
	// HostHangs: only a restart helps.
	HostHangs What = "host-hangs"
	// HostDies: nothing helps.
	HostDies What = "host-dies"
	// DiskLost: only a reinstall helps.
	DiskLost What = "disk-lost"
	// AgentDies: the host goes on without it.
	AgentDies What = "agent-dies"
	// PowerLost: a share of the machines has no power; when it is back they start, without agents.
	PowerLost What = "power-lost"
	// RackLost is the same for the machines of one rack of each provider.
	RackLost What = "rack-lost"
	// TenthFails: the agents of a tenth of the machines die, and every second of these hangs.
	TenthFails What = "tenth-fails"
	// SSHRefused: a share of the SSH connections fails, or breaks half-way.
	SSHRefused What = "ssh-refused"
	// InstallFails: a share of the installs fails.
	InstallFails What = "install-fails"
	// AgentLies: a superseded agent goes on talking, old boot IDs and reports included.
	AgentLies What = "agent-lies"
	// HostKeyChanges: the host has another SSH host key, and its agent dies. After For somebody
	// accepts the key.
	HostKeyChanges What = "host-key-changes"
)

// What people ask for.
const (
	AskInstall    What = "ask-install"
	AskReinstall  What = "ask-reinstall"
	AskCancel     What = "ask-cancel-install"
	AskReboot     What = "ask-reboot"
	AskPowerCycle What = "ask-power-cycle"
	AskPowerOff   What = "ask-power-off"
	AskPowerOn    What = "ask-power-on"
	AskRelease    What = "ask-release"
	AskReplace    What = "ask-replace"
	AskQuarantine What = "ask-quarantine"
	AskUnquarant  What = "ask-unquarantine"
	AskMaintain   What = "ask-maintenance"
	AskMaintained What = "ask-maintenance-end"
	AskWithdraw   What = "ask-withdraw"
	// AskPause keeps new machines from being created at every provider, for For.
	AskPause What = "ask-provider-pause"
	// AskDeploy asks for an operating system on a share of the machines.
	AskDeploy What = "ask-deploy"
)

// String is the plan in JSON.
func (p Plan) String() string {
	text, err := json.Marshal(p)
	if err != nil {
		return err.Error() // it has nothing that cannot be encoded
	}
	return string(text)
}

// The bounds of a plan.
const (
	MaxMachines    = 2000
	MaxControllers = 9
	maxLength      = 30 * 24 * time.Hour
)

// Validate reports the first fault of the plan. The error is of kind Invalid.
func (p Plan) Validate() error {
	switch {
	case p.Machines < 1 || p.Machines > MaxMachines:
		return fleet.Errorf(fleet.KindInvalid, "machines must be from 1 to %d, not %d", MaxMachines, p.Machines)
	case p.Controllers < 1 || p.Controllers > MaxControllers:
		return fleet.Errorf(fleet.KindInvalid, "controllers must be from 1 to %d, not %d", MaxControllers, p.Controllers)
	case p.Length < time.Minute || p.Length > maxLength:
		return fleet.Errorf(fleet.KindInvalid, "the length must be from 1m to %s, not %s", maxLength, p.Length)
	case p.Settle < 0:
		return fleet.Errorf(fleet.KindInvalid, "the time to settle must not be negative, not %s", p.Settle)
	}
	for _, e := range p.Events {
		if e.Target < 0 || e.For < 0 || e.At < 0 || e.At > p.Length || e.Share < 0 || e.Share > 100 {
			return fleet.Errorf(fleet.KindInvalid, "%s at %s is not within the plan", e.What, e.At)
		}
	}
	return nil
}

// String tells the event in one clause, for whoever reads the trace.
func (e Event) String() string {
	text := e.At.String() + " " + string(e.What)
	if e.Target > 0 {
		text += fmt.Sprintf(" of %d", e.Target)
	}
	if e.Share > 0 {
		text += fmt.Sprintf(", %d %%", e.Share)
	}
	if e.For > 0 {
		text += fmt.Sprintf(", for %s", e.For)
	}
	return text
}
