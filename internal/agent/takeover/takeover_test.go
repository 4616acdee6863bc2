package takeover

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	machineA = "0190a0a0-0000-7000-8000-00000000000a"
	machineB = "0190a0a0-0000-7000-8000-00000000000b"
)

func message(machine string, generation int64) *agentv1.TakeoverInit {
	return &agentv1.TakeoverInit{
		MachineId: machine, TakeoverGeneration: generation, Endpoint: "[::1]:443", HeartbeatIntervalMs: 1000,
	}
}

func newRoot(tb testing.TB) string {
	tb.Helper()
	root := tb.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "proc/sys/kernel/random"), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"), []byte("boot\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	return root
}

// take runs a takeover whose start does what start says.
func take(tb testing.TB, root string, init *agentv1.TakeoverInit, start func() error) *agentv1.TakeoverResponse {
	tb.Helper()
	data, err := proto.Marshal(init)
	if err != nil {
		tb.Fatal(err)
	}
	return Run(tb.Context(), bytes.NewReader(data), Options{
		Root: root, Version: "v", Start: func(context.Context) error { return start() },
	})
}

func fine() error { return nil }

// TestWrongClock: a host whose clock is far from the control plane's is taken over, and says so.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		off  time.Duration
		told bool
	}{{0, false}, {-2 * time.Hour, true}, {2 * time.Hour, true}} {
		init := message(machineA, 1)
		init.SentAt = timestamppb.New(time.Now().Add(test.off))
		warnings := take(t, newRoot(t), init, fine).GetSuccess().GetWarnings()
		if told := len(warnings) == 1 && strings.HasPrefix(warnings[0], "the clock of this host says "); told != test.told {
			t.Errorf("the control plane is %s ahead: %q", test.off, warnings)
		}
	}
}

// TestTheMachineBeforeIsTold: one host under two addresses becomes two machines, which take it from
// each other. A host that was forgotten and is taken in anew looks the same, and is let in.
func TestTheMachineBeforeIsTold(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	for i, step := range []struct{ machine, told string }{{machineA, ""}, {machineB, machineA}, {machineB, ""}, {machineA, machineB}} {
		success := take(t, root, message(step.machine, int64(i+1)), fine).GetSuccess()
		warnings := strings.Join(success.GetWarnings(), "; ")
		if success == nil || (step.told == "") != (warnings == "") || !strings.Contains(warnings, step.told) {
			t.Errorf("machine %s: %v, %q", step.machine, success, warnings)
		}
	}
}

// TestClockFarAheadOfKexec: in memory the clock is no better, so a host that may find certificates
// expired there is left as it is. A control plane that is superseded hears of that first.
func TestClockFarAheadOfKexec(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, test := range []struct {
		off     time.Duration
		mode    agentv1.TakeoverMode
		refused bool
	}{
		{-31 * day, agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC, true},
		{-29 * day, agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC, false},
		{31 * day, agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC, false},
		{-31 * day, agentv1.TakeoverMode_TAKEOVER_MODE_IN_PLACE, false},
	} {
		root, k, init := newRoot(t), &stubKexec{}, message(machineA, 1)
		init.SentAt, init.Mode = timestamppb.New(time.Now().Add(test.off)), test.mode
		data, err := proto.Marshal(init)
		if err != nil {
			t.Fatal(err)
		}
		response := Run(t.Context(), bytes.NewReader(data), Options{Root: root, Version: "v", Kexec: k, Start: func(context.Context) error { return nil }})
		said := strings.Contains(response.GetFailure().GetMessage(), "kexec, and nothing has changed: one of the clocks is wrong, and certificates may look expired in memory: the clock of this host says ")
		if said != test.refused || (response.GetFailure() != nil) != test.refused {
			t.Errorf("%s, the control plane is %s ahead: %v", test.mode, test.off, response)
		}
		if _, err := NewStore(root).Load(); errors.Is(err, ErrNoState) != test.refused || test.refused && (k.state != nil || k.left) {
			t.Errorf("%s, the control plane is %s ahead: prepared %v, left %v, state: %v", test.mode, test.off, k.state != nil, k.left, err)
		}
		init.Mode, init.SentAt = agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC, timestamppb.New(time.Now().Add(-31*day))
		if data, err = proto.Marshal(init); err != nil {
			t.Fatal(err)
		}
		again := Run(t.Context(), bytes.NewReader(data), Options{Root: root, Version: "v", Kexec: k}).GetFailure()
		if again.GetSuperseded() == test.refused || again.GetSeenGeneration() == 0 != test.refused {
			t.Errorf("%s, the control plane is %s ahead, and tries the same takeover again: %v", test.mode, test.off, again)
		}
	}
}

