package takeover

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// maxState bounds what is read of a state file: an init message of its largest size, a key and a
// report.
const maxState = 256 << 10

var (
	// ErrSuperseded says that a newer takeover of this host has taken place: the caller is no longer
	// in charge.
	ErrSuperseded = errors.New("a newer takeover has put another agent in charge")
	// ErrNoState says that this host was never taken over.
	ErrNoState = errors.New("this host was never taken over")
)

// Store keeps the AgentState of a host. It is safe for use by any number of processes.
type Store struct {
	dir  string
	sync bool
}

// NewStore returns the store below root. On a real host (root "/") each change is on stable storage
// when it returns; below any other root the files are somebody's simulation and survive the end of
// every process, but not a loss of power.
func NewStore(root string) *Store {
	return &Store{dir: filepath.Join(root, "var/lib/ironherd-agent"), sync: filepath.Clean(root) == "/"}
}

// Load returns the state. ErrNoState when there is none; any other error means that it is there and
// cannot be used.
func (s *Store) Load() (*agentv1.AgentState, error) {
	file, err := os.Open(s.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoState
	}
	if err != nil {
		return nil, fmt.Errorf("open the agent's state: %w", err)
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxState+1))
	if err != nil {
		return nil, fmt.Errorf("read the agent's state: %w", err)
	}
	state, err := parseState(data)
	if err != nil {
		return nil, fmt.Errorf("the agent's state in %s is damaged (remove the file to forget the last takeover): %w", s.path(), err)
	}
	return state, nil
}

// Superseded says whether another takeover than init has left its state here. A state that cannot
// be read is no evidence of one. It is cheap enough to be asked before every heartbeat.
func (s *Store) Superseded(init *agentv1.TakeoverInit) bool {
	data, err := os.ReadFile(s.path())
	if err != nil {
		return false
	}
	state := new(agentv1.AgentState)
	return proto.Unmarshal(data, state) == nil && state.GetInit() != nil && !InCharge(state, init)
}

// CheckState says why Load would not take an encoded state, if it would not.
func CheckState(data []byte) error {
	_, err := parseState(data)
	return err
}

// parseState decodes a state and refuses one that no agent could have written.
func parseState(data []byte) (*agentv1.AgentState, error) {
	if len(data) > maxState {
		return nil, fmt.Errorf("it is larger than %d bytes", maxState)
	}
	state := new(agentv1.AgentState)
	if err := proto.Unmarshal(data, state); err != nil {
		return nil, err
	}
	if err := Validate(state.GetInit()); err != nil {
		return nil, err
	}
	if _, err := PrivateKey(state); err != nil {
		return nil, err
	}
	return state, nil
}

// pkcs8 is what the PKCS #8 form of every Ed25519 key begins with; the 32 bytes of its seed follow
// (RFC 8410, section 7). Package x509 would bring into each agent what it needs for RSA.
const pkcs8 = "\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20"

// PrivateKey returns the agent's key out of its state.
func PrivateKey(state *agentv1.AgentState) (ed25519.PrivateKey, error) {
	seed, ok := bytes.CutPrefix(state.GetPrivateKey(), []byte(pkcs8))
	if !ok || len(seed) != ed25519.SeedSize {
		return nil, errors.New("the private key is not the PKCS #8 form of an Ed25519 key")
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// encodeKey is the opposite of PrivateKey.
func encodeKey(key ed25519.PrivateKey) []byte { return append([]byte(pkcs8), key.Seed()...) }

// Update changes the state of the agent that init put in charge and returns the new one. When that
// agent is no longer in charge nothing is changed and the error is ErrSuperseded. An error of
// change is returned as it is, and nothing is changed.
func (s *Store) Update(init *agentv1.TakeoverInit, change func(*agentv1.AgentState) error) (*agentv1.AgentState, error) {
	lock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Close() }()
	state, err := s.Load()
	if err != nil {
		return nil, err
	}
	if !InCharge(state, init) {
		return nil, ErrSuperseded
	}
	if err := change(state); err != nil {
		return nil, err
	}
	return state, s.write(state)
}

// InCharge says whether the agent that init put in charge is the one that the state knows.
func InCharge(state *agentv1.AgentState, init *agentv1.TakeoverInit) bool {
	return state.GetInit().GetMachineId() == init.GetMachineId() &&
		state.GetInit().GetTakeoverGeneration() == init.GetTakeoverGeneration()
}

// SeenError is ErrSuperseded with the takeover generation that the host has seen.
type SeenError struct{ Generation int64 }

func (e *SeenError) Error() string {
	return fmt.Sprintf("this host has seen takeover generation %d of this machine already", e.Generation)
}

func (e *SeenError) Unwrap() error { return ErrSuperseded }

// next returns the state that replace would write now.
func (s *Store) next(state *agentv1.AgentState) (*agentv1.AgentState, error) {
	lock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Close() }()
	next := proto.CloneOf(state)
	return next, s.inherit(next)
}

