package cli_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/cli"
	"github.com/ironherd/ironherd/internal/fleet"
)

var update = flag.Bool("update", false, "write golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	firstID  = "0199d3a0-0000-7000-8000-000000000001"
	secondID = "0199d3a0-0000-7000-8000-000000000002"
)

// fakeFleet answers as a small fleet would. A machine whose name is a code's, such as "not_found",
// gets an error of that code.
type fakeFleet struct {
	fleetv1connect.UnimplementedFleetServiceHandler

	mu        sync.Mutex
	lost      []error // what the first calls of GetMachine fail with
	looks     int     // calls of GetMachine that were answered
	authority string  // Authorization header of the last call
	installs  []*fleetv1.InstallMachineRequest
	plans     []*fleetv1.CreatePlanRequest
	// planned is the newest plan that was made, confirmed how often plans were.
	planned   *fleetv1.Plan
	confirmed int
	lists     []*fleetv1.ListMachinesRequest
	old       bool     // it does not know labels
	holds     []string // what was paused, resumed and tried again
	// summary is what GetSummary answers; nil: a fleet in trouble.
	summary *fleetv1.GetSummaryResponse
	// providers is what ListProviders answers; nil: three of them.
	providers []*fleetv1.Provider
}

func at(hour, minute int) *timestamppb.Timestamp {
	return timestamppb.New(time.Date(2026, 11, 21, hour, minute, 0, 0, time.UTC))
}

// ago is far enough in the past that its display does not change while a test runs.
func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(-d - d/100)) }

func machine() *fleetv1.Machine {
	return &fleetv1.Machine{
		Id: firstID, Provider: "metal", ProviderId: "dev-1", Hostname: "herd-0001", Address: "192.0.2.7", Location: "da11",
		State: "installed", Reason: "install generation 1", CreatedAt: at(9, 0), LastSeenAt: at(9, 20), AgentVersion: "v1.2.3",
		TakeoverGeneration: 1, InstallGeneration: 1, StateSince: at(9, 30), Labels: []string{"role=database", "zone=a"},
	}
}

func decisions() []*fleetv1.Decision {
	return []*fleetv1.Decision{
		{Process: "provision", Verdict: "waiting", Reason: "paused by anna: the bill; `ironherd provider resume metal --reason WHY` ends it"},
		{Process: "agent-start", Verdict: "later", Reason: "in backoff after 2 failures: dial: refused", DueAt: timestamppb.New(time.Now().Add(5*time.Hour + 2*time.Minute)), BackoffCause: "dial: refused"},
		{Process: "update", Verdict: "running", Reason: "held by session s1 (update on host, epoch 4)", DueAt: at(9, 31), Session: "s1", Epoch: 4},
	}
}

// failing returns the error that a machine's name asks for.
func failing(name string) error {
	for code := connect.CodeCanceled; code <= connect.CodeUnauthenticated; code++ {
		if code.String() == name {
			return connect.NewError(code, errors.New("no machine is named \""+name+"\""))
		}
	}
	return nil
}

func (f *fakeFleet) ListMachines(_ context.Context, r *fleetv1.ListMachinesRequest) (*fleetv1.ListMachinesResponse, error) {
	f.mu.Lock()
	f.lists = append(f.lists, r)
	f.mu.Unlock()
	if r.GetPageToken() == "" {
		first := machine()
		first.StateSince, first.LastSeenAt = ago(5*time.Minute), nil
		return &fleetv1.ListMachinesResponse{Machines: []*fleetv1.Machine{first}, NextPageToken: "2"}, nil
	}
	return &fleetv1.ListMachinesResponse{Machines: []*fleetv1.Machine{{
		Id: secondID, Provider: "metal", State: "creating", Reason: "waiting for creation pacing", StateSince: ago(3 * time.Hour),
	}}}, nil
}

