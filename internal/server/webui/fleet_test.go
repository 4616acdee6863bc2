package webui

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	first  = "01a1fc45-afbd-7de4-a794-ae245454d430"
	second = "01a1fc45-afbd-7de9-81e9-bd43ab91fe1b"
)

func stampAt(text string) *timestamppb.Timestamp { return timestamppb.New(instant(text)) }

// smallFleet is a stub with a little of everything.
func smallFleet() *stubFleet {
	seconds := func(s float64) *durationpb.Duration { return durationpb.New(time.Duration(s * float64(time.Second))) }
	return &stubFleet{
		summary: &fleetv1.GetSummaryResponse{
			Machines: 1234, Discrepancies: 1,
			States: []*fleetv1.StateCount{
				{State: "installed", Machines: 1200},
				{State: "creating", Machines: 20},
				{State: "silent", Machines: 13},
				{State: "levitating", Machines: 1},
			},
			Processes: []*fleetv1.ProcessCount{{Process: "agent-start", Running: 3, Due: 2, BackingOff: 1}, {Process: "update"}},
			Phases: []*fleetv1.PhaseDuration{
				{Phase: "provision", Count: 1200, P50: seconds(40), P95: seconds(80), P99: seconds(160), Max: seconds(300)},
				{Phase: "agent-start", Count: 1200, P50: seconds(0.5), P95: seconds(1.25), P99: seconds(16), Max: seconds(20)},
				{Phase: "install"},
			},
		},
		providers: []*fleetv1.Provider{
			{
				Name: "metal", Kind: "equinix", Machines: 1230, MaxMachines: 1300, OpenIntents: 20, Penalties: 2, Discrepancies: 1,
				LastPassAt: stampAt("03:11:00"), LastPass: "created 20 machines", LastUpdateAt: stampAt("03:10:00"), LastUpdate: "14 changed",
			},
			{Name: "garage", Kind: "static", Machines: 4, Unserved: []string{"provisioner", "updater"}},
		},
		sessions: []*fleetv1.Session{
			{
				Id: "s-1", Role: "initializer", Component: "agent-start", Host: "cp-1", Pid: 4711, StartedAt: stampAt("01:00:00"), Deadline: stampAt("03:12:05"),
				Holds: []*fleetv1.Hold{
					{Process: "agent-start", Subject: first, Epoch: 4, Since: stampAt("03:12:00")},
					{Process: "agent-start", Subject: second, Epoch: 1},
					{Process: "agent-start", Subject: first, Epoch: 6},
					{Process: "agent-start", Subject: second, Epoch: 2},
					{Process: "provision", Subject: "metal", Epoch: 9},
				},
			},
			{Id: "s-0", Role: "updater", Component: "update", Host: "cp-2", Pid: 1, StartedAt: stampAt("00:30:00"), EndedAt: stampAt("02:00:00"), EndCause: "deadline passed"},
		},
		discrepancies: []*fleetv1.Discrepancy{{
			Provider: "metal", Kind: string(fleet.DiscrepancyMissingMachine), ProviderId: "aa11", MachineId: second, Since: stampAt("00:12:00"),
			Evidence: "not in two complete lists", Remedy: "forget it",
		}},
		machines: []*fleetv1.Machine{
			{
				Id: first, Provider: "metal", ProviderId: "aa10", Hostname: "herd-0001", Address: "127.4.0.1", Location: "da11", State: "installed",
				Reason: "install generation 1", StateSince: stampAt("02:00:00"), LastSeenAt: stampAt("01:59:00"),
			},
			{Id: second, Provider: "metal", State: "creating", Reason: "waiting for creation pacing", StateSince: stampAt("03:00:00")},
		},
		next:        second,
		machine:     oneMachine(),
		explanation: "Attempt 1 is under way.",
		history: []*fleetv1.HistoryEntry{
			{
				At: stampAt("02:50:02"), Actor: "agent-start@cp-1", Process: "agent-start", Epoch: 3, Event: string(fleet.EventFailed),
				Detail: "connection refused", RetryAt: stampAt("02:51:02"), StartedAt: stampAt("02:50:00"), Why: "the machine needs an agent",
			},
			{At: stampAt("03:05:00"), Actor: "agent", Event: string(fleet.EventHardwareReported)},
		},
	}
}

