package fleet

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Policy has the deadlines, intervals and limits that lifecycle decides by. The BMDB keeps numbered
// versions of it, and every control plane follows the highest number.
type Policy struct {
	// Number is assigned by the BMDB. Zero: not stored yet.
	Number int64 `json:"-"`

	// HeartbeatInterval is the time from one heartbeat of an agent to the next. The server asks for a
	// longer one when the fleet is large.
	HeartbeatInterval time.Duration `json:"heartbeat_interval"`
	// NeverSpokeAfter is how long a started agent may take to its first heartbeat.
	NeverSpokeAfter time.Duration `json:"never_spoke_after"`
	// SilentAfter is how long an agent may be silent, counted only while an agent listener was up. One
	// counts as up for 15 seconds after it was heard of last: with less, a restart of the only one may
	// make every agent silent.
	SilentAfter time.Duration `json:"silent_after"`
	// InstallTimeout is how long an agent may take for one attempt, from when it begins. From the
	// hand-out on, its report is waited for five minutes longer, but at most twice as long.
	InstallTimeout time.Duration `json:"install_timeout"`
	// InstallRetry is the backoff between a failed attempt and the next.
	InstallRetry Backoff `json:"install_retry"`
	// BootTimeout is how long an installed system may take to say that it is up.
	BootTimeout time.Duration `json:"boot_timeout"`

	// ProbeInterval is from one probe of an installed system that has not been seen yet to the next,
	// and WatchInterval from one to the next of a system that is watched.
	ProbeInterval time.Duration `json:"probe_interval"`
	WatchInterval time.Duration `json:"watch_interval"`
	// UnreachableAfter is how long the probes of a watched system must have failed, all of them,
	// before the machine counts as unreachable.
	UnreachableAfter time.Duration `json:"unreachable_after"`

	// ProvisionInterval is from the start of one provision pass to the next at one provider.
	ProvisionInterval time.Duration `json:"provision_interval"`
	// UpdateInterval is from one refresh of a provider's facts to the next while machines are changing
	// there, and UpdateSettledInterval while none is.
	UpdateInterval        time.Duration `json:"update_interval"`
	UpdateSettledInterval time.Duration `json:"update_settled_interval"`

	// RecoveryAtOnce is the concurrency limit of recovery: how many machines of one provider may be
	// under recovery at the same time, over all control planes, so that a provider that fails as a
	// whole is not asked for everything at once. A machine is under recovery from a reboot, power
	// cycle or reinstall until there is evidence of its effect, or the time for that is over. Zero:
	// any number. A lower limit lets those that are under recovery go on.
	RecoveryAtOnce int `json:"recovery_at_once"`
	// RecoveryAtOncePerLocation is the same for the machines of one provider that are in one location:
	// of a rack or a site that has failed, no more than so many are restarted at the same time. Both
	// limits hold. Machines whose provider names no location have none of their own. Zero: any number.
	RecoveryAtOncePerLocation int `json:"recovery_at_once_per_location"`
	// RecoveryPerHour is the budget of the whole fleet: how many machines recovery may restart (by a
	// reboot, a power cycle or a reinstall) within any hour. When it is spent, recovery stops until
	// there is room again, and says so. Zero: any number.
	RecoveryPerHour int `json:"recovery_per_hour"`
	// RecoveryStepTimeout is how long a step of the recovery ladder has to show its effect, before the
	// next step is taken.
	RecoveryStepTimeout time.Duration `json:"recovery_step_timeout"`
	// RecoveryReboots, RecoveryPowerCycles and RecoveryReinstalls are how often each step may be taken
	// for one machine before the ladder goes on to the next one. A reinstall has the provider put its
	// own operating system on the machine, and destroys the disk.
	RecoveryReboots     int `json:"recovery_reboots"`
	RecoveryPowerCycles int `json:"recovery_power_cycles"`
	RecoveryReinstalls  int `json:"recovery_reinstalls"`
	// RecoveryMemory is how long steps are counted: a machine that falls silent again within that time
	// goes on where its ladder was.
	RecoveryMemory time.Duration `json:"recovery_memory"`
	// SuspectShare is the part of the machines with an agent, in percent, that must be silent at the
	// same time (and at least SuspectLeast of them) for the fault to be probably ours. Recovery then
	// waits for SuspectFor, or for a person. Machines that recovery does not restart, such as dead
	// hosts of a list and hosts that refuse us, count for as long as they have been silent for less
	// than that. Zero: never.
	SuspectShare int           `json:"suspect_share"`
	SuspectLeast int           `json:"suspect_least"`
	SuspectFor   time.Duration `json:"suspect_for"`

	// OperationTimeout is how long an operation that the provider has accepted may take to show its
	// effect. For a restart it counts from then, or from when agents could be heard again.
	OperationTimeout time.Duration `json:"operation_timeout"`
	// ReplaceFailed gives back the machines that their provider gave up, if it still says so when it
	// is asked and nothing is heard of them, and lets others be created. One that a person has
	// switched off stays. So do all while recovery is stopped, or while their provider gives up most
	// of its machines together, and at least three.
	ReplaceFailed bool `json:"replace_failed"`
}