func (f *fakeFleet) GetMachine(_ context.Context, r *fleetv1.GetMachineRequest) (*fleetv1.GetMachineResponse, error) {
	if err := f.loses(r.GetMachine()); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	if len(f.plans) > 0 && slices.Contains(f.plans[0].GetMachines(), "slow") {
		f.looks = 1 // nothing ever comes of it
		return f.operated()
	}
	if r.GetMachine() == "slow" {
		m := machine()
		m.State, m.Reason = "installing", "attempt 1 is under way"
		return &fleetv1.GetMachineResponse{Machine: m}, nil
	}
	if len(f.plans) > 0 {
		return f.operated()
	}
	if r.GetMachine() == "kept" {
		return kept(), nil
	}
	if len(f.installs) > 0 {
		return f.installing(), nil
	}
	return &fleetv1.GetMachineResponse{
		Machine: machine(),
		Facts: []*fleetv1.Fact{
			{Name: "provided", At: at(9, 0), Detail: "active at da11"},
			{Name: "install report", At: at(9, 25), Detail: "attempt 1 done: /dev/sda, 64 MiB\x1b[31m in 2s"},
		},
		Image: &fleetv1.NamedImage{Name: "debian-13", Location: "https://images.example/debian.raw.zst", Digest: "sha256:" + strings.Repeat("a1", 32), Compression: "zstd"},
		Hardware: &agentv1.HardwareReport{
			System: &agentv1.System{
				Vendor: "Dell Inc.", Product: "R640", Serial: "S1", Kernel: "6.1.0", Architecture: "amd64", Efi: true,
				ChassisSerial: "C1", ChassisAssetTag: "rack 7", SecureBoot: agentv1.SecureBoot_SECURE_BOOT_ENABLED, TpmVersion: "2.0",
			},
			Bmc:            &agentv1.Bmc{IpmiVersion: "2.0", FirmwareVersion: "5.10", Address: "192.0.2.99", Mac: "02:00:00:00:00:99"},
			Cpus:           []*agentv1.Cpu{{Model: "Xeon Gold 5120", Microcode: "0x2007006", Cores: 14, Threads: 28}, {Model: "Xeon Gold 5120", Socket: 1, Cores: 14, Threads: 28}},
			OfflineThreads: 2, OfflineList: "56-57",
			NumaNodes: []*agentv1.NumaNode{{Cpus: "0-27", MemoryBytes: 32 << 30}, {Node: 1, Cpus: "28-55", MemoryBytes: 32 << 30}},
			Memory: &agentv1.Memory{InstalledBytes: 64 << 30, UsableBytes: 63 << 30, Modules: []*agentv1.MemoryModule{
				{Locator: "A1", SizeBytes: 32 << 30, Type: "DDR4", SpeedMts: 3200, ConfiguredSpeedMts: 2933, Vendor: "Hynix", PartNumber: "HMA84GR7", Serial: "M1"},
				{Locator: "B1", SizeBytes: 32 << 30, Type: "DDR4", SpeedMts: 2933, ConfiguredSpeedMts: 2933},
			}},
			BlockDevices: []*agentv1.BlockDevice{
				{
					Name: "sda", SizeBytes: 480 << 30, Protocol: "sata", Model: "SSDSC2KG480", Serial: "B1", Firmware: "XCV10120", Wwn: "0x55cd2e4150e3a6b1",
					Health: &agentv1.Health{Passed: true, PercentageUsed: 7},
				},
				{Name: "sdb", SizeBytes: 4000 << 30, Protocol: "sas", Model: "ST4000NM", Serial: "B2", Health: &agentv1.Health{Passed: true, PercentageUsed: -1, PendingSectors: 24}},
			},
			NetworkInterfaces: []*agentv1.NetworkInterface{
				{Name: "bond0", Mac: "02:00:00:00:00:01", Link: true, SpeedMbps: 10000, Kind: "bond", Lower: []string{"eno1"}, Addresses: []string{"192.0.2.7/24"}},
				{Name: "eno1", Mac: "02:00:00:00:00:01", Driver: "ixgbe", Link: true, SpeedMbps: 10000, Firmware: "0x800007b6", BusId: "0000:19:00.0", PermanentMac: "3c:fd:fe:00:00:01"},
			},
			PciDevices: []*agentv1.PciDevice{{Address: "0000:41:00.0", Kind: "gpu", Id: "10de:2331", SubsystemId: "10de:1626", Driver: "nvidia", Model: "NVIDIA H100 PCIe"}},
			Warnings:   []string{"smart of sdb: permission denied"},
		},
		Decisions: decisions()[:1],
	}, nil
}

