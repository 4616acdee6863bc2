package fleet

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// TakeoverGeneration grows with each takeover of a machine.
type TakeoverGeneration int64

// InstallGeneration grows with each install of a machine that was asked for.
type InstallGeneration int64

// MaxInstallGeneration bounds what a machine may say that it holds or has started: above it nothing
// could be counted. Whoever has had the machine may have written that there.
const MaxInstallGeneration InstallGeneration = 1 << 40

// Machine is one managed server.
type Machine struct {
	ID       MachineID
	Provider ProviderName
	// ProviderID is empty until the provider has created the machine.
	ProviderID ProviderID
	CreatedAt  time.Time
}

// Record is all that the BMDB knows of one machine: the machine, its facts (nil: not recorded), its
// backoffs and its holds. Package lifecycle decides from it.
type Record struct {
	Machine

	Intent         *Intent
	Provided       *Provided
	AgentStarted   *AgentStarted
	AgentSeen      *AgentSeen
	Hardware       *Hardware
	InstallRequest *InstallRequest
	InstallAttempt *InstallAttempt
	InstallReport  *InstallReport
	Installed      *Installed
	Probe          *Probe
	Quarantine     *Quarantine
	Maintenance    *Maintenance
	InstallCancel  *InstallCancel
	Operation      *OperationRequest
	// OperationAttempt and OperationReport may be of an older request.
	OperationAttempt *OperationAttempt
	OperationReport  *OperationReport
	Repair           *Repair

	// Levers is what the machine's provider can do to it.
	Levers []Lever

	// Unreadable says which of the stored facts cannot be read, and why; empty: all can. Nothing is
	// done to such a machine, and nothing is concluded from the fact.
	Unreadable string

	// TakeoverGeneration is the newest one that was minted, whether its takeover succeeded or not.
	TakeoverGeneration TakeoverGeneration

	Backoffs map[Process]BackoffState
	Holds    map[Lane]Hold
}

// Name is what people call the machine: its host name at the provider, or its ID.
func (r Record) Name() string {
	if r.Provided != nil && r.Provided.Hostname != "" {
		return r.Provided.Hostname
	}
	return string(r.ID)
}

// OpenInstallAttempt returns the newest attempt, whichever request it is at, while it is open:
// neither reported nor seen to have come up. The newest report is of it or of one before it,
// because no attempt is handed out while another is open.
func (r Record) OpenInstallAttempt() *InstallAttempt {
	a := r.InstallAttempt
	if a == nil {
		return nil
	}
	if p := r.InstallReport; p != nil && p.Generation == a.Generation && p.Attempt == a.Attempt {
		return nil
	}
	if i := r.Installed; i != nil && i.Generation == a.Generation && i.Attempt == a.Attempt {
		return nil
	}
	return a
}

// InstallCalledOff says whether a person does not want that install any more.
func (r Record) InstallCalledOff(generation InstallGeneration) bool {
	return r.InstallCancel != nil && r.InstallCancel.Generation == generation
}

// HeldInstall is the install that a disk of the machine holds, and for which its agent refused the
// newest request; 0: it did not.
func (r Record) HeldInstall() InstallGeneration {
	rep, request := r.InstallReport, r.InstallRequest
	if rep != nil && request != nil && rep.Generation == request.Generation {
		return rep.HeldGeneration
	}
	return 0
}

// NewestInstall is the newest install that was asked for, or that came up; 0: none.
func (r Record) NewestInstall() (newest InstallGeneration) {
	if r.InstallRequest != nil {
		newest = r.InstallRequest.Generation
	}
	if r.Installed != nil {
		newest = max(newest, r.Installed.Generation)
	}
	return newest
}

// Intent is a machine that the provisioner is about to ask a provider for. The provisioner writes
// it before the first call, and closes it when it knows the outcome.
type Intent struct {
	Machine  MachineID
	Provider ProviderName
	Capacity CapacityID
	Token    Token
	OpenedAt time.Time
	// PlannedAt is about when the provisioner makes the first call: an estimate from create_rate, made
	// when the intent was opened.
	PlannedAt time.Time
	// CalledAt is when the last call that could create something was made, of those that were not
	// answered where there is one; nil while none was made.
	CalledAt *time.Time
	// Calls counts the calls that could have created something. Rejected counts those of them that the
	// provider has definitely rejected.
	Calls    int
	Rejected int
}

// Availability is what a provider says of one of its entries.
type Availability string

// The availabilities.
const (
	AvailabilityKnownUsed   Availability = "known-used"
	AvailabilityKnownUnused Availability = "known-unused"
	// AvailabilityPossiblyUsed: the provider does not know what is used. The entry is used exactly
	// when the BMDB has it.
	AvailabilityPossiblyUsed Availability = "possibly-used"
)

