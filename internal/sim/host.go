package sim

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/ssh"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/sim/equinixapi"
	"github.com/ironherd/ironherd/internal/sim/fault"
	"github.com/ironherd/ironherd/internal/sim/hardware"
)

// What a machine has booted.
const (
	systemBooting   = ""          // nothing yet
	systemProvider  = "provider"  // the provider's operating system
	systemRescue    = "rescue"    // a rescue system from the network
	systemInstalled = "installed" // what an agent has installed
	systemDead      = "dead"      // nothing: a disk without its image, or a broken machine
)

// hostRecord is what the journal has of a machine.
type hostRecord struct {
	Device     string `json:"device"`
	Slot       int    `json:"slot"`
	Generation int    `json:"generation"`
	Hostname   string `json:"hostname"`

	// HostKey is what user data gave the provider's system as its SSH host key, in OpenSSH form;
	// empty: it made one of its own.
	HostKey string `json:"host_key,omitempty"`

	On bool `json:"on"`
	// BootID, Boots (the number of boots) and UpAt are of the newest boot. System is what it booted.
	BootID string    `json:"boot_id"`
	Boots  int       `json:"boots"`
	UpAt   time.Time `json:"up_at"`
	Rescue bool      `json:"rescue,omitempty"`
	System string    `json:"system"`
	// Agent is the path of the agent that runs since this boot.
	Agent string `json:"agent,omitempty"`
	// Breaks is the fault that breaks the machine at BreaksAt, or has broken it; empty: none.
	Breaks   fault.Kind `json:"breaks,omitempty"`
	BreaksAt time.Time  `json:"breaks_at,omitzero"`
	// Installed is the newest installed system that was verified.
	Installed *installedSystem `json:"installed,omitempty"`
	Verified  int              `json:"verified,omitempty"`
	Rejected  int              `json:"rejected,omitempty"`
}

// installedSystem is an installed system that was verified.
type installedSystem struct {
	// FirstBoot is the encoded payload of its first-boot area.
	FirstBoot    []byte `json:"first_boot"`
	Acknowledged bool   `json:"acknowledged,omitempty"`
	// Watched: the control plane has asked for further calls.
	Watched bool `json:"watched,omitempty"`
}

// host is one simulated machine.
type host struct {
	world   *World
	machine hardware.Machine
	root    string
	address netip.Addr
	real    bool

	mu     sync.Mutex
	record hostRecord
	period *period
	// agents counts the long-lived parts of agents that run in this process.
	agents int
}

// period is the time from a power-on or reset to the next one, or to the loss of power.
type period struct {
	// over is closed when the period is to end, by cancel or with the world.
	over   <-chan struct{}
	cancel context.CancelFunc
	// booted is closed when the machine has booted, or has found nothing to boot.
	booted chan struct{}
	// done is closed when everything that ran in the period has ended.
	done  chan struct{}
	tasks sync.WaitGroup
}

func (p *period) isOver() bool {
	select {
	case <-p.over:
		return true
	default:
		return false
	}
}

var errPoweredOff = errors.New("the machine is powered off")

// errOver says that the period in which something was to be done is over.
var errOver = errors.New("the machine was restarted meanwhile")

// init sets the fields that follow from the record.
func (h *host) init() {
	r := &h.record
	h.machine = hardware.New(h.world.self.Seed, r.Slot)
	h.root = filepath.Join(h.world.cfg.Dir, "hosts", fmt.Sprintf("%05d-%.8s", r.Slot, r.Device))
	h.address = publicAddress(h.world.self.Network, r.Slot)
	h.real = r.Slot < h.world.cfg.RealAgents
}

func (h *host) snapshot() hostRecord {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.record
}

// derive returns bytes that depend only on the world's seed, a purpose, the machine of the record
// and n. The record is the caller's, who may not hold the lock.
func (h *host) derive(purpose string, record hostRecord, n int) [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%s %d %s %d", purpose, h.world.self.Seed, record.Device, n))
}

// hostKey is the SSH host key of the system that the machine runs: each installation, by the
// provider or by a control plane, makes one of its own, unless user data or the install brought
// one.
func (h *host) hostKey(record hostRecord) (ssh.Signer, error) {
	if record.HostKey != "" && record.System != systemInstalled {
		return ssh.ParsePrivateKey([]byte(record.HostKey))
	}
	seed := h.derive("host key", record, record.Generation)
	if record.System == systemInstalled {
		first := new(agentv1.FirstBoot)
		if err := proto.Unmarshal(record.Installed.FirstBoot, first); err == nil && first.GetSshHostKey() != nil {
			return ssh.ParsePrivateKey(first.GetSshHostKey().GetPrivate())
		}
		seed = sha256.Sum256(append(seed[:], record.Installed.FirstBoot...))
	}
	return ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(seed[:]))
}

func (h *host) bootID(record hostRecord) string {
	sum := h.derive("boot", record, record.Boots)
	id := uuid.UUID(sum[:16])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id.String()
}

// bootTime is how long the newest boot of the record takes.
func (h *host) bootTime(record hostRecord) time.Duration {
	span := h.world.cfg.span(h.world.cfg.Durations.Boot)
	if span.Max <= span.Min {
		return span.Min
	}
	sum := h.derive("boot time", record, record.Boots)
	return span.Min + time.Duration(binary.BigEndian.Uint64(sum[:])%uint64(span.Max-span.Min))
}

