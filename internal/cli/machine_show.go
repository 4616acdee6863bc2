package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/hardware"
)

func (a *app) machineShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show MACHINE",
		Short: "Show everything that is known of a machine",
		Example: `  ironherd machine show herd-0007
  ironherd machine show herd-0007 -o json | jq .hardware.blockDevices
  ironherd machine show herd-0007 -o json | jq -r .image.digest`,
		Args:              exactly,
		ValidArgsFunction: firstArgument(a.completeMachines),
	}
	return question(a, cmd, func(ctx context.Context, client fleetClient, args []string) (*fleetv1.GetMachineResponse, error) {
		return client.GetMachine(ctx, &fleetv1.GetMachineRequest{Machine: args[0]})
	}, a.showMachine)
}

func (a *app) showMachine(w *screen, r *fleetv1.GetMachineResponse) {
	m := r.GetMachine()
	w.pairs(
		[2]string{"Machine", m.GetId()},
		[2]string{"Host name", m.GetHostname()},
		[2]string{"State", m.GetState()},
		[2]string{"Because", a.asked(m.GetReason())},
		[2]string{"Provider", strings.TrimSuffix(m.GetProvider()+"/"+m.GetProviderId(), "/")},
		[2]string{"Address", m.GetAddress()},
		[2]string{"Location", m.GetLocation()},
		[2]string{"Labels", strings.Join(m.GetLabels(), ", ")},
		[2]string{"Agent", m.GetAgentVersion()},
		[2]string{"Last seen", instant(m.GetLastSeenAt())},
		[2]string{"Created", instant(m.GetCreatedAt())},
		[2]string{"Takeover generation", number(m.GetTakeoverGeneration())},
		[2]string{"Install generation", number(m.GetInstallGeneration())},
		[2]string{"Image", strings.TrimSpace(cmp.Or(r.GetImage().GetName(), r.GetImage().GetLocation()) + " " + namedImage(r.GetImage()).Identity())},
		[2]string{"Progress", progress(r.GetInstallProgress())},
	)
	if len(r.GetFacts()) > 0 {
		w.line("")
		rows := make([][]string, len(r.GetFacts()))
		for i, f := range r.GetFacts() {
			rows[i] = []string{instant(f.GetAt()), f.GetName(), a.asked(f.GetDetail())}
		}
		w.table([]string{"SINCE", "FACT", "DETAIL"}, rows)
	}
	if len(r.GetDecisions()) > 0 {
		w.line("")
		a.decisionTable(w, r.GetDecisions())
	}
	if r.GetHardware() != nil {
		w.line("")
		showHardware(w, r.GetHardware())
	}
}