// RecoverySteps returns how often a rung may be climbed for one machine. 0: never.
func (p Policy) RecoverySteps(rung Rung) int {
	switch rung {
	case RungReboot:
		return p.RecoveryReboots
	case RungPowerCycle:
		return p.RecoveryPowerCycles
	case RungReinstall:
		return p.RecoveryReinstalls
	case RungAgentStart, RungQuarantine:
	}
	return 0
}

// maxAtOnce bounds a concurrency limit, because a claim reads, one by one, the machines that count
// against it.
const maxAtOnce = 1000

// maxPerHour bounds the budget of recovery, because the BMDB has a row for each restart of an hour.
const maxPerHour = 100_000

// maxSteps bounds how often one step of the recovery ladder may be repeated.
const maxSteps = 100

// LimitsRecovery reports whether the policy limits how many machines of one provider, or of one
// location of it, may be under recovery at the same time.
func (p Policy) LimitsRecovery() bool { return p.RecoveryAtOnce > 0 || p.RecoveryAtOncePerLocation > 0 }

// DefaultPolicy returns the documented defaults.
func DefaultPolicy() Policy {
	return Policy{
		HeartbeatInterval:     30 * time.Second,
		NeverSpokeAfter:       30 * time.Minute,
		SilentAfter:           10 * time.Minute,
		InstallTimeout:        15 * time.Minute,
		InstallRetry:          Backoff{Initial: time.Minute, Exponent: 1.5, Maximum: time.Hour},
		BootTimeout:           15 * time.Minute,
		ProbeInterval:         10 * time.Second,
		WatchInterval:         time.Minute,
		UnreachableAfter:      5 * time.Minute,
		ProvisionInterval:     time.Minute,
		UpdateInterval:        time.Minute,
		UpdateSettledInterval: 30 * time.Minute,
		RecoveryAtOnce:        10,
		RecoveryStepTimeout:   10 * time.Minute,
		RecoveryReboots:       2,
		RecoveryPowerCycles:   1,
		RecoveryMemory:        24 * time.Hour,
		SuspectShare:          50,
		SuspectLeast:          5,
		SuspectFor:            time.Hour,
		OperationTimeout:      15 * time.Minute,
	}
}

// Validate reports every fault, each named by its configuration key. The errors are of kind
// Invalid.
func (p Policy) Validate() error {
	var faults []error
	positive := func(key string, d time.Duration) {
		if d <= 0 {
			faults = append(faults, Errorf(KindInvalid, "%s must be positive, not %s", key, d))
		}
	}
	positive("policy.heartbeat_interval", p.HeartbeatInterval)
	positive("policy.never_spoke_after", p.NeverSpokeAfter)
	positive("policy.silent_after", p.SilentAfter)
	positive("policy.install_timeout", p.InstallTimeout)
	if fault := p.InstallRetry.Fault(); fault != "" {
		faults = append(faults, Errorf(KindInvalid, "policy.install_retry.%s", fault))
	}
	positive("policy.boot_timeout", p.BootTimeout)
	positive("policy.probe_interval", p.ProbeInterval)
	positive("policy.watch_interval", p.WatchInterval)
	positive("policy.provision_interval", p.ProvisionInterval)
	positive("policy.update_interval", p.UpdateInterval)
	positive("policy.update_settled_interval", p.UpdateSettledInterval)
	positive("policy.recovery_step_timeout", p.RecoveryStepTimeout)
	positive("policy.recovery_memory", p.RecoveryMemory)
	positive("policy.suspect_for", p.SuspectFor)
	positive("policy.operation_timeout", p.OperationTimeout)
	atMost := func(key string, n, most int) {
		if n < 0 || n > most {
			faults = append(faults, Errorf(KindInvalid, "%s must be between 0 and %d, not %d", key, most, n))
		}
	}
	atMost("policy.recovery_per_hour", p.RecoveryPerHour, maxPerHour)
	atMost("policy.recovery_reboots", p.RecoveryReboots, maxSteps)
	atMost("policy.recovery_power_cycles", p.RecoveryPowerCycles, maxSteps)
	atMost("policy.recovery_reinstalls", p.RecoveryReinstalls, maxSteps)
	atMost("policy.suspect_share", p.SuspectShare, 100)
	atMost("policy.suspect_least", p.SuspectLeast, math.MaxInt32)
	if p.HeartbeatInterval > 0 && p.SilentAfter < 3*p.HeartbeatInterval {
		faults = append(faults, Errorf(KindInvalid, "policy.silent_after must be at least three heartbeat intervals (%s), not %s",
			3*p.HeartbeatInterval, p.SilentAfter))
	}
	if p.WatchInterval > 0 && p.UnreachableAfter < 3*p.WatchInterval {
		faults = append(faults, Errorf(KindInvalid, "policy.unreachable_after must be at least three watch intervals (%s), not %s",
			3*p.WatchInterval, p.UnreachableAfter))
	}
	for _, limit := range []struct {
		key string
		n   int
	}{{"recovery_at_once", p.RecoveryAtOnce}, {"recovery_at_once_per_location", p.RecoveryAtOncePerLocation}} {
		if limit.n < 0 || limit.n > maxAtOnce {
			faults = append(faults, Errorf(KindInvalid, "policy.%s must be between 0 (no limit) and %d, not %d", limit.key, maxAtOnce, limit.n))
		}
	}
	return errors.Join(faults...)
}