// operated plays an operation that comes forward with each look: a release and a power cycle end
// with a machine that is not there any more, the power-off of a machine fails, and whatever else is
// done.
func (f *fakeFleet) operated() (*fleetv1.GetMachineResponse, error) {
	verb := f.plans[0].GetVerb()
	o := &fleetv1.Operation{Number: 3, Operation: verb, At: at(10, 0), Actor: "token ada", Reason: "because"}
	if f.looks > 1 {
		o.Attempts, o.AcceptedAt = 1, at(10, 1)
	}
	if f.looks > 2 {
		if verb == "release" || verb == "power-cycle" {
			return nil, failing("not_found")
		}
		o.EndedAt, o.Ok, o.Detail = at(10, 2), verb != "power-off", "the agent came back with another boot ID"
		if verb == "power-off" {
			o.Detail = "no effect within 15m0s"
		}
	}
	if verb == "power-on" {
		o.Number++
	}
	return &fleetv1.GetMachineResponse{Machine: machine(), Operation: o}, nil
}

// CreatePlan plans for two machines where none or several were named. A machine whose name is that
// of an outcome has it. One that is named "gone" is not there any more once that is done.
func (f *fakeFleet) CreatePlan(_ context.Context, r *fleetv1.CreatePlanRequest) (*fleetv1.CreatePlanResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := r.GetMachines()
	if f.old && len(names) == 0 && r.GetProvider() == "" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("name machines, or select them by provider, state and location"))
	}
	if len(names) == 0 {
		names = []string{"herd-0001", "herd-0002"}
	}
	if err := failing(names[0]); err != nil {
		return nil, err
	}
	f.plans = append(f.plans, r)
	p := &fleetv1.Plan{
		Id: "k3j2m9x4qp", At: at(10, 0), ExpiresAt: at(10, 10), Actor: "token ada", Verb: r.GetVerb(), Reason: r.GetReason(), Until: r.GetUntil(),
		NeedsConfirmation: len(names) > 1 || r.GetVerb() == "release" || r.GetVerb() == "reinstall" || strings.HasSuffix(names[0], "in-use"),
	}
	for _, name := range names {
		m := &fleetv1.PlannedMachine{MachineId: firstID, Name: name, State: "installed", Does: "metal does it", InUse: "installed (generation 1)"}
		if name == "gone" {
			m.MachineId = "not_found"
		}
		if p.GetNeedsConfirmation() {
			m.Destroys = "what is on the disk"
		}
		p.Machines = append(p.Machines, m)
	}
	if f.planned = p; r.GetConfirm() || r.GetConfirmHarmless() && !p.GetNeedsConfirmation() {
		confirmed(p)
	}
	a := &fleetv1.CreatePlanResponse{Plan: p, Labels: r.GetLabels()}
	if f.old {
		a.Labels = nil
	}
	return a, nil
}

func confirmed(p *fleetv1.Plan) {
	again := p.GetConfirmedAt() != nil
	p.ConfirmedAt = at(10, 1)
	for _, m := range p.GetMachines() {
		m.Outcome, m.Detail, m.Operation = "done", p.GetVerb()+" is asked for (operation 3)", 3
		if again && m.GetName() == "gone" {
			m.Operation = 0
		}
		if m.GetName() == "skipped" || m.GetName() == "refused" {
			m.Outcome, m.Detail, m.Operation = m.GetName(), "it was installed when the plan was made, and is silent now", 0
		}
	}
}

func (f *fakeFleet) GetPlan(_ context.Context, r *fleetv1.GetPlanRequest) (*fleetv1.GetPlanResponse, error) {
	return &fleetv1.GetPlanResponse{Plan: plan()}, failing(r.GetId())
}

