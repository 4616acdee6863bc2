package rehearsal

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
)

// host is the hardware of a device, and what is on it.
type host struct {
	world   *world
	device  *device
	number  int
	address netip.Addr

	// powered: there is electricity. up: an operating system has booted.
	powered, up bool
	hangs, dead bool
	diskLost    bool
	boots       int
	// keys is how many SSH host keys it has had.
	keys    int
	booting *event

	// system is the install that the disk holds; zero: what the provider delivers.
	system attempt
	// written is the boot in which the system was written.
	written int
	booted  attempt // what has booted
	// unit says of which installs a unit tells the host key of their system: one of its own.
	unit    map[attempt]bool
	pending *install // what the installed system has not told yet
	calling *install // whose unit goes on calling, because it is watched

	// seen is the newest takeover generation, which the host remembers; agent is in charge of it.
	seen  fleet.TakeoverGeneration
	agent *agent
	// taking are the takeovers under way.
	taking []*task
	// started are the attempts that were ever started.
	started map[string]time.Duration
	// recovering is when recovery last took a step.
	recovering time.Time
	// cut is when a restart that is late comes; zero: none is on its way.
	cut time.Time
	// sick: something was wrong with it, so that people may have to look at it.
	sick bool
	// upSince is when it last booted, and interrupted when that ended.
	upSince, interrupted time.Time
}

// attempt is an attempt at an install, as an agent knows it.
type attempt struct {
	generation fleet.InstallGeneration
	number     int
}

func newHost(w *world, d *device, n int) *host {
	return &host{
		world: w, device: d, number: n, address: addressOf(d.source.number, n),
		powered: true, up: d.source.list, started: make(map[string]time.Duration), boots: 1, unit: make(map[attempt]bool),
	}
}

func (h *host) bootID() string { return fmt.Sprintf("boot-%s-%d", h.device.id, h.boots) }

// reachable reports whether anything answers there.
func (h *host) reachable() bool { return h.powered && h.up && h.comes() }

// comes says whether it boots by itself once it has power.
func (h *host) comes() bool { return !h.hangs && !h.dead && !h.diskLost }

// halt ends everything that runs there.
func (h *host) halt() {
	h.up = false
	h.world.cancel(h.booting)
	h.interrupted = h.world.now
	if h.agent != nil {
		h.agent.end()
		h.agent = nil
	}
}

// restart lets it boot again. What hung does not hang any more.
func (h *host) restart(why string) {
	h.world.watch.restarted(h, why)
	h.halt()
	h.hangs, h.cut = false, time.Time{}
	h.boots++
	h.boot(h.world.between("boot", time.Minute, 3*time.Minute))
}

// boot brings it up after a while, when it can.
func (h *host) boot(d time.Duration) {
	w := h.world
	w.cancel(h.booting)
	h.booting = w.after(d, func() {
		if h.device.gone || h.dead || h.diskLost || !h.powered || h.device.status != fleet.ProviderStatusActive {
			return
		}
		h.up, h.booted, h.upSince = true, h.system, w.now
		if h.pending != nil {
			h.pending.up()
		} else if h.calling != nil {
			h.calling.call(h.boots)
		}
	})
}

// wipe puts back what the provider delivers.
func (h *host) wipe() {
	h.halt()
	h.hangs, h.diskLost = false, false
	h.system, h.booted, h.pending, h.calling, h.seen = attempt{}, attempt{}, nil, nil, 0
	h.boots++
	h.keys++
}

// key is the SSH host key that it has. An installed system has its own, unless it is seen by SSH,
// under a key that goes with the install.
func (h *host) key() remote.HostKey {
	text := fmt.Sprintf("%s-%d", h.device.id, h.keys)
	if h.unit[h.booted] {
		text += fmt.Sprintf("-install-%d-%d", h.booted.generation, h.booted.number)
	}
	return remote.HostKey{Key: "ssh-ed25519 " + text, Fingerprint: "SHA256:" + text}
}

// identify does what a client does with the host key, whose first one it trusts.
func (h *host) identify(trust remote.Trust) (remote.HostKey, error) {
	key := h.key()
	known := slices.Concat(trust.Attested, trust.Injected, trust.Pinned)
	switch {
	case len(known) == 0:
		key.Source = remote.SourceFirstUse
	case slices.Contains(known, key.Key):
		key.Source = remote.SourcePinned
	default:
		return remote.HostKey{}, &remote.HostKeyError{
			Address: netip.AddrPortFrom(h.address, 22), Presented: key.Fingerprint, Key: key.Key, Expected: known, Source: remote.SourcePinned,
		}
	}
	return key, nil
}

// sshConnection is an SSH connection to a host: initializer.Host.
type sshConnection struct {
	controller *controller
	host       *host
	key        remote.HostKey
}

// dial takes the place of SSH.
func (c *controller) dial(ctx context.Context, target remote.Target) (_ initializer.Host, err error) {
	w := c.world
	s := &sshConnection{controller: c, host: w.hostAt(target.Address.Addr())}
	if err := s.wait(ctx, w.between("dial", 50*time.Millisecond, 800*time.Millisecond)); err != nil {
		return nil, err
	}
	if s.key, err = s.host.identify(target.Trust); err != nil {
		return nil, err
	}
	return s, nil
}

