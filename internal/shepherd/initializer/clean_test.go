package initializer_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/takeover"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
	"github.com/ironherd/ironherd/internal/sim/sshhost"
)

// TestClean: over a real SSH server, the agent's files are removed, again and again; a host that
// does not answer is an error.
func TestClean(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if outcome, ok := b.start().(shepherd.Finish); !ok {
		t.Fatalf("got %T %+v\n%s", outcome, outcome, b.log.String())
	}
	directory := filepath.Join(b.root, "root/agent")
	if files, err := os.ReadDir(directory); err != nil || len(files) == 0 {
		t.Fatalf("files %v, %v", files, err)
	}
	work := b.release()
	handler, err := newInitializer(b)
	check(t, err)
	entry, err := b.fake.Get(t.Context(), b.device.ID)
	check(t, err)
	for range 2 {
		if did, err := handler.Clean(t.Context(), work, entry); err != nil || did != "the agent was stopped, and its files were removed from the host" {
			t.Fatalf("%q, %v\n%s", did, err, b.log.String())
		}
		if _, err := os.Stat(directory); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the agent's directory is there still: %v", err)
		}
	}
	b.config.Port = 1
	handler, err = newInitializer(b)
	check(t, err)
	if _, err := handler.Clean(t.Context(), work, entry); err == nil || !strings.Contains(err.Error(), "dial") {
		t.Errorf("a host that does not answer: %v", err)
	}
}

// TestLeavesAnothersHost: a host that was taken over as another machine is left as it is, and that
// is what is said to be done.
func TestLeavesAnothersHost(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if outcome, ok := b.start().(shepherd.Finish); !ok {
		t.Fatalf("got %T %+v\n%s", outcome, outcome, b.log.String())
	}
	work := b.release()
	handler, err := newInitializer(b)
	check(t, err)
	entry, err := b.fake.Get(t.Context(), b.device.ID)
	check(t, err)
	init := proto.CloneOf(b.inits[len(b.inits)-1])
	init.MachineId, init.CaCertificate = string(fleet.NewMachineID()), nil
	b.takeOver(init)
	did, err := handler.Clean(t.Context(), work, entry)
	if err != nil || did != "the host belongs to another machine now, and was left as it is" {
		t.Errorf("%q, %v\n%s", did, err, b.log.String())
	}
	if files, err := os.ReadDir(filepath.Join(b.root, "root/agent")); err != nil || len(files) == 0 {
		t.Errorf("files %v, %v", files, err)
	}
}

// release returns the work of a release of the machine, whose agent was started.
func (b *bench) release() *bmdb.Work {
	b.t.Helper()
	ctx := b.t.Context()
	check(b.t, b.db.SetLevers(ctx, source, []fleet.Lever{fleet.LeverRelease}))
	_, err := bmdbtest.Operate(ctx, b.db, "ada", b.machine, fleet.OperationRelease, "sold")
	check(b.t, err)
	session, err := b.db.StartSession(ctx, bmdb.SessionOptions{Component: "operations", Host: "test", Lease: time.Minute})
	check(b.t, err)
	claim, err := session.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessOperation, Providers: []fleet.ProviderName{source}, Limit: 1})
	check(b.t, err)
	b.t.Cleanup(func() { check(b.t, session.Close(context.WithoutCancel(ctx), "done")) })
	return claim.Works[0]
}

// TestCleansFromAnotherDirectory: where nothing can be executed in the first directories, the agent
// that leaves runs from the next one, and is told of all of them.
func TestCleansFromAnotherDirectory(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(b *bench) (first string){
		"noexec":    func(b *bench) string { return smallDisk(b.t, syscall.MS_NOEXEC) },
		"read-only": func(b *bench) string { return smallDisk(b.t, syscall.MS_RDONLY) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			host := b.onOpenSSH()
			usable := b.config.TargetPath
			b.config.TargetPath, b.config.OtherTargetPaths = prepare(b), []string{usable}
			if outcome, ok := b.start().(shepherd.Finish); !ok {
				t.Fatalf("got %T %+v\n%s", outcome, outcome, b.log.String())
			}
			work := b.release()
			handler, err := newInitializer(b)
			check(t, err)
			entry, err := b.fake.Get(t.Context(), b.device.ID)
			check(t, err)
			if _, err := handler.Clean(t.Context(), work, entry); err != nil {
				t.Fatalf("%v\n%s", err, b.log.String())
			}
			left, err := os.ReadFile(filepath.Join(host.home, leftNote))
			check(t, err)
			if want := "--directory " + b.config.TargetPath + " --directory " + usable; !strings.HasSuffix(string(left), want) {
				t.Errorf("it left with %q, not with %q", left, want)
			}
		})
	}
}