func number(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func progress(p *agentv1.InstallProgress) string {
	if p == nil {
		return ""
	}
	text := enumName(p.GetPhase().Descriptor(), p.GetPhase().Number()) + ", " + bytesOf(p.GetBytesDone())
	if p.GetBytesTotal() > 0 {
		text += fmt.Sprintf(" of %s (%d %%)", bytesOf(p.GetBytesTotal()), 100*p.GetBytesDone()/p.GetBytesTotal())
	}
	if p.GetWaitingFor() != "" {
		text += ", waiting for " + p.GetWaitingFor()
	}
	return text
}

func showHardware(w *screen, h *agentv1.HardwareReport) {
	s := h.GetSystem()
	w.pairs(
		[2]string{"System", strings.TrimSpace(s.GetVendor() + " " + s.GetProduct())},
		[2]string{"Serial", s.GetSerial()},
		[2]string{"Chassis", chassis(s)},
		[2]string{"Firmware", strings.TrimSpace(s.GetFirmwareVendor() + " " + s.GetFirmwareVersion() + " " + s.GetFirmwareDate())},
		[2]string{"Kernel", strings.TrimSpace(s.GetKernel() + " " + s.GetArchitecture())},
		[2]string{"Security", hardware.Security(s)},
		[2]string{"BMC", hardware.BMC(h.GetBmc())},
		[2]string{"CPUs", processors(h)},
		[2]string{"NUMA", numa(h.GetNumaNodes())},
		[2]string{"Memory", hardware.Memory(h.GetMemory(), bytesOf)},
	)
	if modules := h.GetMemory().GetModules(); len(modules) > 0 {
		w.line("")
		rows := make([][]string, len(modules))
		for i, m := range modules {
			rows[i] = []string{m.GetLocator(), bytesOf(m.GetSizeBytes()), m.GetType(), hardware.ModuleSpeed(m), strings.TrimSpace(m.GetVendor() + " " + m.GetPartNumber()), m.GetSerial()}
		}
		w.table([]string{"MEMORY", "SIZE", "TYPE", "SPEED", "MODEL", "SERIAL"}, rows)
	}
	if disks := h.GetBlockDevices(); len(disks) > 0 {
		w.line("")
		rows := make([][]string, len(disks))
		for i, d := range disks {
			rows[i] = []string{d.GetName(), bytesOf(d.GetSizeBytes()), d.GetProtocol(), d.GetModel(), d.GetSerial(), d.GetWwn(), d.GetFirmware(), diskHealth(d.GetHealth())}
		}
		w.table([]string{"DISK", "SIZE", "PROTOCOL", "MODEL", "SERIAL", "WWN", "FIRMWARE", "HEALTH"}, rows)
	}
	if nics := h.GetNetworkInterfaces(); len(nics) > 0 {
		w.line("")
		rows := make([][]string, len(nics))
		for i, n := range nics {
			rows[i] = []string{n.GetName(), hardwareAddress(n), hardware.Driver(n), speed(n), n.GetFirmware(), strings.Join(n.GetAddresses(), " ")}
		}
		w.table([]string{"INTERFACE", "MAC", "DRIVER", "LINK", "FIRMWARE", "ADDRESSES"}, rows)
	}
	if devices := h.GetPciDevices(); len(devices) > 0 {
		w.line("")
		rows := make([][]string, len(devices))
		for i, d := range devices {
			rows[i] = []string{d.GetAddress(), d.GetKind(), d.GetId(), d.GetSubsystemId(), d.GetDriver(), d.GetModel()}
		}
		w.table([]string{"PCI", "KIND", "ID", "SUBSYSTEM", "DRIVER", "MODEL"}, rows)
	}
	for _, warning := range h.GetWarnings() {
		w.line("Not read: %s", warning)
	}
}

func chassis(s *agentv1.System) string {
	var parts []string
	if s.GetChassisSerial() != "" {
		parts = append(parts, "serial "+s.GetChassisSerial())
	}
	if s.GetChassisAssetTag() != "" {
		parts = append(parts, "asset tag "+s.GetChassisAssetTag())
	}
	return strings.Join(parts, ", ")
}

func numa(nodes []*agentv1.NumaNode) string {
	if len(nodes) < 2 {
		return ""
	}
	parts := make([]string, len(nodes))
	for i, n := range nodes {
		parts[i] = fmt.Sprintf("node %d: CPUs %s, %s", n.GetNode(), n.GetCpus(), bytesOf(n.GetMemoryBytes()))
	}
	return strings.Join(parts, "; ")
}

// hardwareAddress is the MAC address of an interface, and its own where it has been given another.
func hardwareAddress(n *agentv1.NetworkInterface) string {
	if p := n.GetPermanentMac(); p != "" && p != n.GetMac() {
		return n.GetMac() + " (permanent " + p + ")"
	}
	return n.GetMac()
}

// diskHealth shows the first thing that is wrong with a disk, or how worn it is.
func diskHealth(h *agentv1.Health) string {
	switch {
	case h == nil:
		return ""
	case !h.GetPassed():
		return "expects to fail"
	case h.GetPendingSectors() > 0:
		return fmt.Sprintf("%d sectors pending", h.GetPendingSectors())
	case h.GetOfflineUncorrectableSectors() > 0:
		return fmt.Sprintf("%d sectors unreadable", h.GetOfflineUncorrectableSectors())
	case h.GetMediaErrors() > 0:
		return fmt.Sprintf("%d media errors", h.GetMediaErrors())
	case h.GetPercentageUsed() >= 0:
		return fmt.Sprintf("ok, %d %% worn", h.GetPercentageUsed())
	}
	return "ok"
}

func processors(h *agentv1.HardwareReport) string {
	cpus := h.GetCpus()
	if len(cpus) == 0 {
		return ""
	}
	var cores, threads int32
	for _, c := range cpus {
		cores, threads = cores+c.GetCores(), threads+c.GetThreads()
	}
	text := fmt.Sprintf("%d × %s, %d cores, %d threads", len(cpus), cpus[0].GetModel(), cores, threads)
	if kinds := hardware.CoreKinds(cpus[0]); kinds != "" {
		text += " (" + kinds + ")"
	}
	if n := h.GetOfflineThreads(); n > 0 {
		text += fmt.Sprintf(", %d more offline (%s)", n, h.GetOfflineList())
	}
	if microcode := cpus[0].GetMicrocode(); microcode != "" {
		text += ", microcode " + microcode
	}
	return text
}

func speed(n *agentv1.NetworkInterface) string {
	if !n.GetLink() {
		return "down"
	}
	return cmp.Or(hardware.LinkSpeed(n), "up")
}
