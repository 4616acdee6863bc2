package rehearsal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
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
	// ListenerDown: no agent reaches a control plane.
	ListenerDown What = "listener-down"
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

// String is the plan in a form that ParsePlan reads.
func (p Plan) String() string {
	text, err := json.Marshal(p)
	if err != nil {
		return err.Error() // it has nothing that cannot be encoded
	}
	return string(text)
}

// ParsePlan reads what String has written. The error is of kind Invalid.
func ParsePlan(text string) (p Plan, err error) {
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return Plan{}, fleet.Errorf(fleet.KindInvalid, "the plan cannot be read: %w", err)
	}
	return p, p.Validate()
}

// The bounds of a plan.
const (
	maxMachines    = 2000
	maxControllers = 9
	maxLength      = 30 * 24 * time.Hour
)

// Validate reports the first fault of the plan. The error is of kind Invalid.
func (p Plan) Validate() error {
	switch {
	case p.Machines < 1 || p.Machines > maxMachines:
		return fleet.Errorf(fleet.KindInvalid, "machines must be from 1 to %d, not %d", maxMachines, p.Machines)
	case p.Controllers < 1 || p.Controllers > maxControllers:
		return fleet.Errorf(fleet.KindInvalid, "controllers must be from 1 to %d, not %d", maxControllers, p.Controllers)
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

// Draw makes the plan of a seed, for tests: small, and with every fault mixed.
func Draw(seed uint64) Plan {
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	p := Plan{
		Seed: seed, Machines: 3 + r.IntN(8), Controllers: 1 + r.IntN(2), Length: time.Duration(14+r.IntN(14)) * time.Minute,
		Settle: 150 * time.Minute, Install: r.IntN(3) == 0,
	}
	if seed%100 == 49 { // now and then a larger one
		p.Machines, p.Controllers = 30+r.IntN(90), 1+r.IntN(3)
	}
	for range 2 + r.IntN(8) {
		p.Events = append(p.Events, drawFault(r, p)...)
	}
	for range r.IntN(6) {
		p.Events = append(p.Events, drawRequest(r, p))
	}
	if seed%5 == 4 { // after all others, whose draws it leaves alone
		p.Events = append(p.Events, Event{What: SlowRestarts, For: p.Length, Share: 30 + r.IntN(70)})
	}
	if seed%7 == 3 {
		p.Events = append(p.Events, Event{
			What: RackLost, At: time.Duration(r.IntN(600)) * time.Second, For: time.Duration(30+r.IntN(900)) * time.Second, Target: r.IntN(racks),
		})
	}
	if seed%8/2 == 2 {
		for range 1 + r.IntN(5) {
			p.Events = append(p.Events, drawByHand(r, p)...)
		}
	}
	p.sort()
	return p
}

func (p *Plan) sort() {
	slices.SortStableFunc(p.Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
}

func drawFault(r *rand.Rand, p Plan) []Event {
	seconds := func(from, to int) time.Duration { return time.Duration(from+r.IntN(to-from)) * time.Second }
	when := r.Float64() // more at the beginning, where machines are made
	e := Event{At: time.Duration(when * when * float64(p.Length)).Truncate(time.Second)}
	switch r.IntN(26) {
	case 0, 1:
		e.What, e.Target, e.Step, e.For = Crash, r.IntN(p.Controllers), r.IntN(30), seconds(1, 200)
	case 2, 3:
		e.What, e.Target, e.Step, e.For = Pause, r.IntN(p.Controllers), r.IntN(30), seconds(10, 300)
	case 4, 5, 24, 25:
		return drawInAct(r, p)
	case 6:
		e.What, e.For = DatabaseOutage, seconds(5, 150)
	case 7, 8:
		e.What, e.For, e.Share = LostCommits, seconds(30, 600), 5+r.IntN(40)
	case 9:
		e.What, e.For = ListenerDown, seconds(60, 1200)
	case 10, 11:
		e.What, e.For, e.Share = LostReplies, seconds(60, 900), 10+r.IntN(60)
	case 12:
		e.What, e.For, e.Share = Throttled, seconds(60, 900), 20+r.IntN(80)
	case 13:
		e.What, e.For = ProviderOutage, seconds(60, 900)
	case 14:
		e.What, e.For = StaleList, seconds(30, 300)
	case 15:
		e.What, e.For = []What{PartialList, DoubleList}[r.IntN(2)], seconds(60, 400)
	case 16:
		e.What, e.For, e.Share = CreateFails, seconds(60, 600), 30
	case 17:
		e.What, e.Target = []What{HostHangs, HostHangs, HostDies, DiskLost}[r.IntN(4)], r.IntN(p.Machines)
	case 18:
		e.What, e.Target = []What{HostHangs, AgentDies, AgentDies}[r.IntN(3)], r.IntN(p.Machines)
	case 19:
		e.What, e.For, e.Share = PowerLost, seconds(30, 900), 20+r.IntN(80)
	case 20, 21:
		e.What, e.For, e.Share = SSHRefused, seconds(60, 900), 20+r.IntN(60)
	case 22:
		e.What, e.For, e.Share = InstallFails, seconds(300, 1200), 30+r.IntN(70)
	default:
		e.What, e.Target, e.For = AgentLies, r.IntN(p.Machines), seconds(60, 900)
	}
	return []Event{e}
}

// drawInAct draws a controller that dies, or stands still, in the middle of some work, and what
// gives that work to do.
func drawInAct(r *rand.Rand, p Plan) []Event {
	e := Event{
		What: []What{Crash, Pause, Pause}[r.IntN(3)], For: time.Duration(100+r.IntN(250)) * time.Second, Step: 1 + r.IntN(8),
		Target: r.IntN(p.Controllers), At: time.Duration(r.IntN(200)) * time.Second,
		In: []fleet.Process{fleet.ProcessProvision, fleet.ProcessAgentStart, fleet.ProcessOperation, fleet.ProcessRecovery, fleet.ProcessRecovery}[r.IntN(5)],
	}
	cause := Event{At: 7*time.Minute + time.Duration(r.IntN(240))*time.Second, Target: r.IntN(p.Machines)}
	switch e.In {
	case fleet.ProcessOperation:
		cause.What = []What{AskReboot, AskPowerCycle, AskReplace, AskRelease}[r.IntN(4)]
	case fleet.ProcessRecovery:
		cause.What = HostHangs
	default:
		return []Event{e}
	}
	e.At = cause.At
	lost := Event{What: LostReplies, At: cause.At, For: 5 * time.Minute, Share: 50}
	if r.IntN(2) == 0 {
		return []Event{e, cause, lost}
	}
	return []Event{e, cause}
}

func drawRequest(r *rand.Rand, p Plan) Event {
	// Machines take some minutes to be there.
	e := Event{At: 5*time.Minute + time.Duration(r.Int64N(int64((p.Length-5*time.Minute)/time.Second)))*time.Second, Target: r.IntN(p.Machines)}
	e.What = []What{
		AskInstall, AskInstall, AskInstall, AskReinstall, AskCancel, AskReboot, AskReboot, AskPowerCycle, AskRelease, AskReplace, AskReplace,
		AskQuarantine, AskUnquarant, AskMaintain, AskPowerOff, AskPowerOn, AskDeploy,
	}[r.IntN(17)]
	switch e.What {
	case AskMaintain:
		e.For = time.Duration(1+r.IntN(15)) * time.Minute
	case AskDeploy:
		e.Share = 30 + r.IntN(70)
	}
	return e
}

// drawByHand draws what people do beside us, and what they take back.
func drawByHand(r *rand.Rand, p Plan) []Event {
	e := Event{
		At: time.Duration(r.Int64N(int64(p.Length/time.Second))) * time.Second, For: time.Duration(30+r.IntN(900)) * time.Second, Target: r.IntN(p.Machines),
	}
	e.What = []What{
		AskPause, AskPause, AskMaintained, AskWithdraw, AskWithdraw, HostKeyChanges, HostKeyChanges, HostKeyChanges, Vanishes, Vanishes, Foreign, Foreign,
	}[r.IntN(12)]
	first := e
	switch e.What {
	case AskMaintained:
		first.What, first.For = AskMaintain, 20*time.Minute
	case AskWithdraw:
		first.What, first.For = []What{AskReboot, AskPowerCycle, AskRelease, AskReplace}[r.IntN(4)], 0
	case Foreign: // before we have made one there
		e.At = time.Duration(r.IntN(60)) * time.Second
		return []Event{e}
	default:
		return []Event{e}
	}
	e.At, e.For = min(e.At+time.Duration(1+r.IntN(120))*time.Second, p.Length), 0
	return []Event{first, e}
}

// String tells the event in one clause.
func (e Event) String() string {
	return e.At.String() + " " + e.words()
}

// words is the event without its instant.
func (e Event) words() string {
	text := string(e.What)
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
