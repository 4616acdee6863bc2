package takeover

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
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
}

// Run takes the host over as the message on stdin says. It always returns a response to write to
// stdout.
func Run(ctx context.Context, stdin io.Reader, options Options) *agentv1.TakeoverResponse {
	init, err := ReadInit(stdin)
	if err != nil {
		return failure(nil, err)
	}
	success, err := run(ctx, init, options)
	if err != nil {
		return failure(init, err)
	}
	return &agentv1.TakeoverResponse{Init: init, Outcome: &agentv1.TakeoverResponse_Success{Success: success}}
}

// failure is the response to a takeover that did not happen.
func failure(init *agentv1.TakeoverInit, err error) *agentv1.TakeoverResponse {
	f := &agentv1.TakeoverFailure{
		Message:    strings.ToValidUTF8(err.Error(), "?"),
		Superseded: errors.Is(err, ErrSuperseded),
	}
	if seen, ok := errors.AsType[*seenError](err); ok {
		f.SeenGeneration = seen.generation
	}
	return &agentv1.TakeoverResponse{Init: init, Outcome: &agentv1.TakeoverResponse_Failure{Failure: f}}
}

func run(ctx context.Context, init *agentv1.TakeoverInit, options Options) (*agentv1.TakeoverSuccess, error) {
	bootID, err := BootID(options.Root)
	if err != nil {
		return nil, err
	}
	store := NewStore(options.Root)
	lock, err := store.lockTakeover(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Close() }()

	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("encode the key: %w", err)
	}
	if err := store.replace(&agentv1.AgentState{Init: init, PrivateKey: encoded}); err != nil {
		return nil, err
	}
	if err := StopAgent(ctx, options.Root); err != nil {
		return nil, err
	}
	if err := options.Start(ctx); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	return &agentv1.TakeoverSuccess{PublicKey: public, AgentVersion: options.Version, BootId: bootID}, nil
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
	if id == "" || len(id) > 64 || strings.ToValidUTF8(id, "") != id {
		return "", errors.New("the kernel's boot ID makes no sense")
	}
	return id, nil
}
