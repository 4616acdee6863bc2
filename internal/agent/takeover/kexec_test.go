package takeover

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// stubKexec answers as it is told to, and keeps what it was given.
type stubKexec struct {
	load, leave error
	state       *agentv1.AgentState
	onLoad      func()
	unloaded    bool
	left        bool
}

func (k *stubKexec) Load(_ context.Context, state *agentv1.AgentState) ([]string, error) {
	k.state = proto.CloneOf(state)
	if k.onLoad != nil {
		k.onLoad()
	}
	return []string{"mind the gap"}, k.load
}

func (k *stubKexec) Unload() { k.unloaded = true }

func (k *stubKexec) Leave(context.Context) error {
	k.left = true
	return k.leave
}

// kexecRoot is a host of files with a boot ID.
func kexecRoot(t *testing.T) (root string, boot func(id string, at time.Time)) {
	t.Helper()
	root = t.TempDir()
	boot = func(id string, at time.Time) {
		t.Helper()
		path := filepath.Join(root, "proc/sys/kernel/random/boot_id")
		stat := "cpu 1\nbtime " + timeText(at) + "\n"
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(id+"\n"), 0o600),
			os.WriteFile(filepath.Join(root, "proc/stat"), []byte(stat), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	boot("boot-1", time.Now())
	return root, boot
}

func timeText(at time.Time) string {
	text, _, _ := strings.Cut(strings.TrimPrefix(timestamppb.New(at).String(), "seconds:"), " ")
	return text
}

func takeByKexec(t *testing.T, root string, generation int64, k Kexec, words *agentv1.LastWords) *agentv1.TakeoverResponse {
	t.Helper()
	init := &agentv1.TakeoverInit{
		MachineId: "6f9619ff-8b86-4011-b42d-00c04fc964ff", TakeoverGeneration: generation, Endpoint: "plane:8443", HeartbeatIntervalMs: 1000,
		Mode: agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC, ContactLimitMs: 60_000,
	}
	data, err := proto.Marshal(init)
	if err != nil {
		t.Fatal(err)
	}
	return Run(t.Context(), bytes.NewReader(data), Options{
		Root: root, Version: "v1", Kexec: k, LastWords: func() *agentv1.LastWords { return words },
		Start: func(context.Context) error { return errors.New("in place") },
	})
}

func TestKexecTakeover(t *testing.T) {
	t.Parallel()
	root, _ := kexecRoot(t)
	k := &stubKexec{}
	response := takeByKexec(t, root, 3, k, nil)
	success := response.GetSuccess()
	if success.GetMode() != agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC || len(success.GetWarnings()) != 1 || response.GetReturned() != nil {
		t.Fatalf("response: %v", response)
	}
	kept, err := NewStore(root).Load()
	if err != nil || !k.left || k.unloaded || !proto.Equal(kept, k.state) {
		t.Errorf("left %v, unloaded %v, %v; the state in memory is %v, that on the disk %v", k.left, k.unloaded, err, k.state, kept)
	}
}

// What speaks against it stops it before anything has changed.
func TestKexecIsRefused(t *testing.T) {
	t.Parallel()
	root, _ := kexecRoot(t)
	for name, k := range map[string]Kexec{
		"kexec is disabled":           &stubKexec{load: errors.New("kexec is disabled")},
		"it has no kernel of its own": nil,
	} {
		response := takeByKexec(t, root, 3, k, nil)
		if !strings.Contains(response.GetFailure().GetMessage(), "cannot be taken over by kexec") ||
			!strings.Contains(response.GetFailure().GetMessage(), name) {
			t.Errorf("%s: %v", name, response)
		}
		if _, err := NewStore(root).Load(); !errors.Is(err, ErrNoState) {
			t.Errorf("%s: the host has a state: %v", name, err)
		}
	}
}

// A jump that is not to take place leaves no kernel behind.
func TestKexecUnloads(t *testing.T) {
	t.Parallel()
	root, _ := kexecRoot(t)
	k := &stubKexec{leave: errors.New("no process")}
	if response := takeByKexec(t, root, 3, k, nil); response.GetFailure() == nil || !k.unloaded {
		t.Errorf("unloaded %v: %v", k.unloaded, response)
	}
	// The previous agent starts an install while the next one is prepared.
	store := NewStore(root)
	state, err := store.Load()
	if err != nil {
		t.Fatal(err)
	}
	k = &stubKexec{onLoad: func() {
		if _, err := store.Update(state.GetInit(), func(s *agentv1.AgentState) error { s.InstallGeneration = 9; return nil }); err != nil {
			t.Error(err)
		}
	}}
	if response := takeByKexec(t, root, 4, k, nil); !strings.Contains(response.GetFailure().GetMessage(), "at work") || !k.unloaded || k.left {
		t.Errorf("unloaded %v, left %v: %v", k.unloaded, k.left, response)
	}
}

// The agent in memory says of its own jump that nothing was written. Of the one before, from which
// the host came back without a word, and of which nobody was told, that says nothing.
func TestReturnedTwice(t *testing.T) {
	t.Parallel()
	root, boot := kexecRoot(t)
	store := NewStore(root)
	jumps := func(r *agentv1.TakeoverResponse, from, to string, after time.Duration) {
		t.Helper()
		if err := store.RecordJump(r.GetInit(), from); err != nil {
			t.Fatal(err)
		}
		boot(to, time.Now().Add(after))
	}
	jumps(takeByKexec(t, root, 3, &stubKexec{}, nil), "boot-1", "boot-2", 20*time.Second)
	jumps(takeByKexec(t, root, 4, &stubKexec{}, nil), "boot-2", "boot-3", 90*time.Second)
	words := &agentv1.LastWords{MachineId: "6f9619ff-8b86-4011-b42d-00c04fc964ff", TakeoverGeneration: 4, Cause: "no contact", NothingWritten: true}
	returned := takeByKexec(t, root, 5, &stubKexec{}, words).GetReturned()
	if returned.GetTakeoverGeneration() != 4 || returned.GetCause() != "no contact" || returned.GetNothingWritten() {
		t.Errorf("told: %v", returned)
	}
}

// The old system is back: the next takeover tells it, with the words that were left, else with what
// the times tell; until an agent has told the control plane.
func TestReturned(t *testing.T) {
	t.Parallel()
	words := &agentv1.LastWords{MachineId: "6f9619ff-8b86-4011-b42d-00c04fc964ff", TakeoverGeneration: 3, Cause: "no route to host", NothingWritten: true}
	for name, test := range map[string]struct {
		boot  string
		after time.Duration
		words *agentv1.LastWords
		want  string
	}{
		"words":             {"boot-2", 90 * time.Second, words, "no route to host"},
		"words of another":  {"boot-2", 90 * time.Second, &agentv1.LastWords{TakeoverGeneration: 2, Cause: "old", NothingWritten: true}, "no contact with the control plane within 1m0s"},
		"late":              {"boot-2", 90 * time.Second, nil, "no contact with the control plane within 1m0s, or the machine was restarted later"},
		"a day later":       {"boot-2", 25 * time.Hour, nil, "within 1m0s, or lost it for 24h0m0s, or the machine was restarted later"},
		"early":             {"boot-2", 20 * time.Second, nil, "has crashed, or somebody has restarted"},
		"clock":             {"boot-2", -time.Hour, nil, "the clock does not tell"},
		"jump not made yet": {"boot-1", time.Second, words, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, boot := kexecRoot(t)
			first := takeByKexec(t, root, 3, &stubKexec{}, nil)
			if err := NewStore(root).RecordJump(first.GetInit(), "boot-1"); err != nil {
				t.Fatal(err)
			}
			boot(test.boot, time.Now().Add(test.after))
			returned := takeByKexec(t, root, 4, &stubKexec{}, test.words).GetReturned()
			if test.want == "" {
				if returned != nil {
					t.Errorf("told: %v", returned)
				}
				return
			}
			if returned.GetTakeoverGeneration() != 3 || !strings.Contains(returned.GetCause(), test.want) {
				t.Errorf("told: %v", returned)
			}
			if returned.GetNothingWritten() != (name == "words") {
				t.Errorf("nothing was written: %t", returned.GetNothingWritten())
			}
			if again := takeByKexec(t, root, 5, &stubKexec{}, nil).GetReturned(); !proto.Equal(again, returned) {
				t.Errorf("the answer was lost, and the next one tells %v", again)
			}
		})
	}
}