// TestGenerations is rule 7 on the host: a takeover that is not above the last one is refused.
func TestGenerations(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	steps := []struct {
		init       *agentv1.TakeoverInit
		start      func() error
		superseded bool
		failed     bool
	}{
		{message(machineA, 3), fine, false, false},
		{message(machineA, 3), fine, true, true},
		{message(machineA, 2), fine, true, true},
		{message(machineA, 4), func() error { return errors.New("no") }, false, true},
		{message(machineA, 4), fine, true, true}, // seen, although it failed
		{message(machineA, 5), fine, false, false},
		{message(machineB, 1), fine, false, false}, // another machine counts anew
	}
	seen := int64(0)
	for i, step := range steps {
		response := take(t, root, step.init, step.start)
		if failure := response.GetFailure(); (failure != nil) != step.failed || failure.GetSuperseded() != step.superseded {
			t.Errorf("step %d: %v", i, response)
		}
		if step.superseded && response.GetFailure().GetSeenGeneration() != seen {
			t.Errorf("step %d: seen generation %d is said to be %v", i, seen, response)
		}
		if !step.superseded {
			seen = step.init.GetTakeoverGeneration()
		}
		if !proto.Equal(response.GetInit(), step.init) {
			t.Errorf("step %d: not the same message: %v", i, response.GetInit())
		}
	}
}

// A takeover waits for the one that is under way, so that the agent that one starts finds its own
// state.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	synctest.Test(t, func(t *testing.T) {
		second := make(chan *agentv1.TakeoverResponse, 1)
		first := take(t, root, message(machineA, 1), func() error {
			go func() { second <- take(t, root, message(machineA, 2), fine) }()
			synctest.Wait()
			if state, err := NewStore(root).Load(); err != nil || state.GetInit().GetTakeoverGeneration() != 1 {
				t.Errorf("%v, %v", state, err)
			}
			return nil
		})
		if first.GetSuccess() == nil || (<-second).GetSuccess() == nil {
			t.Error("they did not follow one another")
		}
	})
}

// A takeover that never ends does not hold the next one up for ever.
func TestTurnThatNeverComes(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	synctest.Test(t, func(t *testing.T) {
		take(t, root, message(machineA, 1), func() error {
			response := take(t, root, message(machineA, 2), fine)
			if !strings.Contains(response.GetFailure().GetMessage(), "does not come to an end") {
				t.Error(response)
			}
			return nil
		})
	})
}