// TestTakesTheAgentOff: a reinstall was called off when its agent had been started. As long as the
// host lets nobody in the machine is returning. When it does, the agent's files are removed, and
// the installed system is known to be back.
func TestTakesTheAgentOff(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	b.callOff()

	port, directory := b.config.Port, filepath.Join(b.root, "root/agent")
	b.config.Port = 1
	if outcome, ok := b.start().(shepherd.Fail); !ok || !strings.Contains(outcome.Err.Error(), "take the agent off: dial") {
		t.Fatalf("got %T %+v", outcome, outcome)
	}
	if _, err := os.Stat(directory); err != nil || !lifecycle.Returning(b.record()) {
		t.Fatalf("%v, %+v", err, b.record())
	}
	b.config.Port = port
	_, err := b.db.Retry(ctx, "ada", b.machine, fleet.ProcessAgentStart)
	check(t, err)
	if outcome, ok := b.start().(shepherd.Finish); !ok {
		t.Fatalf("got %T %+v\n%s", outcome, outcome, b.log.String())
	}
	if _, err := os.Stat(directory); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the agent's directory is there still: %v", err)
	}
	env, err := b.db.Environment(ctx)
	check(t, err)
	if plan := lifecycle.Decide(b.record(), env, time.Now()); plan.State != fleet.StateInstalled {
		t.Errorf("the machine is %s: %s", plan.State, plan.Reason)
	}
	if len(b.inits) != 2 {
		t.Errorf("%d takeovers", len(b.inits))
	}
}

// TestTakesANewerAgentOff: the database is older than the takeover that the host has seen last. It
// mints above that one, and takes the agent off in the same run.
func TestTakesANewerAgentOff(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.callOff()
	init := proto.CloneOf(b.inits[len(b.inits)-1])
	init.TakeoverGeneration, init.CaCertificate = init.TakeoverGeneration+4, nil
	b.takeOver(init)
	if outcome, ok := b.start().(shepherd.Finish); !ok {
		t.Fatalf("got %T %+v\n%s", outcome, outcome, b.log.String())
	}
	if _, err := os.Stat(filepath.Join(b.root, "var/lib/ironherd-agent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the agent's state is there still: %v", err)
	}
	if r := b.record(); int64(r.TakeoverGeneration) != init.TakeoverGeneration+1 || lifecycle.Returning(r) {
		t.Errorf("%+v", r)
	}
}

// asked is a provider that does something whenever it is asked for a machine.
type asked struct {
	provider.Provider
	do func()
}

func (a asked) Get(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	a.do()
	return a.Provider.Get(ctx, id)
}

// TestAStartThatNobodyWantsAnyMore: a reinstall is called off while its agent is being started. As
// long as the agent has not been run, what runs on the machine is left alone.
func TestAStartThatNobodyWantsAnyMore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.reinstall()
	b.sources = []initializer.Source{{Name: source, Provider: asked{b.fake, func() {
		_, err := bmdbtest.CancelInstall(t.Context(), b.db, "ada", b.machine, "the wrong image")
		check(t, err)
	}}}}
	if outcome, ok := b.start().(shepherd.Cancel); !ok || !strings.HasPrefix(outcome.Reason, "nothing wants the agent any more") || strings.Contains(outcome.Reason, "still be there") {
		t.Errorf("got %T %+v\n%s", outcome, outcome, b.log.String())
	}
	if len(b.inits) != 1 {
		t.Errorf("the agent was run %d times", len(b.inits))
	}
	if _, err := os.Stat(filepath.Join(b.root, "root/agent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the agent's directory is there still: %v", err)
	}
	env, err := b.db.Environment(t.Context())
	check(t, err)
	plan := lifecycle.Decide(b.record(), env, time.Now())
	if plan.State != fleet.StateInstalled || plan.For(fleet.ProcessAgentStart).Verdict != lifecycle.NotWanted {
		t.Errorf("the machine is %s: %+v", plan.State, plan)
	}
}

// TestAStartThatMayHaveRunBefore: a reinstall is called off during the second start, and the first
// one may have run an agent. So the second goes on, and the machine is one that returns: its agent
// is taken off again and again, until that is done.
func TestAStartThatMayHaveRunBefore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.reinstall()
	b.agent = func(*agentv1.TakeoverInit, sshhost.Program) sshhost.Status { return sshhost.Status{Code: 1} }
	if outcome, ok := b.start().(shepherd.Fail); !ok {
		t.Fatalf("got %T %+v", outcome, outcome)
	}
	_, err := b.db.Retry(t.Context(), "ada", b.machine, fleet.ProcessAgentStart)
	check(t, err)
	b.agent = takesOver
	b.sources = []initializer.Source{{Name: source, Provider: asked{b.fake, func() {
		_, err := bmdbtest.CancelInstall(t.Context(), b.db, "ada", b.machine, "the wrong image")
		check(t, err)
	}}}}
	if outcome, ok := b.start().(shepherd.Finish); !ok || !lifecycle.Returning(b.record()) {
		t.Errorf("got %T %+v, returning: %t\n%s", outcome, outcome, lifecycle.Returning(b.record()), b.log.String())
	}
}

