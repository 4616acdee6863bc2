package agentapi

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// What an agent may send.
const (
	maxBootID = 64
	maxString = 1 << 10
	maxLog    = 16 << 10
	maxList   = 4096
	// mostWarnings bounds how many warnings of an install are kept, and maxWarning each of them.
	mostWarnings = 10
	maxWarning   = 300
	maxHardware  = 512 << 10
	maxDuration  = 30 * 24 * time.Hour
)

func checkHeartbeat(req *agentv1.HeartbeatRequest) error {
	switch p := req.GetInstallProgress(); {
	case !isName(req.GetBootId(), maxBootID):
		return fleet.Errorf(fleet.KindInvalid, "boot_id must be 1 to %d printable characters", maxBootID)
	case len(req.GetLog()) > maxLog:
		return fleet.Errorf(fleet.KindInvalid, "log is longer than %d bytes", maxLog)
	case len(req.GetAgentVersion()) > maxString:
		return fleet.Errorf(fleet.KindInvalid, "agent_version is longer than %d bytes", maxString)
	case req.GetLastInstallGeneration() < 0 || req.GetLastInstallAttempt() < 0:
		return fleet.Errorf(fleet.KindInvalid, "last_install_generation and last_install_attempt must not be negative")
	case p != nil && (p.GetInstallGeneration() <= 0 || p.GetAttempt() <= 0 || p.GetBytesDone() < 0 || p.GetBytesTotal() < 0):
		return fleet.Errorf(fleet.KindInvalid, "install_progress has numbers that cannot be")
	}
	return nil
}

// parseInstallReport returns the fact that a report tells, or KindInvalid.
func parseInstallReport(r *agentv1.InstallReport) (fleet.InstallReport, error) {
	took := time.Duration(r.GetDurationMs()) * time.Millisecond
	switch {
	case r.GetInstallGeneration() <= 0 || r.GetAttempt() <= 0:
		return fleet.InstallReport{}, fleet.Errorf(fleet.KindInvalid, "the install report names no attempt")
	case r.GetDurationMs() < 0 || r.GetDurationMs() > maxDuration.Milliseconds():
		return fleet.InstallReport{}, fleet.Errorf(fleet.KindInvalid, "duration_ms of the install report cannot be %d", r.GetDurationMs())
	case r.GetBytesWritten() < 0:
		return fleet.InstallReport{}, fleet.Errorf(fleet.KindInvalid, "bytes_written of the install report is negative")
	case r.GetOk() && r.GetHeldInstallGeneration() != 0:
		return fleet.InstallReport{}, fleet.Errorf(fleet.KindInvalid, "held_install_generation of the install report cannot be %d", r.GetHeldInstallGeneration())
	case r.GetOk() && r.GetNeedsErase():
		return fleet.InstallReport{}, fleet.Errorf(fleet.KindInvalid, "the install report says both that it went well and that the disk was not to be erased")
	case r.GetOk() && r.GetNotUnderstood():
		return fleet.InstallReport{}, fleet.Errorf(fleet.KindInvalid, "the install report says both that it went well and that it was not understood")
	case r.GetOk() && r.GetError() != "":
		return fleet.InstallReport{}, fleet.Errorf(fleet.KindInvalid, "the install report says both that it went well and what went wrong")
	}
	held := r.GetHeldInstallGeneration()
	if held < 0 || held > int64(fleet.MaxInstallGeneration) {
		held = 0 // anybody may have written it, and the agent is to be heard
	}
	fact := fleet.InstallReport{
		Generation: fleet.InstallGeneration(r.GetInstallGeneration()), Attempt: int(r.GetAttempt()), OK: r.GetOk(),
		Error: clean(r.GetError()), Disk: clean(r.GetDisk()), Duration: took, Bytes: r.GetBytesWritten(),
		HeldGeneration: fleet.InstallGeneration(held), HeldAttempt: max(int(r.GetHeldAttempt()), 0),
		NeedsErase: r.GetNeedsErase(), NotUnderstood: r.GetNotUnderstood(),
	}
	if serial := clean(r.GetDiskSerial()); serial != "" {
		fact.Disk = fleet.DiskWithSerial(fact.Disk, serial)
	}
	if !fact.OK && fact.Error == "" {
		fact.Error = "the agent gave no reason"
	}
	return fact, nil
}

// installWarnings returns the warnings of a report, fit for history.
func installWarnings(r *agentv1.InstallReport) []string {
	var warnings []string
	for _, warning := range r.GetWarnings() {
		if warning = cleanTo(maxWarning, warning); warning != "" && len(warnings) < mostWarnings {
			warnings = append(warnings, warning)
		}
	}
	return warnings
}

// logLines returns the lines of an agent's log, each fit to be shown.
func logLines(text string) []string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if line = clean(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// cleanHardware bounds the report, and makes its strings fit to be shown: a serial number may hold
// anything, and must not reach an operator's terminal as it is.
func cleanHardware(r *agentv1.HardwareReport) error {
	if size := proto.Size(r); size > maxHardware {
		return fleet.Errorf(fleet.KindInvalid, "the hardware report has %d bytes; at most %d are accepted", size, maxHardware)
	}
	return cleanMessage(r.ProtoReflect())
}

func cleanMessage(m protoreflect.Message) error {
	var fault error
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsList() && v.List().Len() > maxList:
			fault = fleet.Errorf(fleet.KindInvalid, "%s of the hardware report has %d entries; at most %d are accepted",
				field.Name(), v.List().Len(), maxList)
		case field.IsList():
			fault = cleanList(field, v.List())
		case field.Kind() == protoreflect.MessageKind:
			fault = cleanMessage(v.Message())
		case field.Kind() == protoreflect.StringKind:
			m.Set(field, protoreflect.ValueOfString(clean(v.String())))
		}
		return fault == nil
	})
	return fault
}

func cleanList(field protoreflect.FieldDescriptor, list protoreflect.List) error {
	for i := range list.Len() {
		switch field.Kind() {
		case protoreflect.MessageKind:
			if err := cleanMessage(list.Get(i).Message()); err != nil {
				return err
			}
		case protoreflect.StringKind:
			list.Set(i, protoreflect.ValueOfString(clean(list.Get(i).String())))
		}
	}
	return nil
}

// clean returns s on one line, without what is not printable, and not longer than a sentence needs
// to be.
func clean(s string) string { return cleanTo(maxString, s) }

func cleanTo(limit int, s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return utf8.RuneError
		}
		return r
	}, strings.TrimSpace(s))
	if len(s) <= limit {
		return s
	}
	return fleet.Clip(s, limit-len("…"))
}

func isName(s string, longest int) bool {
	return s != "" && len(s) <= longest && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
