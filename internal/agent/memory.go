package agent

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/clock"
	"github.com/ironherd/ironherd/internal/agent/install"
	"github.com/ironherd/ironherd/internal/agent/inventory"
	"github.com/ironherd/ironherd/internal/agent/kexec"
	"github.com/ironherd/ironherd/internal/agent/network"
	"github.com/ironherd/ironherd/internal/agent/pid1"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

const (
	// systemPath is where the system in memory finds its description, and statePath the agent's
	// state.
	systemPath = "/ironherd/system"
	statePath  = "/var/lib/ironherd-agent/state"
	// seedPath is where it finds randomness of the old system.
	seedPath = "/ironherd/seed"
	// maxContactLog is how much of its log an agent in memory sends with its first heartbeat.
	maxContactLog = 8 << 10
	// maxJumpWarnings bounds the warnings of a jump for an install, and maxJumpWarning each of them,
	// in bytes. A control plane keeps no more of an install.
	maxJumpWarnings = 10
	maxJumpWarning  = 300
	// wordsWait is how long the firmware may take to keep the last words.
	wordsWait = 10 * time.Second
)

// rootFiles are where distributions keep the public roots (crypto/x509's own list).
var rootFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
	"/etc/pki/tls/cacert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

// hostKexec takes over the machine that this process runs on.
type hostKexec struct {
	env Env
	// answer is where what Leave has started waits for the response of the takeover.
	answer *os.File
}

// Load implements takeover.Kexec.
func (*hostKexec) Load(ctx context.Context, state *agentv1.AgentState) (warnings []string, err error) {
	plane, port, err := net.SplitHostPort(state.GetInit().GetEndpoint())
	if err != nil {
		return nil, fmt.Errorf("the endpoint is not host:port: %w", err)
	}
	carried, warnings, err := network.Capture(ctx, plane, port)
	if err != nil {
		return nil, err
	}
	pinned, err := pinNames(ctx, carried, state, network.Asks, net.DefaultResolver.LookupHost)
	if err != nil {
		return nil, err
	}
	warnings = append(warnings, pinned...)
	plan, err := kexec.Survey("/", network.Kinds(carried))
	if err != nil {
		return nil, err
	}
	system := &agentv1.MemorySystem{Network: carried, BuiltAt: timestamppb.New(clock.NotBefore(state.GetInit().GetSentAt())())}
	for _, module := range plan.Modules {
		system.Modules = append(system.Modules, module.Target())
	}
	if ahead, ok := pid1.ClockAhead(); ok {
		system.ClockAheadMs = ahead.Milliseconds()
	} else {
		warnings = append(warnings, "the machine has no hardware clock; the clock goes on from now")
	}
	files := append(marks("/"), kexec.File{Path: seedPath, Mode: 0o600, Data: pid1.NewSeed()})
	roots, warning, err := publicRoots("/", state.GetInit())
	if err != nil {
		return nil, err
	}
	if warning != "" {
		warnings = append(warnings, warning)
	} else {
		files = append(files, kexec.File{Path: rootFiles[0], Mode: 0o644, Data: roots})
	}
	warnings = append(warnings, plan.Warnings...)
	disks, warning := disksBefore(ctx, lookFor(state), func(limit time.Duration) ([]*agentv1.BlockDevice, error) {
		return inventory.DisksWithin("/", limit)
	})
	if warning != "" {
		warnings = append(warnings, warning)
	}
	resident := residentState(state, warnings)
	resident.DisksBefore = disks
	described, err := proto.Marshal(system)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", systemPath, err)
	}
	kept, err := encodeState(resident)
	if err != nil {
		return nil, err
	}
	files = append(files, kexec.File{Path: systemPath, Mode: 0o600, Data: described}, kexec.File{Path: statePath, Mode: 0o600, Data: kept})
	return warnings, plan.Load(files)
}

// marks are files that say of the host below root what a kernel in memory may not show.
func marks(root string) (files []kexec.File) {
	if _, err := os.Stat(filepath.Join(root, "sys/firmware/efi")); err == nil {
		files = append(files, kexec.File{Path: "/" + install.EFIMark, Mode: 0o644})
	}
	return files
}

// residentState is what an agent in memory goes on with. After a jump for an install nobody has
// been told the warnings: the report of the install does it.
func residentState(state *agentv1.AgentState, warnings []string) *agentv1.AgentState {
	resident := proto.CloneOf(state)
	resident.Init.Mode = agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC
	if len(resident.GetPendingInstall()) > 0 {
		if len(warnings) > maxJumpWarnings {
			kept := warnings[:maxJumpWarnings-1]
			warnings = append(slices.Clone(kept), fmt.Sprintf("%d more warnings were left out", len(warnings)-len(kept)))
		}
		for _, warning := range warnings {
			resident.JumpWarnings = append(resident.JumpWarnings, strings.ToValidUTF8(warning[:min(len(warning), maxJumpWarning)], "?"))
		}
	}
	return resident
}