// replace writes the state of a new takeover, unless it is not above the last one that was seen
// (ErrSuperseded). It adds to it what the new agent inherits.
func (s *Store) replace(next *agentv1.AgentState) error {
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := s.inherit(next); err != nil {
		return err
	}
	return s.write(next)
}

// The newest install that a new takeover believes to have been started here, as the control plane
// bounds it.
const (
	maxGeneration = 1 << 40
	maxAttempt    = 1 << 20
)

// inherit adds to the state of a new takeover what the last one of the same machine knew of
// installs. Whoever had the host may have written anything there. Nothing is inherited from a state
// that names an install which no control plane can have asked for: the new agent would refuse every
// one that it can.
func (s *Store) inherit(next *agentv1.AgentState) error {
	last, err := s.Load()
	if err != nil && !errors.Is(err, ErrNoState) {
		return err
	}
	if last.GetInit().GetMachineId() != next.GetInit().GetMachineId() {
		return nil
	}
	if seen := last.GetInit().GetTakeoverGeneration(); next.GetInit().GetTakeoverGeneration() <= seen {
		return &SeenError{seen}
	}
	if g, a := last.GetInstallGeneration(), last.GetInstallAttempt(); g < 0 || g > maxGeneration || a < 0 || a > maxAttempt {
		return nil
	}
	next.InstallGeneration, next.InstallAttempt = last.GetInstallGeneration(), last.GetInstallAttempt()
	next.FirstInstallGeneration, next.FirstInstallAttempt = last.GetFirstInstallGeneration(), last.GetFirstInstallAttempt()
	next.FirstInstallBootId, next.BegunDisk = last.GetFirstInstallBootId(), last.GetBegunDisk()
	next.InstallRunning, next.InstallBootId = last.GetInstallRunning(), last.GetInstallBootId()
	next.UnacknowledgedReport, next.StartedAt = last.GetUnacknowledgedReport(), last.GetStartedAt()
	return nil
}

func (s *Store) path() string { return filepath.Join(s.dir, "state") }

// lock takes the lock of the state; closing the file gives it back. It is held for one change, so
// waiting is short.
func (s *Store) lock() (*os.File, error) {
	lock, err := openLocked(filepath.Join(s.dir, "state.lock"), true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoState // without a takeover the directory is not made
	}
	return lock, err
}

// write replaces the state, wholly or not at all. The caller holds the lock.
func (s *Store) write(state *agentv1.AgentState) error {
	data, err := proto.Marshal(state)
	if err != nil {
		return fmt.Errorf("encode the agent's state: %w", err)
	}
	if err := s.writeFile(data); err != nil {
		return fmt.Errorf("write the agent's state: %w", err)
	}
	return nil
}

// syncFile is (*os.File).Sync; a test watches when it is called.
var syncFile = (*os.File).Sync

func (s *Store) writeFile(data []byte) error {
	temporary := s.path() + ".new"
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil && s.sync {
		err = syncFile(file)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, s.path()); err != nil {
		return err
	}
	if !s.sync {
		return nil
	}
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(syncFile(dir), dir.Close())
}