// ProviderStatus is what a provider says of a machine's condition, in words common to all
// providers.
type ProviderStatus string

// The provider statuses.
const (
	// ProviderStatusCreating: not usable yet.
	ProviderStatusCreating ProviderStatus = "creating"
	// ProviderStatusActive: powered on and handed over.
	ProviderStatusActive ProviderStatus = "active"
	// ProviderStatusOff: exists and is powered off.
	ProviderStatusOff ProviderStatus = "off"
	// ProviderStatusPowering: exists and is on its way on or off.
	ProviderStatusPowering ProviderStatus = "powering"
	// ProviderStatusFailed: the provider gave it up.
	ProviderStatusFailed ProviderStatus = "failed"
	// ProviderStatusDeleting: on its way out.
	ProviderStatusDeleting ProviderStatus = "deleting"
	// ProviderStatusGone: the provider is certain that it does not exist (any more).
	ProviderStatusGone ProviderStatus = "gone"
)

// Down reports whether a machine of this status is off, or on its way on or off: it is not on.
func (s ProviderStatus) Down() bool {
	return s == ProviderStatusOff || s == ProviderStatusPowering
}

// Provided is what the provider last said of a machine. Written by the provisioner when the machine
// is created or adopted, by the updater from then on.
type Provided struct {
	// At is since when it has been seen to have this status.
	At time.Time
	// CreatedAt is when the machine came into being at the provider, as far as the BMDB knows: when
	// its intent was closed.
	CreatedAt time.Time
	Status    ProviderStatus
	// ActiveAt is when the status was first seen to be active; nil before.
	ActiveAt *time.Time
	// Detail is the provider's own word for the status, with progress where there is some.
	Detail   string
	Hostname string
	// Address is the public IPv4 address, else the public IPv6 address; invalid while there is none.
	Address  netip.Addr
	Location string
	// Labels are those that somebody gave the machine at its provider, each as name=value, in order.
	Labels   []string
	Capacity CapacityID
	// HostKeys are the host keys that the provider attests, in authorized_keys form; empty when it
	// attests none.
	HostKeys []string
}

// Says is what the provider says of the machine, in words: its status, and what it adds to that.
func (p Provided) Says() string {
	if p.Detail == "" || p.Detail == string(p.Status) {
		return string(p.Status)
	}
	return fmt.Sprintf("%s (%s)", p.Status, p.Detail)
}

// AgentStarted is a takeover that succeeded. Written by the initializer.
type AgentStarted struct {
	At                 time.Time
	TakeoverGeneration TakeoverGeneration
	// PublicKey is the agent's Ed25519 key, 32 bytes.
	PublicKey    []byte
	AgentVersion string
	BootID       string
}

// AgentSeen says that the agent of a takeover generation has spoken. Written by the agent API.
type AgentSeen struct {
	TakeoverGeneration TakeoverGeneration
	FirstAt            time.Time
	// LastAt may be behind by the flush interval, because heartbeats are written in batches.
	LastAt time.Time
	BootID string
}

// Hardware says that a hardware report is stored. Written by the agent API.
type Hardware struct {
	FirstAt time.Time
	At      time.Time
	// Digest is the SHA-256 of the encoded report, in hexadecimal.
	Digest string
}

// InstallRequest is an operating system that is wanted on a machine. Written by an operator, or by
// the provisioner where the provider's configuration names an image for every new machine.
type InstallRequest struct {
	Generation    InstallGeneration
	At            time.Time
	Actor         string
	Image         Image
	RootDisk      DiskSelector
	FirstBootData []byte
	// SeenUp is how the installed system is seen to have come up.
	SeenUp SeenUp
}

// MayLackUnit reports whether the call of a unit is to show that the system is up, while its image
// is one for cloud-init: those of distributions have no such unit.
func (q InstallRequest) MayLackUnit() bool {
	return q.SeenUp.By == SeenByUnit && q.Image.FirstBoot != FirstBootArea
}

// Caveat says what may keep the system from being seen as up; "": nothing that is known. ask is how
// the reader of it wants a system to be asked by SSH.
func (q InstallRequest) Caveat(ask string) string {
	if !q.MayLackUnit() {
		return ""
	}
	return "the installed system counts as up when a unit of it calls (ironherd-firstboot), and an image with cloud-init may have none: recovery restarts a machine " +
		"whose unit never calls, and in the end quarantines it; with " + ask + " the system is asked instead"
}