// encodeState encodes the state for the agent in memory. It fails where that could not read it: the
// system would be ended for nothing.
func encodeState(resident *agentv1.AgentState) ([]byte, error) {
	data, err := proto.Marshal(resident)
	if err != nil {
		return nil, fmt.Errorf("encode the state for the agent in memory: %w", err)
	}
	if err := takeover.CheckState(data); err != nil {
		return nil, fmt.Errorf("the agent in memory could not read its state: %w", err)
	}
	return data, nil
}

// publicRoots returns the root certificates of the host below root. Where it has none, there is a
// warning instead, or an error if the agent could not connect without.
func publicRoots(root string, init *agentv1.TakeoverInit) (roots []byte, warning string, err error) {
	for _, path := range rootFiles {
		data, err := os.ReadFile(filepath.Join(root, path))
		if err == nil && x509.NewCertPool().AppendCertsFromPEM(data) {
			return data, "", nil
		}
	}
	if len(init.GetCaCertificate()) == 0 {
		return nil, "", errors.New("the host has no root certificates, so the agent in memory could not trust the control plane: " +
			"install ca-certificates, or set initializer.endpoint_ca")
	}
	return nil, "the host has no root certificates: images from servers with a public certificate cannot be fetched", nil
}

// Unload implements takeover.Kexec.
func (*hostKexec) Unload() { _ = kexec.Unload() }

// inMemory says whether this process is the first one of a system in memory.
func inMemory(env Env) bool {
	if os.Getpid() != 1 || filepath.Clean(env.Root) != "/" {
		return false
	}
	_, err := os.Stat(systemPath)
	return err == nil
}

// beFirst is the agent as the first process of a machine. It ends with a restart of the machine.
func beFirst(ctx context.Context, env Env) int {
	mounted := pid1.Mount()
	console := pid1.OpenConsole()
	logger := slog.New(slog.NewTextHandler(console, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	if mounted != nil {
		logger.Error("not everything is mounted", slog.Any("err", mounted))
	}
	logger.Info("the agent is in memory", slog.String("version", env.Version))
	children, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(children, syscall.SIGCHLD)
	go pid1.Reap(children, done)
	m := &memory{env: env, log: logger, console: console, store: takeover.NewStore("/"), devices: "/dev", lastWords: pid1.WriteLastWords, reboot: rebootKernel}
	m.prepare = m.makeReady
	m.leave(m.run(ctx))
	return exitFailed
}

// withoutTime leaves out what the kernel's log has by itself.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// memory is a system in memory.
type memory struct {
	env     Env
	log     *slog.Logger
	console *pid1.Console
	store   *takeover.Store
	contact contact
	// network is what was carried over.
	network *agentv1.Network
	// prepare makes the machine ready for its network. It may hang.
	prepare   func(*agentv1.MemorySystem)
	watchdogs pid1.Watchdogs
	// devices is the directory of the watchdogs. lastWords leaves words in the firmware, and reboot
	// restarts the machine.
	devices   string
	lastWords func(*agentv1.LastWords) error
	reboot    func(root string) error
}

// run is the life of the system. It returns why it has to end.
func (m *memory) run(ctx context.Context) string {
	data, err := os.ReadFile(systemPath)
	system := new(agentv1.MemorySystem)
	if err == nil {
		err = proto.Unmarshal(data, system)
	}
	if err != nil {
		return fmt.Sprintf("the agent in memory cannot read its description: %v", err)
	}
	state, err := m.store.Load()
	if err != nil {
		return fmt.Sprintf("the agent in memory cannot read its state: %v", err)
	}
	host, _, err := net.SplitHostPort(state.GetInit().GetEndpoint())
	if err != nil {
		return fmt.Sprintf("the agent in memory does not know its control plane: %v", err)
	}
	return m.supervise(ctx, system, host, takeover.ContactLimit(state.GetInit()))
}

// supervise makes the machine and its network, which must lead to the host, ready, lets the agent
// run, and ends it when it has no contact for too long. What it makes ready may hang, such as the
// initialization of a driver, so it watches from the very beginning.
func (m *memory) supervise(ctx context.Context, system *agentv1.MemorySystem, host string, limit time.Duration) string {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.contact.begin(limit)
	m.network = system.GetNetwork()
	ended := make(chan error, 1)
	go func() {
		m.prepare(system)
		kept, err := network.Apply(ctx, system.GetNetwork(), host, m.log)
		if err != nil {
			m.contact.failed(err)
			m.log.Error("the network is not up", slog.Any("err", err))
		}
		go kept.Keep(ctx, m.contact.wasAdmitted)
		ended <- Run(ctx, m.options())
	}()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			m.watchdogs.Feed()
			if cause := m.contact.lost(); cause != "" && !m.wroteDisk() {
				return cause
			}
		case err := <-ended:
			if back, ok := errors.AsType[*givenBackError](err); ok {
				return back.Error()
			}
			return fmt.Sprintf("the agent in memory has ended: %v", err)
		}
	}
}

