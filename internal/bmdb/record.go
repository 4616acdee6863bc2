package bmdb

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// recordOf turns a row into the record that lifecycle judges. What cannot be read is told in the
// record: it is this machine's trouble, and nobody else's.
func recordOf(r statement.MachineRecord, l *lane) fleet.Record {
	record := fleet.Record{
		Machine: fleet.Machine{
			ID: fleet.MachineID(r.ID), Provider: fleet.ProviderName(r.Provider), ProviderID: fleet.ProviderID(r.ProviderID),
			CreatedAt: instant(r.CreatedAt),
		},
		TakeoverGeneration: fleet.TakeoverGeneration(r.TakeoverGeneration),
		Intent: when(r.IntentOpenedAt != 0, fleet.Intent{
			Machine: fleet.MachineID(r.ID), Provider: fleet.ProviderName(r.Provider), Capacity: fleet.CapacityID(r.IntentCapacity),
			Token: fleet.Token(r.IntentToken), OpenedAt: instant(r.IntentOpenedAt), PlannedAt: instant(r.IntentPlannedAt),
			CalledAt: instantPointer(r.IntentCalledAt), Calls: int(r.IntentCalls), Rejected: int(r.IntentRejected),
		}),
		Provided: providedOfMachine(r),
		Holds:    l.byLane(fleet.LaneHost),
		AgentStarted: when(r.StartedAt != 0, fleet.AgentStarted{
			At: instant(r.StartedAt), TakeoverGeneration: fleet.TakeoverGeneration(r.StartedGeneration), PublicKey: r.StartedKey,
			AgentVersion: r.StartedVersion, BootID: r.StartedBootID,
		}),
		AgentSeen: when(r.SeenFirstAt != 0, fleet.AgentSeen{
			TakeoverGeneration: fleet.TakeoverGeneration(r.SeenGeneration), FirstAt: instant(r.SeenFirstAt),
			LastAt: instant(max(r.SeenLastAt, r.SeenFirstAt)), BootID: r.SeenBootID,
		}),
		Hardware: when(r.HardwareAt != 0, fleet.Hardware{
			FirstAt: instant(r.HardwareFirstAt), At: instant(r.HardwareAt), Digest: r.HardwareDigest,
		}),
		Probe: when(r.ProbeAt != 0, fleet.Probe{
			Generation: fleet.InstallGeneration(r.ProbeGeneration), Attempt: int(r.ProbeAttempt), At: instant(r.ProbeAt),
			AnsweredAt: instant(r.ProbeAnsweredAt), UnansweredSince: instant(r.ProbeUnansweredSince), Detail: r.ProbeDetail,
			Epoch: fleet.Epoch(r.ProbeEpoch), Session: fleet.SessionID(r.ProbeSession),
		}),
		Quarantine: when(r.QuarantineAt != 0, fleet.Quarantine{
			At: instant(r.QuarantineAt), Actor: r.QuarantineActor, Reason: r.QuarantineReason,
		}),
		Maintenance: when(r.MaintenanceAt != 0, fleet.Maintenance{
			At: instant(r.MaintenanceAt), Until: instantPointer(r.MaintenanceUntil), Actor: r.MaintenanceActor, Reason: r.MaintenanceReason,
			Over: r.MaintenanceEnded != 0,
		}),
		InstallCancel: when(r.CancelAt != 0, fleet.InstallCancel{
			Generation: fleet.InstallGeneration(r.CancelGeneration), At: instant(r.CancelAt), Actor: r.CancelActor, Reason: r.CancelReason,
		}),
		Operation: when(r.OperationNumber != 0, fleet.OperationRequest{
			Number: r.OperationNumber, Operation: fleet.Operation(r.Operation), At: instant(r.OperationAt), Actor: r.OperationActor,
			Reason: r.OperationReason,
		}),
		OperationAttempt: when(r.OperatingNumber != 0, fleet.OperationAttempt{
			Number: r.OperatingNumber, Attempt: int(r.OperatingAttempt), At: instant(r.OperatingAt), BootID: r.OperatingBootID,
			AcceptedAt: instantPointer(r.OperatingAcceptedAt), CheckedAt: instantPointer(r.OperatingCheckedAt),
		}),
		OperationReport: when(r.OperatedNumber != 0, fleet.OperationReport{
			Number: r.OperatedNumber, At: instant(r.OperatedAt), OK: r.OperatedOk != 0, Detail: r.OperatedDetail,
		}),
		Repair: repairOfMachine(r),
		Levers: leversOf(r.Levers),
	}
	if q := record.OpenOperation(); q != nil && !slices.Contains(fleet.Operations(), q.Operation) {
		record.Unreadable = fmt.Sprintf("read its operation: %q says nothing to this version", q.Operation)
	}
	if err := installOfMachine(r, &record); err != nil {
		record.Unreadable = err.Error()
	}
	return record
}

// when points at v if it is there. It copies v after the test: a pointer to the argument itself
// would make each fact that is not there cost an allocation, too.
func when[T any](is bool, v T) *T {
	if !is {
		return nil
	}
	there := v
	return &there
}

// leversOf reads what SetLevers has written.
func leversOf(words string) (levers []fleet.Lever) {
	for _, lever := range strings.Fields(words) {
		levers = append(levers, fleet.Lever(lever))
	}
	return levers
}

