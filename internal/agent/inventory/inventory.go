package inventory

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/hardware"
)

const (
	// maxText bounds a string of the report, maxWarnings their number: the control plane limits the
	// size of a message.
	maxText     = 256
	maxWarnings = 64
	// maxDevices bounds each list of devices.
	maxDevices = 512
)

// Collect returns the hardware report of the machine whose files lie below root.
func Collect(root string) *agentv1.HardwareReport {
	return collect(&probe{root: root, live: filepath.Clean(root) == "/"}, parts)
}

// part finds out one part of a report. What it cannot read it warns of.
type part struct {
	name string
	read func(p *probe, report *agentv1.HardwareReport)
}

// parts are read one after the other; the first leaves the SMBIOS tables for those that follow.
var parts = []part{
	{"SMBIOS tables", func(p *probe, _ *agentv1.HardwareReport) { p.tables = p.smbios() }},
	{"system", func(p *probe, r *agentv1.HardwareReport) { r.System = p.system(p.tables) }},
	{"CPUs", func(p *probe, r *agentv1.HardwareReport) {
		r.Cpus = p.cpus(p.tables)
		r.OfflineThreads, r.OfflineList = p.offline()
	}},
	{"memory", func(p *probe, r *agentv1.HardwareReport) { r.Memory = p.memory(p.tables) }},
	{"disks", func(p *probe, r *agentv1.HardwareReport) { r.BlockDevices = p.blockDevices() }},
	{"network interfaces", func(p *probe, r *agentv1.HardwareReport) { r.NetworkInterfaces = p.networkInterfaces() }},
	{"PCI devices", func(p *probe, r *agentv1.HardwareReport) { r.PciDevices = p.pciDevices() }},
	{"NUMA nodes", func(p *probe, r *agentv1.HardwareReport) { r.NumaNodes = p.numaNodes() }},
	{"BMC", func(p *probe, r *agentv1.HardwareReport) { r.Bmc = p.askedBMC(p.tables) }},
}

func collect(p *probe, parts []part) *agentv1.HardwareReport {
	report := new(agentv1.HardwareReport)
	for _, part := range parts {
		p.survive(part.name, func() { part.read(p, report) })
	}
	slices.Sort(p.warnings)
	p.warnings = slices.Compact(p.warnings)
	if more := len(p.warnings) - maxWarnings; more > 0 {
		p.warnings = append(p.warnings[:maxWarnings], fmt.Sprintf("%d more warnings were left out", more))
	}
	report.Warnings = p.warnings
	return report
}

// survive turns a panic into a warning. What firmware and drives say has any form, and a machine
// whose agent dies of it could not even be installed.
func (p *probe) survive(what string, read func()) {
	defer func() {
		if fault := recover(); fault != nil {
			p.warn("the %s cannot be read because of a fault in the agent: %v", what, fault)
		}
	}()
	read()
}

// Disks returns the disks alone, as Collect lists them but without asking them for their health. A
// panic becomes an error, as in a report it becomes a warning.
func Disks(root string) ([]*agentv1.BlockDevice, error) {
	return DisksWithin(root, drivesLimit)
}

// DisksWithin is Disks for who has no time to wait for drives any longer than that. One that does
// not answer is listed as the kernel knows it, which may be without its serial number.
func DisksWithin(root string, limit time.Duration) ([]*agentv1.BlockDevice, error) {
	p := &probe{root: root, live: filepath.Clean(root) == "/"}
	return disks(func() []*agentv1.BlockDevice { return p.completeDisks(machineDrives, limit, askIdentity) })
}

func disks(read func() []*agentv1.BlockDevice) (list []*agentv1.BlockDevice, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = errors.New(clean(fmt.Sprintf("the disks cannot be read because of a fault in the agent: %v", fault)))
		}
	}()
	return read(), nil
}

// Digest identifies what a report says of the hardware. Temperatures and hours, which change by
// themselves, do not count.
func Digest(report *agentv1.HardwareReport) [sha256.Size]byte {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(hardware.Lasting(report))
	if err != nil { // all strings were cleaned
		data = []byte(err.Error())
	}
	return sha256.Sum256(data)
}

// probe reads files below a root and collects warnings.
type probe struct {
	root string
	// live tells that the root is "/", so that ioctls reach this machine's own devices.
	live     bool
	tables   *smbiosTables
	warnings []string
}

func (p *probe) warn(format string, args ...any) {
	p.warnings = append(p.warnings, clean(fmt.Sprintf(format, args...)))
}

// path returns where a path of the machine is for this process.
func (p *probe) path(parts ...string) string {
	return filepath.Join(p.root, filepath.Join(parts...))
}

// read returns at most limit bytes of a file.
func (p *probe) read(limit int64, parts ...string) ([]byte, error) {
	file, err := os.Open(p.path(parts...))
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, limit))
}

// text returns a one-line file, cleaned; "" when it is not there. Only a file that is there and may
// not be read is worth a warning: attributes that make no sense right now fail in other ways.
func (p *probe) text(parts ...string) string {
	data, err := p.read(4<<10, parts...)
	if errors.Is(err, fs.ErrPermission) {
		p.warn("/%s may not be read", filepath.Join(parts...))
	}
	return clean(string(data))
}

// number returns a file's decimal number, or 0.
func (p *probe) number(parts ...string) int64 {
	n, _ := strconv.ParseInt(p.text(parts...), 10, 64)
	return n
}

// flag says whether a file holds 1.
func (p *probe) flag(parts ...string) bool { return p.text(parts...) == "1" }

// exists says whether a path is there.
func (p *probe) exists(parts ...string) bool {
	_, err := os.Stat(p.path(parts...))
	return err == nil
}

// names lists a directory, sorted.
func (p *probe) names(what string, parts ...string) []string {
	entries, err := os.ReadDir(p.path(parts...))
	if err != nil {
		p.warn("the %s cannot be listed: %s", what, reason(err))
		return nil
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	slices.SortFunc(names, compareNatural)
	return names
}

// reason returns what went wrong with a file, without the path as this process sees it.
func reason(err error) string {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err.Error()
	}
	return err.Error()
}

// compareNatural orders names with numbers the way people do: nvme2n1 before nvme10n1, sdb before
// sdaa.
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		headA, restA := cutRun(a)
		headB, restB := cutRun(b)
		if headA != headB {
			if len(headA) != len(headB) && countsOn(headA, headB) {
				return len(headA) - len(headB)
			}
			return strings.Compare(headA, headB)
		}
		a, b = restA, restB
	}
	return len(a) - len(b)
}

// countsOn reports whether the shorter of two runs comes first: both are numbers, or letters that
// count disks of one kind.
func countsOn(a, b string) bool {
	if isDigit(a[0]) || isDigit(b[0]) {
		return isDigit(a[0]) && isDigit(b[0])
	}
	return len(a) > 1 && len(b) > 1 && a[:2] == b[:2]
}

// cutRun splits a string after its leading run of digits, or of other bytes.
func cutRun(s string) (head, rest string) {
	end := 1
	for end < len(s) && isDigit(s[end]) == isDigit(s[0]) {
		end++
	}
	return s[:end], s[end:]
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

// clean makes a string from outside fit for the report: valid UTF-8, printable, trimmed, of bounded
// length.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) && r != ' ' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	s = strings.TrimSpace(s)
	if len(s) > maxText {
		s = strings.TrimSpace(strings.ToValidUTF8(s[:maxText], ""))
	}
	return s
}
