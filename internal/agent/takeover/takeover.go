package takeover

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/clock"
)

// takeoverWait is how long a takeover waits for another one of the same host to end.
const takeoverWait = 20 * time.Second

// Options are what a takeover needs of its surroundings.
type Options struct {
	// Root is put before every path; "/" on a real host.
	Root string
	// Version of the agent that is put in charge.
	Version string
	// Start starts the long-lived agent for the state that was just written and returns when it is
	// ready. When it fails it has left nothing running.
	Start func(ctx context.Context) error
	// Kexec is for takeovers into memory. Nil: this host cannot be taken over so.
	Kexec Kexec
	// LastWords returns what an agent in memory has left in the firmware; nil: nothing. May be nil.
	LastWords func() *agentv1.LastWords
}

// Kexec puts an agent in charge in memory, in the place of the operating system.
type Kexec interface {
	// Load makes everything ready for the jump, with the state that the agent in memory will have.
	// It changes nothing that lasts, and fails with everything that speaks against the jump. The
	// warnings are for the operator.
	Load(ctx context.Context, state *agentv1.AgentState) (warnings []string, err error)
	// Unload takes back what Load did.
	Unload()
	// Leave starts what jumps when the response was written and the session has ended that the
	// takeover came by, and returns when it waits for that. When it fails it has left nothing running.
	Leave(ctx context.Context) error
}

// Run takes the host over as the message on stdin says. It always returns a response to write to
// stdout.
func Run(ctx context.Context, stdin io.Reader, options Options) *agentv1.TakeoverResponse {
	init, err := ReadInit(stdin)
	if err != nil {
		return failure(nil, err)
	}
	r := &run{init: init, options: options, store: NewStore(options.Root)}
	success, err := r.run(ctx)
	if err != nil {
		response := failure(init, err)
		response.Returned = r.returned
		return response
	}
	return &agentv1.TakeoverResponse{
		Init: init, Returned: r.returned, Outcome: &agentv1.TakeoverResponse_Success{Success: success},
	}
}

// failure is the response to a takeover that did not happen.
func failure(init *agentv1.TakeoverInit, err error) *agentv1.TakeoverResponse {
	f := &agentv1.TakeoverFailure{
		Message:    strings.ToValidUTF8(err.Error(), "?"),
		Superseded: errors.Is(err, ErrSuperseded),
	}
	if seen, ok := errors.AsType[*SeenError](err); ok {
		f.SeenGeneration = seen.Generation
	}
	return &agentv1.TakeoverResponse{Init: init, Outcome: &agentv1.TakeoverResponse_Failure{Failure: f}}
}

// run is one takeover.
type run struct {
	init     *agentv1.TakeoverInit
	options  Options
	store    *Store
	returned *agentv1.ReturnedTakeover
}

func (r *run) run(ctx context.Context) (*agentv1.TakeoverSuccess, error) {
	bootID, err := BootID(r.options.Root)
	if err != nil {
		return nil, err
	}
	lock, err := r.store.lockTakeover(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Close() }()
	r.returned = r.lookBack(bootID)
	last, _ := r.store.Load() // one that cannot be used is not replaced

	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	success := &agentv1.TakeoverSuccess{
		PublicKey: public, AgentVersion: r.options.Version, BootId: bootID, Mode: agentv1.TakeoverMode_TAKEOVER_MODE_IN_PLACE,
	}
	state := &agentv1.AgentState{Init: r.init, PrivateKey: encodeKey(private), Returned: r.returned}
	if r.init.GetMode() == agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC {
		success.Mode = agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC
		success.Warnings, err = r.intoMemory(ctx, state)
	} else {
		err = r.inPlace(ctx, state)
	}
	if err != nil {
		return nil, err
	}
	// First what concerns more than the network in memory: history keeps only so many.
	if warning := clock.Warning(r.init.GetSentAt()); warning != "" {
		success.Warnings = slices.Insert(success.Warnings, 0, warning)
	}
	if other := last.GetInit().GetMachineId(); other != "" && other != r.init.GetMachineId() {
		success.Warnings = slices.Insert(success.Warnings, 0, "the last takeover of this host was for machine "+other+": both are this host, or this disk is a copy of that one's")
	}
	return success, nil
}

// inPlace starts the agent as a process of this host.
func (r *run) inPlace(ctx context.Context, state *agentv1.AgentState) error {
	if err := r.store.replace(state); err != nil {
		return err
	}
	if err := StopAgent(ctx, r.options.Root); err != nil {
		return err
	}
	if err := r.options.Start(ctx); err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	return nil
}

// intoMemory makes the jump ready. Nothing has changed on the host until everything is.
func (r *run) intoMemory(ctx context.Context, state *agentv1.AgentState) (warnings []string, err error) {
	kexec := r.options.Kexec
	if kexec == nil {
		return nil, errors.New("this host cannot be taken over by kexec, because it has no kernel of its own")
	}
	prepared, err := r.store.next(state)
	if err != nil {
		return nil, err
	}
	if err := clock.FarAhead(r.init.GetSentAt()); err != nil {
		return nil, fmt.Errorf("this host cannot be taken over by kexec, and nothing has changed: %w", err)
	}
	if warnings, err = kexec.Load(ctx, prepared); err != nil {
		return nil, fmt.Errorf("this host cannot be taken over by kexec: %w", err)
	}
	defer func() {
		if err != nil {
			kexec.Unload()
		}
	}()
	if err := r.store.replace(state); err != nil {
		return nil, err
	}
	if !proto.Equal(state, prepared) {
		return nil, errors.New("the previous agent was at work while the takeover was prepared")
	}
	if err := StopAgent(ctx, r.options.Root); err != nil {
		return nil, err
	}
	// The previous agent may have prepared a jump for the install that runs, and the machine has room
	// for one kernel: what is loaded now may be its own.
	if prepared.GetInstallRunning() {
		if warnings, err = kexec.Load(ctx, prepared); err != nil {
			return nil, fmt.Errorf("load again what the previous agent may have replaced: %w", err)
		}
	}
	if err := kexec.Leave(ctx); err != nil {
		return nil, fmt.Errorf("prepare the jump: %w", err)
	}
	return warnings, nil
}

// lockTakeover waits until no other takeover of this host is under way. Closing the file unlocks
// it.
func (s *Store) lockTakeover(ctx context.Context) (*os.File, error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the agent's directory: %w", err)
	}
	path := filepath.Join(s.dir, "takeover.lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the takeover lock: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, takeoverWait, errors.New("another takeover of this host does not come to an end"))
	defer cancel()
	if err := pollLock(ctx, file); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("wait for another takeover: %w", err)
	}
	return file, nil
}

// BootID returns the kernel's boot ID as it is found below root.
func BootID(root string) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"))
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	id := strings.TrimSpace(string(data))
	if id == "" || len(id) > 64 || !utf8.ValidString(id) {
		return "", errors.New("the kernel's boot ID makes no sense")
	}
	return id, nil
}