func plan() *fleetv1.Plan {
	return &fleetv1.Plan{
		Id: "k3j2m9x4qp", At: at(10, 0), ExpiresAt: at(10, 10), Actor: "token ada", Verb: "release", Reason: "end of lease", NeedsConfirmation: true,
		Machines: []*fleetv1.PlannedMachine{
			{
				MachineId: firstID, Name: "herd-0001", State: "installed", InUse: "installed (generation 1)",
				Does: "it is given back to metal", Destroys: "what is on it is lost",
			},
			{MachineId: secondID, Name: "skipped", State: "maintenance", Refused: "machine skipped is in maintenance by ada"},
		},
	}
}

func (f *fakeFleet) ConfirmPlan(_ context.Context, r *fleetv1.ConfirmPlanRequest) (*fleetv1.ConfirmPlanResponse, error) {
	if err := failing(r.GetId()); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.planned
	if p == nil {
		p = plan()
	}
	f.confirmed++
	if p.GetReason() == "the reply is lost" {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("connection reset"))
	}
	confirmed(p)
	return &fleetv1.ConfirmPlanResponse{Plan: p}, nil
}

func (f *fakeFleet) GetSummary(context.Context, *fleetv1.GetSummaryRequest) (*fleetv1.GetSummaryResponse, error) {
	if f.summary != nil {
		return f.summary, nil
	}
	return &fleetv1.GetSummaryResponse{
		Machines: 1000, States: []*fleetv1.StateCount{{State: "silent", Machines: 900}, {State: "installed", Machines: 100}},
		Processes: []*fleetv1.ProcessCount{{Process: "recovery", Due: 7, NoRoom: 4}},
		Concerns: []*fleetv1.Concern{{Kind: "state", Subject: "silent", Count: 900, Text: "900 silent"}, {
			Kind: "host-key", Subject: firstID, Count: 1, Text: "a machine shows a host key that is not the known one: `ironherd machine explain " + firstID + "` tells what accepts it",
		}},
		RecoveryHold: &fleetv1.RecoveryHold{
			At: at(10, 0), Until: at(11, 0), Actor: fleet.ActorBMDB, Cause: string(fleet.StopSilence), Reason: "900 of 1000 machines with an agent are silent: the fault is probably ours (listener, network, certificate, clock)",
			Suspects: []string{
				"whether machines reach the listener at herd.example:7443: one is up since 09:00:00 UTC",
				"its certificate: it has expired at 2026-11-21 09:30:00 UTC",
			},
		},
	}, nil
}

func (f *fakeFleet) hold(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holds = append(f.holds, what)
}

func (f *fakeFleet) AdoptMachine(_ context.Context, r *fleetv1.AdoptMachineRequest) (*fleetv1.AdoptMachineResponse, error) {
	f.hold("adopt " + r.GetProvider() + " " + r.GetProviderId() + ": " + r.GetReason())
	a := &fleetv1.AdoptMachineResponse{Installed: r.GetInstalled() && r.GetProviderId() != "dev-old-server"}
	if r.GetProviderId() == "dev-paused" {
		a.Paused = &fleetv1.ProviderPause{Provider: r.GetProvider(), At: at(10, 0), Actor: "anna", Reason: "the bill"}
	}
	return a, failing(r.GetProviderId())
}

func (f *fakeFleet) ListHistory(_ context.Context, r *fleetv1.ListHistoryRequest) (*fleetv1.ListHistoryResponse, error) {
	if r.GetProvider() != "" {
		f.hold(fmt.Sprintf("history of %s, without what finished: %t", r.GetProvider(), r.GetWithoutFinished()))
	}
	if r.GetProvider() == "quiet" {
		return &fleetv1.ListHistoryResponse{}, nil
	}
	return &fleetv1.ListHistoryResponse{Entries: []*fleetv1.HistoryEntry{
		{
			At: at(9, 2), Actor: "agent-start on ctl1", Process: "agent-start", Epoch: 1, Event: string(fleet.EventFailed), Detail: "dial: refused",
			RetryAt: at(9, 3), StartedAt: at(9, 1), Why: "the machine needs an agent",
		},
		{At: at(9, 25), Actor: "agent", Event: string(fleet.EventDiskWritten), Detail: "install generation 1, attempt 1: 67108864 bytes to sda in 2s"},
		{At: at(9, 30), Actor: fleet.ActorBMDB, Event: string(fleet.EventExpired), Detail: "session 1 ended before the work did"},
	}}, failing(r.GetMachine())
}

