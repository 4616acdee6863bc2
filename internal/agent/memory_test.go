package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/inventory"
	"github.com/ironherd/ironherd/internal/agent/kexec"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

// The dead man: who was never admitted gives up after the limit, and so does who is refused. Who
// was admitted has a day to be so again.
func TestContact(t *testing.T) {
	t.Parallel()
	refused, down := errors.New("not admitted"), errors.New("no route to host")
	for name, test := range map[string]struct {
		story func(c *contact)
		want  string // of what is said just after the limit, since the story
		last  string // what is said after a day, where nothing was before
	}{
		"silence":         {func(*contact) {}, "no contact with the control plane within 10m0s: no heartbeat was answered", ""},
		"no network":      {func(c *contact) { c.failed(down) }, "within 10m0s: no route to host", ""},
		"unreachable":     {func(c *contact) { c.heard(down, false) }, "within 10m0s: no route to host", ""},
		"never admitted":  {func(c *contact) { c.heard(refused, true) }, "within 10m0s: not admitted", ""},
		"admitted":        {func(c *contact) { c.heard(nil, false) }, "", "no heartbeat was answered"},
		"plane goes down": {func(c *contact) { c.heard(nil, false); c.heard(down, false) }, "", "no route to host"},
		"refused later":   {func(c *contact) { c.heard(nil, false); c.heard(refused, true) }, "has refused the agent in memory for 10m0s: not admitted", ""},
		"refused once":    {func(c *contact) { c.heard(nil, false); c.heard(refused, true); c.heard(nil, false) }, "", "no heartbeat was answered"},
		"down in between": {func(c *contact) { c.heard(nil, false); c.heard(refused, true); c.heard(down, false) }, "", "no route to host"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var c contact
				c.begin(10 * time.Minute)
				test.story(&c)
				said := func(when string, after time.Duration, want string) {
					t.Helper()
					time.Sleep(after)
					if got := c.lost(); want == "" && got != "" || !strings.Contains(got, want) {
						t.Errorf("%s: %q, want %q", when, got, want)
					}
				}
				said("before the limit", 10*time.Minute-time.Second, "")
				said("after the limit", 2*time.Second, test.want)
				if test.want != "" {
					return
				}
				said("before a day is over", 24*time.Hour-10*time.Minute-2*time.Second, "")
				said("after a day", 2*time.Second, "has not admitted the agent in memory for 24h0m0s: "+test.last)
			})
		})
	}
}

// An agent that is admitted again and again stays, and a contact limit of a day is the limit of
// silence, too.
func TestContactGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c contact
		c.begin(24 * time.Hour)
		for range 30 {
			c.heard(nil, false)
			time.Sleep(23 * time.Hour)
			c.heard(errors.New("no route to host"), false)
			if got := c.lost(); got != "" {
				t.Fatal(got)
			}
		}
	})
}

// The dead man watches also while the machine is made ready, because a driver may hang.
func TestDriverThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		forever := make(chan struct{})
		m := &memory{
			log: slog.New(slog.DiscardHandler), store: takeover.NewStore(t.TempDir()),
			// It never goes on to the network of the host that runs the test.
			prepare: func(*agentv1.MemorySystem) { <-forever; runtime.Goexit() },
		}
		start := time.Now()
		cause := m.supervise(t.Context(), new(agentv1.MemorySystem), "plane.example", 10*time.Minute)
		if took := time.Since(start); took > 11*time.Minute || !strings.Contains(cause, "no contact with the control plane within 10m0s") {
			t.Errorf("after %s: %q", took, cause)
		}
		close(forever)
	})
}

// The watchdogs are off for as long as the firmware may take, whyever the machine is restarted, and
// on again when it does not go down.
func TestRestartStopsTheWatchdogs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		watchdog := filepath.Join(t.TempDir(), "watchdog0")
		if err := os.WriteFile(watchdog, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var m *memory
		refused, restarts := errors.New("refused"), 0
		m = &memory{
			log: slog.New(slog.DiscardHandler), store: takeover.NewStore(t.TempDir()), devices: filepath.Dir(watchdog),
			reboot: func(root string) error {
				said, err := os.ReadFile(watchdog)
				if err != nil || string(said) != "V" || m.watchdogs.Running() || root != "/" {
					t.Errorf("restart %d of %s: it is on: %t, and was told %q, %v", restarts, root, m.watchdogs.Running(), said, err)
				}
				if restarts++; restarts > 3 {
					runtime.Goexit() // as a machine that goes down
				}
				return refused
			},
		}
		if err := m.startWatchdogs(); err != nil {
			t.Fatal(err)
		}
		if err := m.options().Reboot(t.Context()); !errors.Is(err, refused) || !m.watchdogs.Running() {
			t.Errorf("after a restart that failed it is on: %t, %v", m.watchdogs.Running(), err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			m.leave("no contact")
		}()
		<-ended
		if restarts != 4 {
			t.Errorf("restarted %d times", restarts)
		}
	})
}