// makeReady gives the kernel randomness, loads the drivers, mounts what needs one, and sets the
// clock.
func (m *memory) makeReady(system *agentv1.MemorySystem) {
	m.contact.failed(errors.New("the drivers are not all loaded"))
	if err := pid1.AddSeed(seedPath); err != nil {
		m.log.Warn("the kernel has to gather its own randomness", slog.Any("err", err))
	}
	_ = m.startWatchdogs() // their drivers may be built in
	for _, path := range system.GetModules() {
		pid1.LoadModule(path, m.log)
		_ = m.startWatchdogs() // the next driver may take the kernel down
	}
	if err := m.startWatchdogs(); err != nil {
		m.log.Warn("a hardware watchdog cannot be used", slog.Any("err", err))
	}
	if !m.watchdogs.Running() {
		m.log.Info("no hardware watchdog is on: a kernel that hangs stays so until somebody restarts the machine")
	}
	if err := pid1.MountEFI(); err != nil {
		m.log.Warn("the variables of the firmware are not there", slog.Any("err", err))
	}
	pid1.SetClock(time.Duration(system.GetClockAheadMs())*time.Millisecond, system.GetBuiltAt().AsTime(), m.log)
	m.contact.failed(nil)
}

// startWatchdogs starts the hardware watchdogs that do not run yet. makeReady calls it, and what
// comes after it.
func (m *memory) startWatchdogs() error {
	started, err := m.watchdogs.Start(m.devices)
	for _, path := range started {
		m.log.Info("a hardware watchdog is on", slog.String("path", path))
	}
	return err
}

// options are those of the agent in memory.
func (m *memory) options() Options {
	return Options{
		Root: "/", Version: m.env.Version, Logger: m.log,
		Mode: agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC, Log: func() string { return m.console.Kept(maxContactLog) },
		Contact: m.contact.heard, network: m.network, loadInstalled: kexec.LoadInstalled,
		Reboot:         func(context.Context) error { return m.restart() },
		startInstalled: func(context.Context) error { return m.unguarded(kexec.Start) },
	}
}

// restart restarts the machine. It returns when the machine does not go down.
func (m *memory) restart() error {
	return m.unguarded(func() error { return m.reboot("/") })
}

// unguarded stops the watchdogs for the way out of this system: neither the firmware, which may
// take longer than they wait, nor an installed system need feed them. They are started again when
// leave returns, because the machine is still here then.
func (m *memory) unguarded(leave func() error) error {
	m.watchdogs.Stop()
	err := leave()
	_ = m.startWatchdogs()
	return err
}

// wroteDisk says whether the disk may hold no system any more, so that the machine stays, and
// reports.
func (m *memory) wroteDisk() bool {
	state, err := m.store.Load()
	begun, bootErr := begunUnderThisBoot(state)
	return err == nil && bootErr == nil && begun && !installed(state)
}

// begunUnderThisBoot says whether an install has begun to write a disk since the jump.
func begunUnderThisBoot(state *agentv1.AgentState) (bool, error) {
	bootID, err := takeover.BootID("/")
	return state.GetFirstInstallBootId() == bootID, err
}

// installed says whether the newest install has ended well, and only its acknowledgment has not
// come. The disk then holds a system that boots.
func installed(state *agentv1.AgentState) bool {
	report := new(agentv1.InstallReport)
	if proto.Unmarshal(state.GetUnacknowledgedReport(), report) != nil || state.GetInstallRunning() || len(state.GetPendingInstall()) > 0 {
		return false
	}
	return report.GetOk() && report.GetInstallGeneration() == state.GetInstallGeneration() && report.GetAttempt() == state.GetInstallAttempt()
}

// leave restarts the machine into the system on its disk, and leaves the cause where it can.
func (m *memory) leave(cause string) {
	m.log.Error("the machine is restarted into the system on its disk", slog.String("cause", cause))
	state, err := m.store.Load()
	if err == nil {
		begun, bootErr := begunUnderThisBoot(state)
		err = m.leaveWords(&agentv1.LastWords{
			MachineId: state.GetInit().GetMachineId(), TakeoverGeneration: state.GetInit().GetTakeoverGeneration(), Cause: cause,
			NothingWritten: bootErr == nil && !begun,
		})
	}
	if err != nil {
		m.log.Warn("the cause cannot be left in the firmware", slog.Any("err", err))
	}
	for {
		if err := m.restart(); err != nil {
			m.log.Error("the machine cannot be restarted", slog.Any("err", err))
		}
		timer := time.NewTimer(rebootWait)
		<-timer.C
	}
}

// leaveWords leaves words in the firmware, which may never come back from it.
func (m *memory) leaveWords(words *agentv1.LastWords) error {
	wrote := make(chan error, 1)
	go func() { wrote <- m.lastWords(words) }()
	timer := time.NewTimer(wordsWait)
	defer timer.Stop()
	select {
	case err := <-wrote:
		return err
	case <-timer.C:
		return fmt.Errorf("the firmware has not answered within %s", wordsWait)
	}
}