func (f *fakeFleet) ExplainMachine(_ context.Context, r *fleetv1.ExplainMachineRequest) (*fleetv1.ExplainMachineResponse, error) {
	command := "ironherd machine unquarantine " + firstID + " --reason WHY"
	return &fleetv1.ExplainMachineResponse{
		Machine: machine(), Decisions: decisions(),
		Summary: "Nothing is wanted of this machine. It is your turn: `" + command + "` (work comes back).",
		Next:    &fleetv1.NextStep{Who: "operator", What: "work comes back", Command: command},
	}, failing(r.GetMachine())
}

func (f *fakeFleet) ListProviders(_ context.Context, r *fleetv1.ListProvidersRequest) (*fleetv1.ListProvidersResponse, error) {
	if f.providers != nil {
		return &fleetv1.ListProvidersResponse{Providers: f.providers}, nil
	}
	var kept []*fleetv1.Penalty
	if r.GetKeptOutOf() == "rack" {
		kept = []*fleetv1.Penalty{
			{Capacity: "node4", Cause: "release, asked for by anna: sold"}, {Capacity: "node5", Until: at(11, 0), Cause: "the machine on it failed to provision"},
		}
	}
	return &fleetv1.ListProvidersResponse{Providers: []*fleetv1.Provider{
		{Name: "metal", Kind: "equinix", Machines: 12, MaxMachines: 50, OpenIntents: 1, LastPassAt: ago(time.Minute * 7), LastPass: "12 used, 3 free"},
		{
			Name: "rack", Kind: "static", Machines: 2, Discrepancies: 1, Penalties: 3, KeptOut: kept, LastPassAt: ago(time.Minute * 3), LastPass: "creation is stopped: 1 discrepancy",
			Pacing:   "one call each 2s at most, of all control planes together",
			Unusable: []string{`line 7: host "c": address must be an IPv4 or IPv6 address, not "node3\x1b[2J"`},
		},
		{Name: "oldlab", Kind: "static", Machines: 1, LastPass: "1 used", Unserved: []string{"provisioner", "updater"}},
	}}, nil
}

func (f *fakeFleet) ListSessions(_ context.Context, r *fleetv1.ListSessionsRequest) (*fleetv1.ListSessionsResponse, error) {
	sessions := []*fleetv1.Session{{
		Id: "0199d3a0-1111-7000-8000-000000000001", Role: "initializer", Component: "agent-start", Host: "ctl1", Pid: 42, StartedAt: ago(26 * time.Hour),
		Deadline: timestamppb.New(time.Now().Add(time.Hour * 3)),
		Holds:    []*fleetv1.Hold{{Process: "agent-start", Subject: firstID, Epoch: 7, Since: at(9, 0)}}, Providers: []string{"a", "b", "c", "d"},
	}}
	if r.GetAll() {
		sessions = append(sessions, &fleetv1.Session{Id: "0199d3a0-1111-7000-8000-000000000000", Role: "updater", Component: "update", Host: "ctl1", Pid: 41, StartedAt: ago(27 * time.Hour), EndedAt: ago(3 * time.Hour), EndCause: "expired"})
	}
	return &fleetv1.ListSessionsResponse{Sessions: sessions}, nil
}

func (f *fakeFleet) ListDiscrepancies(context.Context, *fleetv1.ListDiscrepanciesRequest) (*fleetv1.ListDiscrepanciesResponse, error) {
	return &fleetv1.ListDiscrepanciesResponse{Discrepancies: []*fleetv1.Discrepancy{{
		Provider: "metal", Kind: string(fleet.DiscrepancyUnknownMachine), ProviderId: "dev-9", Since: ago(3 * time.Hour), Evidence: "device dev-9 has our prefix",
		Remedy: fleet.DiscrepancyUnknownMachine.Remedy("metal", "dev-9"),
	}}}, nil
}