// install builds the machine as the provider hands it over, powered off.
func (h *host) install(ctx context.Context, d equinixapi.Deployment) error {
	if err := h.world.acquireCPU(ctx); err != nil {
		return err
	}
	defer h.world.releaseCPU()
	h.mu.Lock()
	h.record.Device, h.record.Slot, h.record.Generation, h.record.Hostname = d.Device, d.Slot, d.Generation, d.Hostname
	h.record.Installed, h.record.HostKey = nil, ""
	if _, ignored := h.world.faults.Fire(fault.UserDataIgnored); !ignored {
		h.record.HostKey = injectedHostKey(d.UserData)
	}
	h.init()
	h.mu.Unlock()
	if err := h.machine.Build(h.root, h.world.shared); err != nil {
		return err
	}
	if h.real {
		if err := h.makeResetButton(); err != nil {
			return err
		}
	}
	for name, content := range h.world.preload {
		if err := content.Place(h.root, name); err != nil {
			return fmt.Errorf("preload %s: %w", name, err)
		}
	}
	return h.writeSystem(d)
}

// writeSystem writes the files of the provider's operating system.
func (h *host) writeSystem(d equinixapi.Deployment) error {
	var keys strings.Builder
	for _, key := range d.AuthorizedKeys {
		keys.WriteString(strings.TrimSpace(key) + "\n")
	}
	if err := os.Mkdir(filepath.Join(h.root, "root/.ssh"), 0o700); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"root/.ssh/authorized_keys": keys.String(),
		"etc/hostname":              d.Hostname + "\n",
	} {
		if err := os.WriteFile(filepath.Join(h.root, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// removeFiles removes everything that the machine has on disk.
func (h *host) removeFiles() error {
	if h.root == "" {
		return nil
	}
	return os.RemoveAll(h.root)
}

// acquireCPU waits until few enough machines keep a processor busy. releaseCPU ends what it
// permits.
func (w *World) acquireCPU(ctx context.Context) error {
	select {
	case w.cpuSlots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *World) releaseCPU() { <-w.cpuSlots }

// bootKind is why a machine boots.
type bootKind int

const (
	bootDeploy bootKind = iota
	bootPowerOn
	bootReset
	bootRescue
)

// mended reports whether a machine that broke, or is about to, is whole again after that boot.
func mended(broken fault.Kind, kind bootKind) bool {
	switch broken {
	case fault.HostHangs:
		return true
	case fault.HostFrozen:
		return kind == bootPowerOn || kind == bootDeploy
	case fault.HostDiskLost:
		return kind == bootDeploy
	}
	return false
}

// boot starts a new boot. A running system loses its power first. When boot returns without an
// error, the boot cannot be undone. The machine is up at upAt, or after the time that a boot takes
// if upAt is zero.
func (h *host) boot(kind bootKind, upAt time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bootLocked(kind, upAt)
}

func (h *host) bootLocked(kind bootKind, upAt time.Time) error {
	if (kind == bootReset || kind == bootRescue) && !h.record.On {
		return errPoweredOff
	}
	next := h.record
	next.On, next.System, next.Agent, next.Rescue = true, systemBooting, "", kind == bootRescue
	if mended(next.Breaks, kind) {
		next.Breaks, next.BreaksAt = "", time.Time{}
	}
	next.Boots++
	next.BootID, next.UpAt = h.bootID(next), upAt
	if upAt.IsZero() {
		next.UpAt = time.Now().Add(h.bootTime(next))
	}
	if err := h.world.record("host/"+next.Device, next); err != nil {
		return err
	}
	h.record = next
	h.beginPeriod()
	return nil
}

// beginPeriod ends the current period and begins the next one. The caller holds the lock. The
// period belongs to the world, and not to the caller.
//
//nolint:contextcheck // so its context is not the caller's
func (h *host) beginPeriod() {
	last := h.period
	ctx, cancel := h.world.newPeriod()
	p := &period{over: ctx.Done(), cancel: cancel, booted: make(chan struct{}), done: make(chan struct{})}
	h.period, h.agents = p, 0
	if last != nil {
		last.cancel()
	}
	if ctx.Err() != nil { // the next Run finds the machine in the journal
		cancel()
		close(p.done)
		return
	}
	h.world.tasks.Go(func() {
		if last != nil {
			<-last.done
		}
		h.runPeriod(ctx, p)
	})
}

// resume starts a machine that was on when the world stopped.
func (h *host) resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.record.On {
		h.beginPeriod()
	}
}

// off turns the machine off and waits until nothing runs on it any more.
func (h *host) off(ctx context.Context) error {
	h.mu.Lock()
	p := h.period
	if h.record.On {
		next := h.record
		next.On, next.System, next.Agent = false, systemBooting, ""
		if err := h.world.record("host/"+next.Device, next); err != nil {
			h.mu.Unlock()
			return err
		}
		h.record = next
	}
	h.mu.Unlock()
	if p == nil {
		return nil
	}
	p.cancel()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// waitUp waits until the machine has booted, or has found nothing to boot.
func (h *host) waitUp(ctx context.Context) error {
	for {
		h.mu.Lock()
		p, on := h.period, h.record.On
		h.mu.Unlock()
		if p == nil || !on {
			return errPoweredOff
		}
		select {
		case <-p.booted:
			return nil
		case <-p.done: // restarted meanwhile
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// update changes the record during a period, and calls with under the same lock. If the period is
// over, it changes nothing and returns errOver.
func (h *host) update(p *period, edit func(*hostRecord), with ...func()) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.period != p || p.isOver() {
		return errOver
	}
	next := h.record
	edit(&next)
	if err := h.world.record("host/"+next.Device, next); err != nil {
		return err
	}
	h.record = next
	for _, do := range with {
		do()
	}
	return nil
}