func oneMachine() *fleetv1.GetMachineResponse {
	return &fleetv1.GetMachineResponse{
		Machine: &fleetv1.Machine{
			Id: first, Provider: "metal", ProviderId: "aa10", Hostname: "herd-0001", Address: "127.4.0.1", Location: "da11", Labels: []string{"role=database", "zone=a"}, State: "installing",
			Reason: "attempt 1 is under way", CreatedAt: stampAt("02:40:00"), StateSince: stampAt("03:10:00"), LastSeenAt: stampAt("03:12:00"),
			AgentVersion: "v1.2.3", TakeoverGeneration: 2, InstallGeneration: 1,
		},
		Facts: []*fleetv1.Fact{
			{Name: "provided", At: stampAt("02:41:00"), Detail: "active, 127.4.0.1"},
			{Name: "agent started", At: stampAt("02:52:00"), Detail: "takeover generation 2"},
		},
		Decisions: []*fleetv1.Decision{
			{Process: "provision", Verdict: "not-wanted", Reason: "the provider has created the machine"},
			{
				Process: "agent-start", Verdict: "later", Reason: "in backoff after a failure", DueAt: stampAt("03:13:00"),
				BackoffCause: "connection refused",
			},
			{Process: "install", Verdict: "running", Reason: "held", DueAt: stampAt("03:25:00"), Session: "01a1fc45-0000-7000-8000-000000000001", Epoch: 5},
		},
		InstallProgress: &agentv1.InstallProgress{
			InstallGeneration: 1, Attempt: 2, Phase: agentv1.InstallProgress_PHASE_WRITING, BytesDone: 1 << 28, BytesTotal: 1 << 30,
			WaitingFor: "oci://images.example/os: connection refused",
		},
		Hardware: someHardware(),
	}
}

func someHardware() *agentv1.HardwareReport {
	cpu := &agentv1.Cpu{Model: "AMD EPYC 7402P", Cores: 24, Threads: 48, Microcode: "0x830107a"}
	module := &agentv1.MemoryModule{SizeBytes: 32 << 30, Type: "DDR4", SpeedMts: 3200, ConfiguredSpeedMts: 2933}
	return &agentv1.HardwareReport{
		System: &agentv1.System{
			Vendor: "Supermicro", Product: "SYS-1019P", Serial: "S1", FirmwareVersion: "2.4", Efi: true, Kernel: "6.12", Architecture: "amd64",
			ChassisSerial: "C1", ChassisAssetTag: "rack 7", SecureBoot: agentv1.SecureBoot_SECURE_BOOT_DISABLED, TpmVersion: "2.0",
		},
		Bmc:            &agentv1.Bmc{IpmiVersion: "2.0", FirmwareVersion: "1.73", Address: "127.4.0.99", Ipv6Addresses: []string{"2001:db8::99"}, Mac: "3c:ec:ef:00:00:99"},
		Cpus:           []*agentv1.Cpu{cpu, cpu},
		OfflineThreads: 2, OfflineList: "96-97",
		NumaNodes: []*agentv1.NumaNode{{Cpus: "0-47", MemoryBytes: 32 << 30}, {Node: 1, Cpus: "48-95", MemoryBytes: 32 << 30}},
		Memory:    &agentv1.Memory{InstalledBytes: 64 << 30, UsableBytes: 62 << 30, Modules: []*agentv1.MemoryModule{module, module}},
		BlockDevices: []*agentv1.BlockDevice{
			{
				Name: "nvme0n1", Model: "PM9A3", Firmware: "GDC5602Q", Serial: "N1", SizeBytes: 3840755982336, LogicalSectorBytes: 512, PhysicalSectorBytes: 4096,
				Protocol: "nvme", Health: &agentv1.Health{Passed: true, PercentageUsed: 3, PowerOnHours: 12040, TemperatureCelsius: 41},
			},
			{
				Name: "sda", SizeBytes: 4000787030016, LogicalSectorBytes: 512, PhysicalSectorBytes: 512, Protocol: "sata", Rotational: true,
				Health:     &agentv1.Health{PercentageUsed: -1, ReallocatedSectors: 1204, PendingSectors: 24},
				OtherPaths: []string{"sdb"},
			},
		},
		NetworkInterfaces: []*agentv1.NetworkInterface{
			{Name: "bond0", Mac: "3c:ec:ef:00:00:01", Kind: "bond", Lower: []string{"eno1"}, Link: true, SpeedMbps: 10000, Mtu: 1500, Addresses: []string{"127.4.0.1/8", "fe80::1/64"}},
			{Name: "eno1", Mac: "3c:ec:ef:00:00:01", PermanentMac: "3c:ec:ef:00:00:0a", Firmware: "0x800007b6", Driver: "ixgbe", Link: true, SpeedMbps: 10000, Mtu: 1500},
			{Name: "eno2", Mac: "3c:ec:ef:00:00:02", Mtu: 1500},
		},
		PciDevices: []*agentv1.PciDevice{
			{Address: "0000:41:00.0", Kind: "gpu", Id: "10de:2331", SubsystemId: "10de:1626", Driver: "nvidia", Model: "NVIDIA H100 PCIe", NumaNode: 1},
			{Address: "0000:03:00.0", Kind: "display", Id: "1a03:2000", NumaNode: -1},
		},
		Warnings: []string{"sda: the health log cannot be read"},
	}
}