// TestAStartInADatabaseThatLooksRestored: the evidence turns up, as in a failover, while an agent
// is being started. It is not run, also where an earlier start may have run one: nobody here knows
// what became of the machine meanwhile (rule 11). What runs there is left alone.
func TestAStartInADatabaseThatLooksRestored(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"the first start": false, "an earlier one may have run": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			if before {
				b.agent = func(*agentv1.TakeoverInit, sshhost.Program) sshhost.Status { return sshhost.Status{Code: 1} }
				if outcome, ok := b.start().(shepherd.Fail); !ok {
					t.Fatalf("got %T %+v", outcome, outcome)
				}
				_, err := b.db.Retry(t.Context(), "ada", b.machine, fleet.ProcessAgentStart)
				check(t, err)
			}
			b.agent = takesOver
			ran := len(b.inits)
			b.sources = []initializer.Source{{Name: source, Provider: asked{b.fake, func() { shepherdtest.PutBack(t, b.engine) }}}}
			failures := b.record().Backoffs[fleet.ProcessAgentStart].Failures
			outcome, ok := b.start().(shepherd.Cancel)
			if !ok || !strings.Contains(outcome.Reason, "(put back by hand): the start of an agent waits for `ironherd db accept-restore`") {
				t.Errorf("got %T %+v\n%s", outcome, outcome, b.log.String())
			}
			if len(b.inits) != ran || b.record().AgentStarted != nil {
				t.Errorf("the agent was run %d times, and recorded as %+v", len(b.inits)-ran, b.record().AgentStarted)
			}
			if is := b.record().Backoffs[fleet.ProcessAgentStart].Failures; is != failures {
				t.Errorf("it counts as a failure: %d, before %d", is, failures)
			}
		})
	}
}

// takeOver has the real agent take the host over.
func (b *bench) takeOver(init *agentv1.TakeoverInit) {
	b.t.Helper()
	message, err := proto.Marshal(init)
	check(b.t, err)
	boot := filepath.Join(b.root, "proc/sys/kernel/random/boot_id")
	check(b.t, os.MkdirAll(filepath.Dir(boot), 0o755))
	check(b.t, os.WriteFile(boot, []byte("boot-3\n"), 0o600))
	started := takeover.Run(b.t.Context(), bytes.NewReader(message), takeover.Options{
		Root: b.root, Version: "test", Start: func(context.Context) error { return nil },
	})
	if started.GetSuccess() == nil {
		b.t.Fatal(started)
	}
}

// callOff makes the machine one that returns: it was installed, and a reinstall was called off when
// its agent had been started.
func (b *bench) callOff() {
	b.t.Helper()
	b.reinstall()
	b.speaks(b.starts())
	_, err := bmdbtest.CancelInstall(b.t.Context(), b.db, "ada", b.machine, "the wrong image")
	check(b.t, err)
}

// reinstall makes the machine one that was installed and is to be installed again.
func (b *bench) reinstall() {
	b.t.Helper()
	ctx := b.t.Context()
	request := fleet.InstallRequest{Image: fleet.Image{
		URL: "http://192.0.2.1/image", Digest: "sha256:" + strings.Repeat("0", 64), Compression: fleet.CompressionNone,
	}}
	first := b.starts()
	b.speaks(first)
	_, err := b.db.RequestInstall(ctx, "ada", b.machine, request, false)
	check(b.t, err)
	order, err := b.db.HandOutInstall(ctx, first, 0, 0)
	check(b.t, err)
	check(b.t, b.db.RecordInstallReport(ctx, first, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true, Disk: "/dev/sda"}))
	_, err = b.db.RecordInstalled(ctx, b.machine, 1, 1, order.Secret, "boot-2", b.hostKey)
	check(b.t, err)
	_, err = b.db.RequestInstall(ctx, "ada", b.machine, request, true)
	check(b.t, err)
}

// starts starts the agent.
func (b *bench) starts() bmdb.AgentIdentity {
	b.t.Helper()
	if outcome, ok := b.start().(shepherd.Finish); !ok {
		b.t.Fatalf("got %T %+v\n%s", outcome, outcome, b.log.String())
	}
	s := b.record().AgentStarted
	return bmdb.AgentIdentity{Machine: b.machine, TakeoverGeneration: s.TakeoverGeneration, PublicKey: s.PublicKey}
}

// speaks has the agent say what it says first.
func (b *bench) speaks(a bmdb.AgentIdentity) {
	b.t.Helper()
	ctx := b.t.Context()
	check(b.t, b.db.ListenerAlive(ctx, time.Hour, time.Minute))
	check(b.t, b.db.RecordSpoken(ctx, a, "boot-1"))
	check(b.t, b.db.RecordHardware(ctx, a, []byte("report"), nil))
}