// What a host was before it became this machine, or the disk that it was cloned from, is not told.
func TestReturnedAsAnotherMachine(t *testing.T) {
	t.Parallel()
	root, boot := kexecRoot(t)
	first := takeByKexec(t, root, 3, &stubKexec{}, nil)
	store := NewStore(root)
	if err := store.RecordJump(first.GetInit(), "boot-1"); err != nil {
		t.Fatal(err)
	}
	_, err := store.Update(first.GetInit(), func(state *agentv1.AgentState) error {
		state.Init.MachineId = "018f2b1e-0000-7000-8000-000000000001"
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	boot("boot-2", time.Now().Add(90*time.Second))
	if returned := takeByKexec(t, root, 1, &stubKexec{}, nil).GetReturned(); returned != nil {
		t.Errorf("told: %v", returned)
	}
}

// An agent that prepares a jump for an install, and loads its kernel after that of the takeover,
// does not have its own started: the machine has room for one.
func TestKexecStartsItsOwnKernel(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{true, false} {
		root, _ := kexecRoot(t)
		first := takeByKexec(t, root, 3, &stubKexec{}, nil)
		store := NewStore(root)
		if _, err := store.Update(first.GetInit(), func(s *agentv1.AgentState) error { s.InstallRunning = running; return nil }); err != nil {
			t.Fatal(err)
		}
		var loaded atomic.Value // of whom
		loads := 0
		stopped := make(chan struct{})
		older, err := LockHost(root, sync.OnceFunc(func() { close(stopped) }))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			<-stopped
			if running {
				loaded.Store("that of the older agent")
			}
			older.Release()
		}()
		k := &stubKexec{onLoad: func() { loaded.Store("its own"); loads++ }}
		response := takeByKexec(t, root, 4, k, nil)
		if want := map[bool]int{true: 2, false: 1}[running]; response.GetSuccess() == nil || !k.left || loaded.Load() != "its own" || loads != want {
			t.Errorf("an install runs: %v; it starts %s after %d loads: %v", running, loaded.Load(), loads, response)
		}
		if kept, err := store.Load(); err != nil || !proto.Equal(kept, k.state) {
			t.Errorf("%v; the state in memory is %v, that on the disk %v", err, k.state, kept)
		}
	}
}