// InstallAttempt is the newest attempt that was handed to the agent. Committed before it is handed
// out. Written by the agent API.
type InstallAttempt struct {
	Generation InstallGeneration
	// Attempt counts from 1 within a generation.
	Attempt int
	At      time.Time
	// SecretHash is the SHA-256 of the boot token's secret.
	SecretHash []byte
	// HostKey is the public half of the Ed25519 host key that the attempt brings, 32 bytes; empty
	// where the system is not to be seen by SSH.
	HostKey []byte
}

// InstallReport is how the newest ended attempt has ended. Written by the agent API, and by the
// janitor when the attempt runs out of time.
type InstallReport struct {
	Generation InstallGeneration
	Attempt    int
	At         time.Time
	OK         bool
	// Error is one sentence; empty when OK.
	Error string
	// Disk that was written, if only in part. Empty: nothing was written. DiskUnknown: nobody knows.
	Disk string
	// Duration as measured by the agent.
	Duration time.Duration
	Bytes    int64
	// HeldGeneration and HeldAttempt are set when the agent refused to overwrite an install of this
	// machine that the disk holds already, and that is not older.
	HeldGeneration InstallGeneration
	HeldAttempt    int
	// NeedsErase is set when the agent refused to write a disk that holds something which the request
	// does not allow to be erased.
	NeedsErase bool
	// NotUnderstood is set when the agent refused the request, because it does not know all that the
	// request asks for. Another agent may.
	NotUnderstood bool
}

const beforeSerial = " (serial "

// DiskWithSerial is what a report says of a disk whose serial number is known.
func DiskWithSerial(disk, serial string) string { return disk + beforeSerial + serial + ")" }

// DiskSerial returns the serial number of the disk that was written; "" where it is not known, or
// not as the disk itself says it.
func (r InstallReport) DiskSerial() string {
	_, serial, _ := strings.Cut(strings.TrimSuffix(r.Disk, ")"), beforeSerial)
	if strings.ContainsAny(serial, "…\uFFFD") { // it was shortened, or has what is not printable
		return ""
	}
	return serial
}

// DiskUnknown is in a report of an attempt of which nobody knows whether it has written anything.
const DiskUnknown = "unknown"

// Untouched reports whether the attempt ended before anything was written.
func (r InstallReport) Untouched() bool { return !r.OK && r.Disk == "" }

// HostKeySource is where a machine's known host keys are from.
type HostKeySource string

// The sources of host keys.
const (
	// HostKeyInjected: we made the key, and put it into the request that created the machine.
	HostKeyInjected  HostKeySource = "injected"
	HostKeyFirstUse  HostKeySource = "first use"
	HostKeyInstalled HostKeySource = "installed system"
	HostKeyAccepted  HostKeySource = "accepted"
)

// HostKeys are the SSH host keys that the machine is known by, in authorized_keys form.
type HostKeys struct {
	Known  []string
	At     time.Time
	Source HostKeySource
	// Refused is the key that the host has shown instead, at RefusedAt; empty: none since the known
	// keys were written.
	Refused   string
	RefusedAt time.Time
}

// InstallCancel says that an install is not wanted any more. Written by an operator.
type InstallCancel struct {
	// Generation of the request that was called off.
	Generation InstallGeneration
	At         time.Time
	Actor      string
	Reason     string
}

// Installed says that an installed system has been seen to come up. Written by the agent API, by
// the prober where the request asked for a probe, and by an operator who says so.
type Installed struct {
	Generation InstallGeneration
	// Attempt is 0 where nobody but an operator has said so.
	Attempt int
	At      time.Time
	// BootID is empty where a probe has seen it.
	BootID string
	// SeenUp is how it was seen, and how it is watched.
	SeenUp SeenUp
	// ErasedAt is when the provider was first told by recovery to reinstall the machine since, or was
	// seen to do so for somebody else. The disk does not hold the system any more. Nil: neither.
	ErasedAt *time.Time
}

// Follows reports whether the system came up after that attempt had begun. One that a person has
// marked has no attempt, and follows all of its generation.
func (i Installed) Follows(g InstallGeneration, attempt int) bool {
	return g < i.Generation || g == i.Generation && (i.Attempt == 0 || attempt <= i.Attempt)
}

// Words says which system it is.
func (i Installed) Words() string {
	if i.Attempt == 0 {
		return "marked as installed"
	}
	return fmt.Sprintf("install generation %d", i.Generation)
}

// Quarantine keeps all work away from a machine. Written by an operator.
type Quarantine struct {
	At     time.Time
	Actor  string
	Reason string
}

// Hold is a lane that a session holds.
type Hold struct {
	Session SessionID
	// Component and Host of the session, for people.
	Component string
	Host      string
	Process   Process
	Epoch     Epoch
	Since     time.Time
	// Deadline is when the session ends unless it is extended. Only its end frees the lane.
	Deadline time.Time
}