func providedOfMachine(r statement.MachineRecord) *fleet.Provided {
	return providedOf(statement.FactProvided{
		At: r.ProvidedAt, CreatedAt: r.ProvidedCreatedAt, ActiveAt: r.ProvidedActiveAt, Status: r.ProvidedStatus,
		Detail: r.ProvidedDetail, Hostname: r.ProvidedHostname, Address: r.ProvidedAddress, Location: r.ProvidedLocation,
		Labels: r.ProvidedLabels, Capacity: r.ProvidedCapacity, HostKeys: r.ProvidedHostKeys,
	})
}

func providedOf(f statement.FactProvided) *fleet.Provided {
	if f.At == 0 {
		return nil
	}
	address, _ := netip.ParseAddr(f.Address) // invalid while there is none
	return &fleet.Provided{
		At: instant(f.At), CreatedAt: instant(f.CreatedAt), ActiveAt: instantPointer(f.ActiveAt),
		Status: fleet.ProviderStatus(f.Status), Detail: f.Detail, Hostname: f.Hostname, Address: address, Location: f.Location,
		Labels: splitLines(f.Labels), Capacity: fleet.CapacityID(f.Capacity), HostKeys: splitLines(f.HostKeys),
	}
}

func repairOfMachine(r statement.MachineRecord) *fleet.Repair {
	if r.RepairAt == 0 {
		return nil
	}
	repair := &fleet.Repair{
		Since: instant(r.RepairSince), Rung: fleet.Rung(r.RepairRung), At: instant(r.RepairAt), Steps: make(map[fleet.Rung]int),
		TakeoverGeneration: fleet.TakeoverGeneration(r.RepairTakeoverGeneration), BootID: r.RepairBootID,
		Refused: r.RepairRefusedStep == r.RepairAt,
	}
	for rung, n := range map[fleet.Rung]int64{
		fleet.RungAgentStart: r.RepairAgentStarts, fleet.RungReboot: r.RepairReboots, fleet.RungPowerCycle: r.RepairPowerCycles,
		fleet.RungReinstall: r.RepairReinstalls,
	} {
		if n > 0 {
			repair.Steps[rung] = int(n)
		}
	}
	return repair
}

// installOfMachine reads all of the install that can be read, also after something that cannot:
// what is installed must not be lost sight of.
func installOfMachine(r statement.MachineRecord, record *fleet.Record) (unreadable error) {
	if r.RequestGeneration != 0 {
		q := &fleet.InstallRequest{
			Generation: fleet.InstallGeneration(r.RequestGeneration), At: instant(r.RequestAt), Actor: r.RequestActor,
		}
		var err error
		if err := readJSON(r.RequestRootDisk, &q.RootDisk); err != nil {
			unreadable = fmt.Errorf("read the disk selector of its install request: %w", err)
		}
		if err := readJSON(r.RequestImage, &q.Image); err != nil {
			unreadable = fmt.Errorf("read the image of its install request: %w", err)
		}
		if q.SeenUp, err = seenUpOf(r.RequestSeenUp); err != nil {
			unreadable = fmt.Errorf("read how its installed system is to be seen: %w", err)
		}
		if word := q.UnknownWord(); word != "" && unreadable == nil {
			unreadable = fmt.Errorf("read its install request: %q says nothing to this version", word)
		}
		record.InstallRequest = q
	}
	var err error
	record.InstallAttempt = when(r.AttemptGeneration != 0, fleet.InstallAttempt{
		Generation: fleet.InstallGeneration(r.AttemptGeneration), Attempt: int(r.AttemptAttempt), At: instant(r.AttemptAt),
		SecretHash: r.AttemptSecretHash,
	})
	if a := record.InstallAttempt; a != nil {
		if a.HostKey, err = base64.StdEncoding.DecodeString(r.AttemptHostKey); err != nil {
			unreadable = fmt.Errorf("read the host key of its install attempt: %w", err)
		}
	}
	record.InstallReport = when(r.ReportGeneration != 0, fleet.InstallReport{
		Generation: fleet.InstallGeneration(r.ReportGeneration), Attempt: int(r.ReportAttempt), At: instant(r.ReportAt),
		OK: r.ReportOk != 0, Error: r.ReportError, Disk: r.ReportDisk, Duration: lasting(r.ReportLasted), Bytes: r.ReportBytes,
		HeldGeneration: fleet.InstallGeneration(r.ReportHeldGeneration), HeldAttempt: int(r.ReportHeldAttempt),
		NeedsErase: r.ReportNeedsErase != 0, NotUnderstood: r.ReportNotUnderstood != 0,
	})
	record.Installed = when(r.InstalledGeneration != 0, fleet.Installed{
		Generation: fleet.InstallGeneration(r.InstalledGeneration), Attempt: int(r.InstalledAttempt), At: instant(r.InstalledAt),
		BootID: r.InstalledBootID, ErasedAt: instantPointer(r.InstalledErasedAt),
	})
	if i := record.Installed; i != nil {
		if e := i.ErasedAt; e != nil && !e.After(i.At) {
			i.ErasedAt = nil // an older version wrote the row anew, and left this
		}
		if i.SeenUp, err = seenUpOf(r.InstalledSeenUp); err != nil {
			unreadable = fmt.Errorf("read how its installed system is watched: %w", err)
		}
	}
	return unreadable
}

// readJSON reads what the database has as JSON. It fails where there is something that this version
// does not know: a newer one may narrow or forbid something by it, and nobody would heed that.
func readJSON(text string, into any) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil || d.InputOffset() == int64(len(text)) {
		return err
	}
	return errors.New("something follows the JSON")
}