// Firmware that does not come back from the last words keeps no machine in memory.
func TestLastWordsThatHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.prepare(t, initMessage(1, newAuthority(t)))
		forever, start := make(chan struct{}), time.Now()
		m := &memory{
			log: slog.New(slog.DiscardHandler), store: takeover.NewStore(h.root), devices: t.TempDir(),
			lastWords: func(*agentv1.LastWords) error { <-forever; return nil },
			reboot:    func(string) error { runtime.Goexit(); return nil },
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			m.leave("no contact")
		}()
		<-ended
		if took := time.Since(start); took > wordsWait {
			t.Errorf("the machine is restarted after %s", took)
		}
		close(forever)
	})
}

// A system in memory knows that the machine boots by EFI, whatever its own kernel shows.
func TestEFIIsMarked(t *testing.T) {
	t.Parallel()
	old, now := t.TempDir(), t.TempDir()
	if files := marks(old); len(files) > 0 || inventory.Collect(now).GetSystem().GetEfi() {
		t.Errorf("a machine that boots by BIOS: %v", files)
	}
	if err := os.MkdirAll(filepath.Join(old, "sys/firmware/efi"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range marks(old) {
		path := filepath.Join(now, file.Path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, file.Data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if !inventory.Collect(now).GetSystem().GetEfi() {
		t.Error("a machine that boots by EFI is taken for one that boots by BIOS")
	}
}

// Without root certificates there is no jump from which the agent could not connect.
func TestPublicRoots(t *testing.T) {
	t.Parallel()
	own := newAuthority(t).pem
	for name, test := range map[string]struct {
		path, content string // on the host
		authority     []byte // that the control plane names
		found         bool
		warning, err  string
	}{
		"Debian":                        {rootFiles[0], string(own), nil, true, "", ""},
		"Fedora":                        {rootFiles[4], string(own), nil, true, "", ""},
		"none":                          {"etc/hosts", "", nil, false, "", "install ca-certificates, or set initializer.endpoint_ca"},
		"an empty file":                 {rootFiles[0], "", nil, false, "", "has no root certificates"},
		"none, but a CA of the plane's": {"etc/hosts", "", own, false, "images from servers with a public certificate", ""},
	} {
		h := newHost(t)
		h.write(t, test.path, test.content)
		roots, warning, err := publicRoots(h.root, &agentv1.TakeoverInit{CaCertificate: test.authority})
		if test.found != (len(roots) > 0) || (warning != "") != (test.warning != "") || (err != nil) != (test.err != "") {
			t.Errorf("%s: %d bytes, warning %q, %v", name, len(roots), warning, err)
		}
		if !strings.Contains(warning, test.warning) || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: warning %q, %v", name, warning, err)
		}
	}
}

// A jump waits for the end of the session that it was asked for by, on every kernel, but not for
// ever, and not when a newer takeover ends it.
func TestJumpAwaitsTheSession(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pid              int
		ends, superseded time.Duration
		atLeast, atMost  time.Duration
	}{
		"it ends":          {pid: 77, ends: 3 * time.Second, atLeast: 3*time.Second + farewell, atMost: 4 * time.Second},
		"it stays":         {pid: 77, ends: time.Hour, atLeast: sessionWait + farewell, atMost: sessionWait + time.Second},
		"it has ended":     {pid: 78, ends: time.Hour, atLeast: farewell, atMost: farewell},
		"there is none":    {pid: 0, ends: time.Hour, atLeast: farewell, atMost: farewell},
		"a newer takeover": {pid: 77, ends: time.Hour, superseded: time.Second, atLeast: time.Second, atMost: time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			proc := t.TempDir()
			session := filepath.Join(proc, "77")
			if err := os.Mkdir(session, 0o700); err != nil {
				t.Fatal(err)
			}
			end := time.AfterFunc(test.ends, func() { _ = os.Remove(session) })
			defer end.Stop()
			if test.superseded > 0 {
				defer time.AfterFunc(test.superseded, cancel).Stop()
			}
			start := time.Now()
			awaitEnd(ctx, proc, test.pid)
			if took := time.Since(start); took < test.atLeast || took > test.atMost {
				t.Errorf("%s: it waits for %s, want %s to %s", name, took, test.atLeast, test.atMost)
			}
		})
	}
}

// A jump that fails restarts the machine when its disks are read-only, whoever jumped, and not
// otherwise: a root file system may have been read-only before.
func TestFailedJump(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for name, test := range map[string]struct {
		jump     error
		restarts int
	}{
		"the disks were left alone": {refused, 0},
		"the disks are read-only":   {fmt.Errorf("start the loaded kernel: %w; %w", refused, kexec.ErrReadOnly), 1},
	} {
		restarts := 0
		err := restartReadOnly(test.jump, func(string) error { restarts++; return errors.New("it goes on") })
		if restarts != test.restarts || !errors.Is(err, refused) {
			t.Errorf("%s: restarted %d times, %v", name, restarts, err)
		}
	}
}

// A jump that failed is not told as a return from memory after the next restart of the machine. One
// that made the disks read-only is left as it is recorded: nothing can be written. The kernel of
// one that failed is unloaded before the record is written.
func TestFailedJumpIsForgotten(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for name, test := range map[string]struct {
		jump error
		kept bool
	}{
		"the disks were left alone": {refused, false},
		"the disks are read-only":   {fmt.Errorf("%w; %w", refused, kexec.ErrReadOnly), true},
	} {
		h := newHost(t)
		init := initMessage(1, newAuthority(t))
		h.prepare(t, init)
		restarts, unloads := 0, 0
		unload := func() error {
			unloads++
			if recorded := h.state(t).GetJump() != nil; !recorded || restarts == 1 != test.kept {
				t.Errorf("%s: unloaded when the jump was recorded: %t, after %d restarts", name, recorded, restarts)
			}
			return nil
		}
		err := recordedJump(t.Context(), takeover.NewStore(h.root), init, h.root, func(context.Context) error {
			if h.state(t).GetJump().GetBootId() != "boot-1" {
				t.Errorf("%s: the jump was not recorded before", name)
			}
			return test.jump
		}, unload, func(string) error { restarts++; return nil })
		if kept := h.state(t).GetJump() != nil; kept != test.kept || unloads != 1 || !errors.Is(err, refused) {
			t.Errorf("%s: kept %t, unloaded %d times, %v", name, kept, unloads, err)
		}
	}

	// One that cannot be recorded does not take place.
	h, unloads := newHost(t), 0
	init := initMessage(1, newAuthority(t))
	h.prepare(t, init)
	err := recordedJump(t.Context(), takeover.NewStore(h.root), init, t.TempDir(), func(context.Context) error {
		t.Error("it jumps unrecorded")
		return nil
	}, func() error { unloads++; return nil }, func(string) error { return nil })
	if err == nil || unloads != 1 {
		t.Errorf("unloaded %d times, %v", unloads, err)
	}
}

// What a jump for an install warned of is told by the report of that install, and not again.
func TestJumpWarningsAreReported(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		data := image()
		wrong := installRequest(3, 1, data)
		wrong.Image.Digest = "sha256:" + strings.Repeat("0", 64)
		pending, err := proto.Marshal(wrong)
		if err != nil {
			t.Fatal(err)
		}
		f.host.change(t, func(state *agentv1.AgentState) {
			state.InstallGeneration, state.InstallAttempt, state.InstallRunning, state.PendingInstall = 3, 1, true, pending
			state.JumpWarnings = residentState(state, []string{"no name server is known"}).GetJumpWarnings()
		})
		f.options.HTTPClient = imageClient(data)
		var warnings []string
		f.answer = func(n int, request *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			response := &agentv1.HeartbeatResponse{NextIntervalMs: 1000}
			if report := request.GetInstallReport(); report != nil {
				warnings = append(warnings, fmt.Sprint(report.GetAttempt(), report.GetWarnings()))
				if report.GetAttempt() == 1 {
					again := proto.CloneOf(wrong)
					again.Attempt = 2
					response.InstallRequest = again
				}
			}
			return response, nil
		}
		f.start(t)
		after(5 * time.Minute)
		if want := []string{"1 [the jump into memory: no name server is known]", "2 []"}; !slices.Equal(warnings, want) {
			t.Errorf("%q, want %q", warnings, want)
		}
		f.end(t)
	})
	// A takeover's answer tells its warnings itself.
	if state := residentState(&agentv1.AgentState{Init: &agentv1.TakeoverInit{}}, []string{"told"}); len(state.GetJumpWarnings()) > 0 {
		t.Errorf("told twice: %v", state.GetJumpWarnings())
	}
}