func TestInstallIsCarriedOver(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	store := NewStore(root)
	take(t, root, message(machineA, 1), fine)
	_, err := store.Update(message(machineA, 1), func(state *agentv1.AgentState) error {
		state.InstallGeneration, state.InstallAttempt, state.InstallRunning, state.InstallBootId = 7, 2, true, "b"
		state.UnacknowledgedReport = []byte("report")
		state.FirstInstallGeneration, state.FirstInstallAttempt, state.FirstInstallBootId = 6, 3, "a"
		state.BegunDisk, state.StartedAt = &agentv1.BegunDisk{InstallGeneration: 7, Name: "vda", Serial: "S1"}, timestamppb.New(time.Unix(1, 0))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	take(t, root, message(machineA, 2), fine)
	state, err := store.Load()
	if err != nil || state.GetInstallGeneration() != 7 || state.GetInstallAttempt() != 2 || !state.GetInstallRunning() ||
		state.GetInstallBootId() != "b" || string(state.GetUnacknowledgedReport()) != "report" {
		t.Errorf("%v, %v", state, err)
	}
	if state.GetFirstInstallGeneration() != 6 || state.GetFirstInstallAttempt() != 3 || state.GetFirstInstallBootId() != "a" || state.GetStartedAt().GetSeconds() != 1 {
		t.Errorf("the first install under this boot: %v", state)
	}
	if d := state.GetBegunDisk(); d.GetInstallGeneration() != 7 || d.GetName() != "vda" || d.GetSerial() != "S1" {
		t.Errorf("the disk that is being written: %v", d)
	}
	take(t, root, message(machineB, 1), fine)
	if state, err := store.Load(); err != nil || state.GetInstallGeneration() != 0 || state.GetInstallRunning() {
		t.Errorf("%v, %v", state, err)
	}
}

// TestWhatNobodyCanHaveStartedIsNotCarriedOver: whoever had the host may have written anything
// there, and an agent that believed it would refuse every install.
func TestWhatNobodyCanHaveStartedIsNotCarriedOver(t *testing.T) {
	t.Parallel()
	for generation, attempt := range map[int64]int32{maxGeneration + 1: 1, math.MaxInt64: 1, -1: 1, 7: math.MaxInt32, 8: -1} {
		root := newRoot(t)
		store := NewStore(root)
		take(t, root, message(machineA, 1), fine)
		_, err := store.Update(message(machineA, 1), func(state *agentv1.AgentState) error {
			state.InstallGeneration, state.InstallAttempt, state.InstallRunning = generation, attempt, true
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		take(t, root, message(machineA, 2), fine)
		if state, err := store.Load(); err != nil || state.GetInstallGeneration() != 0 || state.GetInstallAttempt() != 0 || state.GetInstallRunning() {
			t.Errorf("%d, %d: %v, %v", generation, attempt, state, err)
		}
	}
}

// TestSupersededAgentCannotWrite is rule 7 on the host: who was taken over from changes nothing
// there.
func TestSupersededAgentCannotWrite(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	store := NewStore(root)
	take(t, root, message(machineA, 1), fine)
	if store.Superseded(message(machineA, 1)) {
		t.Error("superseded by itself")
	}
	take(t, root, message(machineA, 2), fine)
	before, _ := os.ReadFile(store.path())
	_, err := store.Update(message(machineA, 1), func(state *agentv1.AgentState) error {
		state.InstallGeneration = 9
		return nil
	})
	after, _ := os.ReadFile(store.path())
	if !errors.Is(err, ErrSuperseded) || !bytes.Equal(before, after) || !store.Superseded(message(machineA, 1)) {
		t.Errorf("%v", err)
	}
}

func TestStateOnARealHostIsSynced(t *testing.T) {
	t.Parallel()
	if !NewStore("/").sync || !NewStore("//").sync || NewStore(t.TempDir()).sync {
		t.Error("wrong durability")
	}
	store := NewStore(newRoot(t))
	store.sync = true
	response := take(t, filepath.Dir(filepath.Dir(filepath.Dir(store.dir))), message(machineA, 1), fine)
	if response.GetSuccess() == nil {
		t.Fatal(response)
	}
	if _, err := store.Update(message(machineA, 1), func(*agentv1.AgentState) error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestDamagedStateIsNotOverwritten(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	store := NewStore(root)
	take(t, root, message(machineA, 1), fine)
	for _, damage := range []string{"", "garbage", strings.Repeat("x", maxState+1)} {
		if err := os.WriteFile(store.path(), []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		response := take(t, root, message(machineA, 2), fine)
		if !strings.Contains(response.GetFailure().GetMessage(), "is damaged") {
			t.Errorf("%v", response)
		}
		if store.Superseded(message(machineA, 1)) {
			t.Error("damage is no evidence of a takeover")
		}
	}
}

func TestUnwritableHost(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	if err := os.WriteFile(filepath.Join(root, "var"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if response := take(t, root, message(machineA, 1), fine); response.GetFailure() == nil || response.GetFailure().GetSuperseded() {
		t.Errorf("%v", response)
	}
	if response := take(t, t.TempDir(), message(machineA, 1), fine); !strings.Contains(response.GetFailure().GetMessage(), "boot ID") {
		t.Errorf("%v", response)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	if err := Validate(message(machineA, 1)); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*agentv1.TakeoverInit){
		"not a UUID":  func(m *agentv1.TakeoverInit) { m.MachineId = "x" },
		"canonical":   func(m *agentv1.TakeoverInit) { m.MachineId = strings.ToUpper(machineA) },
		"generation":  func(m *agentv1.TakeoverInit) { m.TakeoverGeneration = -1 },
		"host:port":   func(m *agentv1.TakeoverInit) { m.Endpoint = "host" },
		"is not host": func(m *agentv1.TakeoverInit) { m.Endpoint = ":1" },
		"number from": func(m *agentv1.TakeoverInit) { m.Endpoint = "host:99999" },
		"1 to 65535":  func(m *agentv1.TakeoverInit) { m.Endpoint = "host:0" },
		"interval":    func(m *agentv1.TakeoverInit) { m.HeartbeatIntervalMs = 0 },
		"PEM form":    func(m *agentv1.TakeoverInit) { m.CaCertificate = []byte("x") },
		"cannot be re": func(m *agentv1.TakeoverInit) {
			m.CaCertificate = []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
		},
	} {
		m := message(machineA, 1)
		change(m)
		if err := Validate(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if Validate(nil) == nil {
		t.Error("nothing is valid")
	}
}

func TestEvict(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	if err := StopAgent(t.Context(), root); err != nil { // there never was an agent
		t.Error(err)
	}
	var hostLock *HostLock
	stopped := 0
	hostLock, err := LockHost(root, func() {
		stopped++
		hostLock.Release()
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockHost(root, func() {}); !errors.Is(err, ErrAgentRunning) {
		t.Errorf("two agents: %v", err)
	}
	if err := StopAgent(t.Context(), root); err != nil || stopped != 1 {
		t.Errorf("%v, %d", err, stopped)
	}
	// A hostLock that ends after the machine was restarted leaves that of the agent that runs now
	// alone.
	old, err := LockHost(root, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(root, "run")); err != nil {
		t.Fatal(err)
	}
	if hostLock, err = LockHost(root, func() { hostLock.Release() }); err != nil {
		t.Fatal(err)
	}
	old.Release()
	if err := StopAgent(t.Context(), root); err != nil {
		t.Error(err)
	}
	if _, err := NewStore(t.TempDir()).Update(message(machineA, 1), nil); !errors.Is(err, ErrNoState) {
		t.Errorf("an update without a takeover: %v", err)
	}
	// A process ID that was left behind belongs to nobody that could be signalled: here it is that of
	// the test.
	if err := os.WriteFile(pidPath(root), []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := StopAgent(t.Context(), root); err != nil {
		t.Error(err)
	}
}

func FuzzReadInit(f *testing.F) {
	data, _ := proto.Marshal(message(machineA, 1))
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		init, err := ReadInit(bytes.NewReader(data))
		if err == nil && Validate(init) != nil {
			t.Error("an invalid message was taken")
		}
	})
}

func FuzzState(f *testing.F) {
	root := newRoot(f)
	data, _ := proto.Marshal(message(machineA, 1))
	Run(f.Context(), bytes.NewReader(data), Options{Root: root, Start: func(context.Context) error { return nil }})
	state, err := os.ReadFile(NewStore(root).path())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(state)
	f.Fuzz(func(t *testing.T, data []byte) {
		state, err := parseState(data)
		if err == nil && Validate(state.GetInit()) != nil {
			t.Error("an invalid state was taken")
		}
	})
}

// TestALockEndsWithItsHolder, although a process that is just being started has a copy of its file.
func TestALockEndsWithItsHolder(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	held, err := LockHost(root, func() {})
	if err != nil {
		t.Fatal(err)
	}
	other, err := syscall.Dup(int(held.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(other) }()
	held.Release()
	again, err := LockHost(root, func() {})
	if err != nil {
		t.Fatal(err)
	}
	again.Release()
}

// TestKeyForm: the form of the agent's key is what everybody else reads and writes as PKCS #8.
func TestKeyForm(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	want, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil || !bytes.Equal(encodeKey(key), want) {
		t.Errorf("%x, want %x (%v)", encodeKey(key), want, err)
	}
	if got, err := PrivateKey(&agentv1.AgentState{PrivateKey: want}); err != nil || !got.Equal(key) {
		t.Errorf("read again: %v", err)
	}
	for _, bad := range [][]byte{nil, want[:47], append(want[:48:48], 0), key.Seed()} {
		if _, err := PrivateKey(&agentv1.AgentState{PrivateKey: bad}); err == nil {
			t.Errorf("%x was taken", bad)
		}
	}
}