func (w *world) hostAt(address netip.Addr) *host {
	for _, p := range w.providers {
		for _, d := range p.base().devices {
			if d.host.address == address {
				return d.host
			}
		}
	}
	return nil
}

// wait lets a step on the host take its time, and returns why it failed.
func (s *sshConnection) wait(ctx context.Context, d time.Duration) error {
	w := s.controller.world
	s.controller.step()
	switch {
	case s.controller.dead:
		return errDead
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case w.hits(SSHRefused, "step"):
		w.park(2 * time.Second)
		return temporary("the connection was closed")
	}
	w.park(d)
	s.controller.step()
	switch {
	case s.controller.dead:
		return errDead
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case s.host == nil || !s.host.reachable():
		w.park(2 * time.Second)
		return fleet.Errorf(fleet.KindTimeout, "the host does not answer")
	}
	return nil
}

// HostKey implements initializer.Host.
func (s *sshConnection) HostKey() remote.HostKey {
	return s.key
}

// Choose implements initializer.Host.
func (s *sshConnection) Choose(_ context.Context, contents ...*remote.Content) (*remote.Content, error) {
	return contents[0], nil
}

// Upload implements initializer.Host.
func (s *sshConnection) Upload(ctx context.Context, content *remote.Content, base string, _ fs.FileMode) (remote.Uploaded, error) {
	if err := s.wait(ctx, s.controller.world.between("upload", 100*time.Millisecond, 4*time.Second)); err != nil {
		return remote.Uploaded{}, err
	}
	return remote.Uploaded{Path: content.Path(base), Sent: content.Size()}, nil
}

// Close implements initializer.Host.
func (s *sshConnection) Close() error { return nil }

// Run implements initializer.Host: the agent's takeover and leave.
func (s *sshConnection) Run(ctx context.Context, command remote.Command) ([]byte, error) {
	h, w := s.host, s.controller.world
	if slices.Contains(command.Args, "leave") {
		if err := s.wait(ctx, time.Second); err != nil {
			return nil, err
		}
		if h.agent != nil {
			h.agent.end()
			h.agent = nil
		}
		return nil, nil
	}
	init := &agentv1.TakeoverInit{}
	message, err := io.ReadAll(command.Stdin)
	if err == nil {
		err = proto.Unmarshal(message, init)
	}
	if err != nil {
		return nil, fmt.Errorf("read the takeover: %w", err)
	}
	w.watch.takeover(ctx, h)
	defer w.watch.takenOver(h)
	if err := s.wait(ctx, w.between("takeover", 200*time.Millisecond, 3*time.Second)); err != nil {
		return nil, err
	}
	response := h.takeOver(init)
	if err := s.wait(ctx, 100*time.Millisecond); err != nil { // the answer may be lost
		return nil, err
	}
	answer, err := proto.Marshal(response)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return answer, nil
}

// takeOver is what the agent does there.
func (h *host) takeOver(init *agentv1.TakeoverInit) *agentv1.TakeoverResponse {
	generation := fleet.TakeoverGeneration(init.GetTakeoverGeneration())
	response := &agentv1.TakeoverResponse{Init: init}
	if generation <= h.seen {
		response.Outcome = &agentv1.TakeoverResponse_Failure{Failure: &agentv1.TakeoverFailure{
			Message: "superseded", Superseded: true, SeenGeneration: int64(h.seen),
		}}
		return response
	}
	h.seen = generation
	was := h.agent
	key := sha256.Sum256([]byte(fmt.Sprintf("%s %d", h.device.id, generation)))
	a := newAgent(h, fleet.MachineID(init.GetMachineId()), generation, key[:])
	if was != nil {
		a.last = was.last
		was.supersede()
	}
	h.agent = a
	response.Outcome = &agentv1.TakeoverResponse_Success{Success: &agentv1.TakeoverSuccess{
		PublicKey: key[:], AgentVersion: "rehearsal", BootId: h.bootID(),
	}}
	return response
}

// simulatedAgent is the content of the file that stands for the agent's executable.
var simulatedAgent = strings.Repeat("ironherd-agent\n", 8)

// probe takes the place of SSH where an installed system is asked whether it is up.
func (c *controller) probe(ctx context.Context, address netip.Addr, seenUp fleet.SeenUp, generation fleet.InstallGeneration, number int) error {
	w := c.world
	s := &sshConnection{controller: c, host: w.hostAt(address)}
	if err := s.wait(ctx, w.between("probe", 50*time.Millisecond, 800*time.Millisecond)); err != nil {
		return err
	}
	if booted := s.host.booted; booted == (attempt{}) || seenUp.By == fleet.SeenBySSH && booted != (attempt{generation, number}) {
		return fleet.Errorf(fleet.KindForbidden, "the host has another host key")
	}
	s.host.recovering = time.Time{} // it was heard
	return nil
}