// maxCallInterval is the longest interval that units follow.
const maxCallInterval = 24 * time.Hour

// CallInterval is from one call of the unit of a watched system to the next.
func (p Policy) CallInterval() time.Duration { return min(p.WatchInterval, maxCallInterval) }

// reportGrace is for what an agent does besides: it may jump into memory before it begins, and it
// waits for a disk that does not answer.
const reportGrace = 5 * time.Minute

// ReportWithin is how long the report of an attempt is waited for, from when it was handed out.
func (p Policy) ReportWithin() time.Duration {
	return p.InstallTimeout + min(p.InstallTimeout, reportGrace)
}

// WatchedBefore is a call interval that the policy had before. A unit that called until then may
// have been told it.
type WatchedBefore struct {
	Until    time.Time
	Interval time.Duration
}

// Environment is what lifecycle must know besides a machine's own facts.
type Environment struct {
	Policy Policy
	// ListenerUpSince is since when agents have been able to reach a listener without interruption;
	// zero while none is up.
	ListenerUpSince time.Time
	// ListenedSince and ListenedUntil are the newest time before that in which agents were able to
	// reach a listener without interruption, for as long as any silence that counts takes. Who was
	// silent then has not been heard because a listener went away, and came back. Zero: there was
	// none.
	ListenedSince, ListenedUntil time.Time
	// ListenerFullSince and ListenerFullUntil are the newest time in which a listener had no room
	// for agents, or an expired certificate, with as long as it takes until they have called again.
	// Silence that becomes due in it is due at its end. Zero: there was none.
	ListenerFullSince, ListenerFullUntil time.Time
	// PromisedInterval is the longest heartbeat interval that agents have been asked for lately.
	// Silence is never declared below three of them.
	PromisedInterval time.Duration
	// WatchedBefore are the longer ones of the call intervals of earlier policies: units may follow
	// them still.
	WatchedBefore []WatchedBefore
	// Explained is set only where a machine is.
	Explained
	// RecoveryHold stops recovery, but for the start of agents; nil: nothing does.
	RecoveryHold *RecoveryHold
	// Restored is the evidence that the database is a restored or copied one. It is empty when there
	// is none, or when an operator has accepted it. Until then installs wait.
	Restored string
}

// Explained is what is said besides where a machine is explained. It changes no decision, only its
// reason, and who acts next.
type Explained struct {
	// UnderRecovery is how many machines of the same provider are under recovery, and
	// UnderRecoveryThere how many of those are in the location of the machine; 0 when nobody knows
	// where it is.
	UnderRecovery, UnderRecoveryThere int
	// Missing are the roles that no live control plane has. Unserved are those that live ones have,
	// but none of them for the provider of the machine. Abandoned: nobody has any role for it.
	Missing, Unserved []Role
	Abandoned         bool
	// Paused says why nothing is created at the provider of a machine that is to be created.
	// Discrepancies counts those that stop creation there, and PassFailed is how its newest pass
	// failed; nil: it did not.
	Paused        *Pause
	Discrepancies int
	PassFailed    *BackoffState
}

// ProviderRecord is what the BMDB knows of one provider instance. Package lifecycle decides the
// provider's processes from it.
type ProviderRecord struct {
	Name ProviderName
	// Kind of provider, such as equinix or static.
	Kind string
	// LastPassAt is when the last provision pass started, LastUpdateAt the last refresh; zero: never.
	LastPassAt   time.Time
	LastUpdateAt time.Time
	// Changing: the provider's facts of a machine are expected to change, as it is being created or
	// deleted, or is off since lately.
	Changing bool
	// Paused: nothing is created there; nil: it is not paused.
	Paused   *Pause
	Backoffs map[Process]BackoffState
	Holds    map[Lane]Hold
}

// String names the provider and its kind.
func (p ProviderRecord) String() string { return fmt.Sprintf("%s (%s)", p.Name, p.Kind) }
