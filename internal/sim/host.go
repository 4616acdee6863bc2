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

	"github.com/ironherd/ironherd/internal/sim/equinixapi"
	"github.com/ironherd/ironherd/internal/sim/hardware"
)

// What a machine has booted.
const (
	systemBooting   = ""          // nothing yet
	systemProvider  = "provider"  // the provider's operating system
	systemRescue    = "rescue"    // a rescue system from the network
	systemInstalled = "installed" // what an agent has installed
	systemDead      = "dead"      // nothing: what is on the disk is not what it is said to be
)

// hostRecord is what the journal knows of a machine.
type hostRecord struct {
	Device     string `json:"device"`
	Slot       int    `json:"slot"`
	Generation int    `json:"generation"`
	Hostname   string `json:"hostname"`

	On bool `json:"on"`
	// BootID, Boots (their number) and UpAt belong to the newest boot, System to what came of it.
	BootID string    `json:"boot_id"`
	Boots  int       `json:"boots"`
	UpAt   time.Time `json:"up_at"`
	Rescue bool      `json:"rescue,omitempty"`
	System string    `json:"system"`
	// Agent is the path of the agent that is at work since this boot.
	Agent string `json:"agent,omitempty"`
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
}

// host is a machine.
type host struct {
	world   *World
	machine hardware.Machine
	root    string
	address netip.Addr
	real    bool

	mu     sync.Mutex
	record hostRecord
	period *period
	// agents counts the detached parts of agents that run in this process.
	agents int
}

// period is the time from a power-on or reset to the next one, or to the loss of power.
type period struct {
	// over is closed when it is to end, by cancel or with the world.
	over   <-chan struct{}
	cancel context.CancelFunc
	// settled is closed when the machine has booted, or will not.
	settled chan struct{}
	// done is closed when nothing of the period is left.
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

// init derives what follows from the record.
func (h *host) init() {
	r := &h.record
	h.machine = hardware.New(h.world.self.Seed, r.Slot)
	h.root = filepath.Join(h.world.cfg.Dir, "hosts", fmt.Sprintf("%05d-%.8s", r.Slot, r.Device))
	h.address = publicAddress(r.Slot)
	h.real = r.Slot < h.world.cfg.RealAgents
}

func (h *host) snapshot() hostRecord {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.record
}

// derive makes bytes that follow from the world's seed, a purpose and this machine.
func (h *host) derive(purpose string, n int) [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%s %d %s %d", purpose, h.world.self.Seed, h.record.Device, n))
}

// hostKey is the machine's SSH host key: one for each installation by the provider.
func (h *host) hostKey(generation int) (ssh.Signer, error) {
	seed := h.derive("host key", generation)
	return ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(seed[:]))
}

func (h *host) bootID(boot int) string {
	sum := h.derive("boot", boot)
	id := uuid.UUID(sum[:16])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id.String()
}

// bootTime is how long the n-th boot takes.
func (h *host) bootTime(boot int) time.Duration {
	span := h.world.cfg.span(h.world.cfg.Durations.Boot)
	if span.Max <= span.Min {
		return span.Min
	}
	sum := h.derive("boot time", boot)
	return span.Min + time.Duration(binary.BigEndian.Uint64(sum[:])%uint64(span.Max-span.Min))
}

// install makes the machine as the provider hands it over. It is off.
func (h *host) install(ctx context.Context, d equinixapi.Deployment) error {
	if err := h.world.heavily(ctx); err != nil {
		return err
	}
	defer h.world.lightly()
	h.mu.Lock()
	h.record.Device, h.record.Slot, h.record.Generation, h.record.Hostname = d.Device, d.Slot, d.Generation, d.Hostname
	h.record.Installed = nil
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

// writeSystem writes what the provider's operating system has of its own.
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

// demolish removes everything that the machine has on disk.
func (h *host) demolish() error {
	if h.root == "" {
		return nil
	}
	return os.RemoveAll(h.root)
}

// heavily waits for the right to keep a processor busy.
func (w *World) heavily(ctx context.Context) error {
	select {
	case w.heavy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *World) lightly() { <-w.heavy }

// bootKind is why a machine boots.
type bootKind int

const (
	bootDeploy bootKind = iota
	bootPowerOn
	bootReset
	bootRescue
)

// boot starts a new boot; a system that is running loses its power first. When it returns this
// cannot be undone. The machine is up at upAt, or, if that is zero, after the time that a boot
// takes.
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
	next.Boots++
	next.BootID, next.UpAt = h.bootID(next.Boots), upAt
	if upAt.IsZero() {
		next.UpAt = time.Now().Add(h.bootTime(next.Boots))
	}
	if err := h.world.record("host/"+next.Device, next); err != nil {
		return err
	}
	h.record = next
	h.begin()
	return nil
}

// begin begins a period, after the end of the one before it. The caller holds the lock. The period
// belongs to the world, and not to who asked for it.
//
//nolint:contextcheck // so its context is not the caller's
func (h *host) begin() {
	last := h.period
	ctx, cancel := h.world.newPeriod()
	p := &period{over: ctx.Done(), cancel: cancel, settled: make(chan struct{}), done: make(chan struct{})}
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
		h.live(ctx, p)
	})
}

// resume lets a machine go on that was on when the world stopped.
func (h *host) resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.record.On {
		h.begin()
	}
}

// off takes the power away and waits until nothing runs any more.
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
		case <-p.settled:
			return nil
		case <-p.done: // restarted meanwhile
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// update changes the record in the course of a period; errOver, and no change, when that is over.
// What else goes with the change is done under the same lock.
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