// A machine whose disk was written stays in memory, unless the newest install has ended well: what
// it has installed boots, and an acknowledgment that never comes keeps nobody.
func TestWrittenDisk(t *testing.T) {
	t.Parallel()
	bootID, err := takeover.BootID("/")
	if err != nil {
		t.Fatal(err)
	}
	report := func(attempt int32, ok bool) []byte {
		return encodeReport(&agentv1.InstallReport{InstallGeneration: 2, Attempt: attempt, Ok: ok})
	}
	for name, test := range map[string]struct {
		change func(*agentv1.AgentState)
		stays  bool
	}{
		"nothing was written":       {func(s *agentv1.AgentState) { s.FirstInstallBootId = "" }, false},
		"an install runs":           {func(s *agentv1.AgentState) { s.InstallRunning = true }, true},
		"it ended well":             {func(s *agentv1.AgentState) { s.UnacknowledgedReport = report(3, true) }, false},
		"it failed":                 {func(s *agentv1.AgentState) { s.UnacknowledgedReport = report(3, false) }, true},
		"its report was heard":      {func(*agentv1.AgentState) {}, true},
		"an older one ended well":   {func(s *agentv1.AgentState) { s.UnacknowledgedReport = report(2, true) }, true},
		"the next one runs already": {func(s *agentv1.AgentState) { s.UnacknowledgedReport, s.InstallRunning = report(3, true), true }, true},
		"the next one is pending":   {func(s *agentv1.AgentState) { s.UnacknowledgedReport, s.PendingInstall = report(3, true), []byte{1} }, true},
		"the report is damaged":     {func(s *agentv1.AgentState) { s.UnacknowledgedReport = []byte{0xff} }, true},
	} {
		h := newHost(t)
		h.prepare(t, initMessage(1, newAuthority(t)))
		h.change(t, func(state *agentv1.AgentState) {
			state.InstallGeneration, state.InstallAttempt, state.FirstInstallBootId = 2, 3, bootID
			test.change(state)
		})
		m := &memory{store: takeover.NewStore(h.root)}
		if stays := m.wroteDisk(); stays != test.stays {
			t.Errorf("%s: stays %t", name, stays)
		}
	}
}