func (f *fakeFleet) ListImages(context.Context, *fleetv1.ListImagesRequest) (*fleetv1.ListImagesResponse, error) {
	return &fleetv1.ListImagesResponse{Images: []*fleetv1.NamedImage{
		{Name: "debian-13", Location: "https://images.example/debian-13.raw.zst", Digest: "sha256:" + strings.Repeat("ab", 32), Compression: "zstd", Size: 835 << 20, FirstBoot: "area", Architecture: "amd64"},
		{Name: "jammy", Location: "oci://registry.example/jammy@sha256:" + strings.Repeat("01", 32), Compression: "layer", FirstBoot: "nocloud"},
		{Name: "trixie", Location: "https://cloud.example/trixie.raw", FileDigest: "sha512:" + strings.Repeat("02", 64), Compression: "none", FirstBoot: "nocloud"},
	}}, nil
}

func (f *fakeFleet) GetVersion(context.Context, *fleetv1.GetVersionRequest) (*fleetv1.GetVersionResponse, error) {
	return &fleetv1.GetVersionResponse{Version: "v1.2.2", GoVersion: "go1.26", Database: "sqlite", Schema: 3}, nil
}

func (f *fakeFleet) InstallMachine(_ context.Context, r *fleetv1.InstallMachineRequest) (*fleetv1.InstallMachineResponse, error) {
	if err := failing(r.GetMachine()); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.installs = append(f.installs, r)
	return &fleetv1.InstallMachineResponse{InstallGeneration: 2}, nil
}

func (f *fakeFleet) RetryMachine(_ context.Context, r *fleetv1.RetryMachineRequest) (*fleetv1.RetryMachineResponse, error) {
	if err := failing(r.GetMachine()); err != nil {
		return nil, err
	}
	return &fleetv1.RetryMachineResponse{Processes: []string{"agent-start"}}, nil
}

func (f *fakeFleet) GetHostKeys(_ context.Context, r *fleetv1.GetHostKeysRequest) (*fleetv1.GetHostKeysResponse, error) {
	if err := failing(r.GetMachine()); err != nil {
		return nil, err
	}
	return &fleetv1.GetHostKeysResponse{
		Known: []*fleetv1.HostKey{{Fingerprint: "SHA256:AAAA", Key: "ssh-ed25519 AAAA"}}, Source: "installed system", Since: ago(50 * time.Minute),
		Refused: &fleetv1.HostKey{Fingerprint: "SHA256:BBBB", Key: "ssh-ed25519 BBBB"}, RefusedAt: ago(5 * time.Minute),
	}, nil
}

func (f *fakeFleet) AcceptHostKey(_ context.Context, r *fleetv1.AcceptHostKeyRequest) (*fleetv1.AcceptHostKeyResponse, error) {
	if r.GetFingerprint() != "SHA256:BBBB" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("no such key was refused"))
	}
	f.hold("accept " + r.GetFingerprint() + ": " + r.GetReason())
	return &fleetv1.AcceptHostKeyResponse{}, failing(r.GetMachine())
}

// fakeServer serves a fake fleet over HTTP.
type fakeServer struct {
	*fakeFleet
	url string
}

func newFakeServer(t *testing.T) *fakeServer {
	t.Helper()
	f := &fakeFleet{}
	return serveFake(t, f, f)
}

// serveFake serves a fake, or what is built on it.
func serveFake(t *testing.T, f *fakeFleet, service fleetv1connect.FleetServiceHandler) *fakeServer {
	t.Helper()
	_, handler := fleetv1connect.NewFleetServiceHandler(service)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.authority = r.Header.Get("Authorization")
		f.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return &fakeServer{fakeFleet: f, url: server.URL}
}

// result is what a command line came to.
type result struct {
	code           int
	stdout, stderr string
}

// run runs a command line against the fake fleet.
func (h *fakeServer) run(t *testing.T, args ...string) result {
	t.Helper()
	return run(t, nil, append(args, "--server", h.url)...)
}

func run(t *testing.T, environ []string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := cli.Main(t.Context(), args, cli.Env{
		Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr, Environ: environ,
		Executable: filepath.Join(t.TempDir(), "ironherd"), Version: "v1.2.3",
	})
	return result{code, stdout.String(), stderr.String()}
}

// golden compares with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}