// kernel is what kexec has loaded, by whomever.
type kernel struct{ loaded atomic.Bool }

func (k *kernel) Load(context.Context, *agentv1.AgentState) ([]string, error) {
	k.loaded.Store(true)
	return nil, nil
}

func (k *kernel) Unload()                     { k.loaded.Store(false) }
func (k *kernel) Leave(context.Context) error { return nil }

// A takeover ends the jump of an older one, which waits. The older one unloads its kernel, but not
// that of a takeover by kexec in its place.
func TestEndedJumpUnloads(t *testing.T) {
	t.Parallel()
	for mode, stays := range map[agentv1.TakeoverMode]bool{
		agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC: true, agentv1.TakeoverMode_TAKEOVER_MODE_IN_PLACE: false,
	} {
		h, authority, k := newHost(t), newAuthority(t), new(kernel)
		older, newer := initMessage(1, authority), initMessage(2, authority)
		h.prepare(t, older)
		k.loaded.Store(true)
		waiting, stop := context.WithCancel(t.Context())
		lock, err := takeover.LockHost(h.root, stop)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			<-waiting.Done()
			unloadOwn(takeover.NewStore(h.root), older, func() error { k.Unload(); return nil })
			lock.Release()
		}()
		newer.Mode, newer.ContactLimitMs = mode, 60_000
		response := takeover.Run(t.Context(), readerOf(encoded(t, newer)), takeover.Options{
			Root: h.root, Kexec: k, Start: func(context.Context) error { return nil },
		})
		if response.GetSuccess() == nil || k.loaded.Load() != stays {
			t.Errorf("%s: a kernel is loaded: %t, %v", mode, k.loaded.Load(), response)
		}
		stop()
		<-ended
	}
}
