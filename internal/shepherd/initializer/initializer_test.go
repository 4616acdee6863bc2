package initializer_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
	"github.com/ironherd/ironherd/internal/sim/sshhost"
)

// TestMain is also the agent that hosts execute.
func TestMain(m *testing.M) {
	if os.Getenv(agentVariable) != "" {
		os.Exit(runAgent())
	}
	goleak.VerifyTestMain(m)
}

const source fleet.ProviderName = "metal"

// bench is one machine with a real SSH server, a provider that has it, and a database that wants an
// agent on it.
type bench struct {
	t       *testing.T
	engine  bmdb.Engine
	db      *bmdb.DB
	fake    *shepherdtest.FakeProvider
	machine fleet.MachineID
	device  provider.Entry
	key     *remote.Key
	hostKey string
	root    string
	sources []initializer.Source
	config  initializer.Config
	log     bytes.Buffer

	mu sync.Mutex
	// agent is what the uploaded executable does.
	agent func(init *agentv1.TakeoverInit, program sshhost.Program) sshhost.Status
	inits []*agentv1.TakeoverInit
	paths []string

	machineServer *sshhost.Server
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, fake: shepherdtest.NewFakeProvider(1), agent: takesOver}
	b.engine = shepherdtest.OpenEngine(t)
	b.db = shepherdtest.OpenDB(t, b.engine, bmdb.Options{})
	address := b.serve()
	b.seed(address.Addr())
	b.config = initializer.DefaultConfig()
	b.config.AgentExecutable = filepath.Join(t.TempDir(), "agent")
	check(t, os.WriteFile(b.config.AgentExecutable, []byte("#!agent\n"), 0o600))
	b.config.Endpoint, b.config.Port = "127.0.0.1:7443", address.Port()
	b.config.FirstSilence = 0 // a machine on a busy host may say nothing for longer
	b.sources = []initializer.Source{{Name: source, Provider: b.fake}}
	b.attest(b.hostKey)
	return b
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serve starts the machine.
func (b *bench) serve() netip.AddrPort {
	b.t.Helper()
	key, _, err := remote.NewKey("test")
	check(b.t, err)
	b.key, b.root = key, b.t.TempDir()
	check(b.t, os.MkdirAll(filepath.Join(b.root, "root/.ssh"), 0o700))
	check(b.t, os.WriteFile(filepath.Join(b.root, "root/.ssh/authorized_keys"), []byte(key.Public()+"\n"), 0o600))
	_, private, err := ed25519.GenerateKey(rand.Reader)
	check(b.t, err)
	signer, err := ssh.NewSignerFromKey(private)
	check(b.t, err)
	b.hostKey = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
	store, err := sshhost.OpenStore(filepath.Join(b.t.TempDir(), "store"))
	check(b.t, err)
	server := sshhost.NewServer(sshhost.Options{
		Root: b.root, Hostname: "machine", HostKey: signer, Store: store, Execute: b.execute, Reboot: func() error { return errors.New("no") },
		Logger: slog.New(slog.DiscardHandler),
	})
	b.machineServer = server
	return b.serveOn("127.0.0.1:0")
}

// serveOn has the machine answer on an address, too.
func (b *bench) serveOn(address string) netip.AddrPort {
	b.t.Helper()
	listener, err := net.Listen("tcp", address) //nolint:noctx // a test
	check(b.t, err)
	ctx, cancel := context.WithCancel(b.t.Context())
	served := make(chan struct{})
	go func() { defer close(served); b.machineServer.Serve(ctx, listener) }()
	b.t.Cleanup(func() { cancel(); <-served })
	return netip.MustParseAddrPort(listener.Addr().String())
}

// execute is the uploaded agent.
func (b *bench) execute(ctx context.Context, program sshhost.Program) sshhost.Status {
	if len(program.Args) > 0 && program.Args[0] == "leave" { // the real one, on the machine's files
		return sshhost.Status{Code: agent.Main(ctx, program.Args, agent.Env{Root: b.root, Stdout: program.Stdout, Stderr: program.Stderr})}
	}
	input, err := io.ReadAll(program.Stdin)
	if err != nil {
		return sshhost.Status{Code: 1}
	}
	init := new(agentv1.TakeoverInit)
	if len(program.Args) != 1 || program.Args[0] != "takeover" || proto.Unmarshal(input, init) != nil {
		return sshhost.Status{Code: 2}
	}
	b.mu.Lock()
	b.inits, b.paths = append(b.inits, init), append(b.paths, program.Path)
	does := b.agent
	b.mu.Unlock()
	return does(init, program)
}

func answer(program sshhost.Program, response *agentv1.TakeoverResponse) sshhost.Status {
	data, err := proto.Marshal(response)
	if err == nil {
		_, err = program.Stdout.Write(data)
	}
	if err != nil || response.GetFailure() != nil {
		return sshhost.Status{Code: 1}
	}
	return sshhost.Status{}
}

// takesOver is an agent that does what it should.
func takesOver(init *agentv1.TakeoverInit, program sshhost.Program) sshhost.Status {
	_, _ = fmt.Fprintln(program.Stderr, "taking over")
	return answer(program, &agentv1.TakeoverResponse{Init: init, Outcome: &agentv1.TakeoverResponse_Success{Success: &agentv1.TakeoverSuccess{
		PublicKey: bytes.Repeat([]byte{7}, 32), AgentVersion: "v1.2.3", BootId: "boot-1",
	}}})
}

// seed puts the machine into provider and database.
func (b *bench) seed(address netip.Addr) {
	b.t.Helper()
	b.fake.Provisioning = 0
	b.fake.Address = func(int) netip.Addr { return address }
	b.machine = shepherdtest.Seed(b.t, b.db, source, b.fake, 1)[0]
	b.device, _ = b.fake.On("capacity-000")
}

// attest makes the provider attest these host keys.
func (b *bench) attest(keys ...string) {
	b.fake.Change(b.device.ID, func(e *provider.Entry) bool { e.HostKeys = keys; return true })
}

// start does one piece of work and returns how it ended.
func (b *bench) start() shepherd.Outcome {
	b.t.Helper()
	return b.startUntil(b.t.Context())
}

// startUntil does one piece of work for a loop that may be told to stop, which ends ctx.
func (b *bench) startUntil(ctx context.Context) shepherd.Outcome {
	b.t.Helper()
	logger := slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	handler, err := newInitializer(b)
	check(b.t, err)
	loop, err := shepherd.New(b.db, handler, shepherd.DefaultConfig(), shepherd.Options{Logger: logger, SessionLease: time.Minute})
	check(b.t, err)
	holder, err := loop.Open(b.t.Context())
	check(b.t, err)
	tasks, _, err := holder.Claim(b.t.Context(), 5)
	check(b.t, err)
	if len(tasks) != 1 {
		b.t.Fatalf("claimed %d machines", len(tasks))
	}
	tasks[0].Act(ctx)
	check(b.t, tasks[0].Commit(b.t.Context()))
	check(b.t, holder.Close(b.t.Context(), "done"))
	return tasks[0].Outcome()
}

func newInitializer(b *bench) (*initializer.Initializer, error) {
	logger := slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return initializer.New(b.db, b.sources, b.config, b.key, initializer.Options{Logger: logger, Authority: []byte("a certificate")})
}

func (b *bench) record() fleet.Record {
	b.t.Helper()
	record, err := b.db.Machine(b.t.Context(), b.machine)
	check(b.t, err)
	return record
}

func TestStartsTheAgent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if outcome, ok := b.start().(shepherd.Finish); !ok {
		t.Fatalf("got %T %+v\n%s", outcome, outcome, b.log.String())
	}
	record := b.record()
	if s := record.AgentStarted; s == nil || s.TakeoverGeneration != 1 || s.AgentVersion != "v1.2.3" || s.BootID != "boot-1" || len(s.PublicKey) != 32 {
		t.Errorf("recorded %+v", s)
	}
	init := b.inits[0]
	if init.GetMachineId() != string(b.machine) || init.GetTakeoverGeneration() != 1 || init.GetEndpoint() != "127.0.0.1:7443" ||
		string(init.GetCaCertificate()) != "a certificate" || init.GetHeartbeatIntervalMs() != 30000 {
		t.Errorf("the agent was told %v", init)
	}
	if !strings.HasPrefix(b.paths[0], "/root/agent/ironherd-agent-") {
		t.Errorf("it runs from %s", b.paths[0])
	}
	if !strings.Contains(b.log.String(), "taking over") {
		t.Errorf("its stderr is not in the log:\n%s", b.log.String())
	}
}

// A database that was restored from a backup is behind what hosts have seen. One step is enough,
// however far that is, and history says what was found.
func TestTakeoverGenerationJumpsAboveTheHosts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.agent = func(init *agentv1.TakeoverInit, p sshhost.Program) sshhost.Status {
		if init.GetTakeoverGeneration() > 45 {
			return takesOver(init, p)
		}
		return answer(p, &agentv1.TakeoverResponse{Init: init, Outcome: &agentv1.TakeoverResponse_Failure{
			Failure: &agentv1.TakeoverFailure{Message: "seen", Superseded: true, SeenGeneration: 45},
		}})
	}
	if outcome, ok := b.start().(shepherd.Finish); !ok {
		t.Fatalf("got %T %+v", outcome, outcome)
	}
	if s := b.record().AgentStarted; s == nil || s.TakeoverGeneration != 46 || len(b.inits) != 2 {
		t.Errorf("recorded %+v after %d takeovers", s, len(b.inits))
	}
	page, err := b.db.History(b.t.Context(), b.machine, 100)
	check(t, err)
	if !strings.Contains(fmt.Sprint(page), "takeover generation 46; the host has seen 45, which this database has not") {
		t.Errorf("history: %v", page)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(b *bench)
		cause   string
		backoff time.Duration
		// minted is the takeover generation afterwards.
		minted fleet.TakeoverGeneration
	}{
		"the provider cannot be asked": {func(b *bench) {
			b.fake.Hook = func(shepherdtest.Point, fleet.CapacityID) error {
				return fleet.Errorf(fleet.KindTemporary, "out of order")
			}
		}, "out of order", 30 * time.Second, 0},
		"the provider cannot make sense of its own list": {func(b *bench) { b.list("hosts:\n  - id: a\n  address: 192.0.2.1\n") }, "ask the provider for the address: host list", 30 * time.Second, 0},
		"the provider's list is empty":                   {func(b *bench) { b.list("") }, "ask the provider for the address: host list", 30 * time.Second, 0},
		"the provider's list gives it another address":   {func(b *bench) { b.list("hosts:\n  - {id: " + string(b.device.ID) + ", address: 192.0.2.9}\n") }, "the list gives it the address 192.0.2.9", 30 * time.Second, 0},
		"the provider's list does not have the host":     {func(b *bench) { b.list("hosts:\n  - {id: a, address: 192.0.2.1}\n") }, "does not know", 30 * time.Second, 0},
		"the provider does not know the ID": {func(b *bench) {
			b.fake.Change(b.device.ID, func(*provider.Entry) bool { return false })
		}, "does not know", time.Hour, 0},
		"no address": {func(b *bench) {
			b.fake.Change(b.device.ID, func(e *provider.Entry) bool { e.Address = netip.Addr{}; return true })
		}, "no public address", 30 * time.Second, 0},
		"not active": {func(b *bench) {
			b.fake.Change(b.device.ID, func(e *provider.Entry) bool { e.Status = fleet.ProviderStatusOff; return true })
		}, "is off", 30 * time.Second, 0},
		"nobody listens": {func(b *bench) { b.config.Port = 1 }, "connect", time.Minute, 0},
		"another host key": {func(b *bench) {
			other, _, err := remote.NewKey("other")
			check(b.t, err)
			b.attest(other.Public())
		}, "nothing was sent", time.Minute, 0},
		"no host key is known": {func(b *bench) { b.attest() }, "no host key is known for it: nothing was sent to it; if that key is right: `ironherd machine host-key accept ", time.Minute, 0},
		"our key is refused": {func(b *bench) {
			check(b.t, os.WriteFile(filepath.Join(b.root, "root/.ssh/authorized_keys"), nil, 0o600))
		}, "refuses the key", time.Minute, 0},
		"the agent fails without a word": {func(b *bench) {
			b.agent = func(_ *agentv1.TakeoverInit, p sshhost.Program) sshhost.Status {
				_, _ = fmt.Fprintln(p.Stderr, "no memory")
				return sshhost.Status{Code: 3}
			}
		}, "no memory", time.Minute, 1},
		"the agent says why": {func(b *bench) {
			b.agent = func(init *agentv1.TakeoverInit, p sshhost.Program) sshhost.Status {
				return answer(p, &agentv1.TakeoverResponse{Init: init, Outcome: &agentv1.TakeoverResponse_Failure{
					Failure: &agentv1.TakeoverFailure{Message: "the disk is read-only"},
				}})
			}
		}, "the disk is read-only", time.Minute, 1},
		"the host says that it has seen a later takeover, and not which": {func(b *bench) {
			b.agent = func(init *agentv1.TakeoverInit, p sshhost.Program) sshhost.Status {
				return answer(p, &agentv1.TakeoverResponse{Init: init, Outcome: &agentv1.TakeoverResponse_Failure{
					Failure: &agentv1.TakeoverFailure{Message: "5 is the last", Superseded: true},
				}})
			}
		}, `refused takeover generation 1: "5 is the last"`, time.Minute, 1},
		"the host says that it has seen what cannot be": {func(b *bench) {
			b.agent = func(init *agentv1.TakeoverInit, p sshhost.Program) sshhost.Status {
				return answer(p, &agentv1.TakeoverResponse{Init: init, Outcome: &agentv1.TakeoverResponse_Failure{
					Failure: &agentv1.TakeoverFailure{Message: "no", Superseded: true, SeenGeneration: math.MaxInt64},
				}})
			}
		}, `refused takeover generation 1: "no"`, time.Minute, 1},
		"the host always says that it has seen a later one": {func(b *bench) {
			b.agent = func(init *agentv1.TakeoverInit, p sshhost.Program) sshhost.Status {
				return answer(p, &agentv1.TakeoverResponse{Init: init, Outcome: &agentv1.TakeoverResponse_Failure{
					Failure: &agentv1.TakeoverFailure{Message: "no", Superseded: true, SeenGeneration: init.GetTakeoverGeneration() + 10},
				}})
			}
		}, `refused takeover generation 12: "no"`, time.Minute, 12},
		"another machine answers": {func(b *bench) {
			b.agent = func(init *agentv1.TakeoverInit, p sshhost.Program) sshhost.Status {
				init.MachineId = "another"
				return takesOver(init, p)
			}
		}, "does not echo", time.Minute, 1},
		"it writes without end": {func(b *bench) {
			b.agent = func(_ *agentv1.TakeoverInit, p sshhost.Program) sshhost.Status {
				for range 100 {
					if _, err := p.Stdout.Write(make([]byte, 64<<10)); err != nil {
						break
					}
				}
				return sshhost.Status{}
			}
		}, "more than", time.Minute, 1},
		"it never answers": {func(b *bench) {
			b.config.ExecuteTimeout = 500 * time.Millisecond
			b.agent = func(_ *agentv1.TakeoverInit, p sshhost.Program) sshhost.Status {
				<-b.t.Context().Done()
				return sshhost.Status{}
			}
		}, "within 500ms", time.Minute, 1},
		"there is no time left": {func(b *bench) { b.config.WorkTimeout = time.Nanosecond }, "not done within 1ns", 30 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			test.prepare(b)
			if outcome, ok := b.start().(shepherd.Fail); !ok {
				t.Fatalf("got %T %+v", outcome, outcome)
			}
			record := b.record()
			waiting := record.Backoffs[fleet.ProcessAgentStart]
			if !strings.Contains(waiting.Cause, test.cause) || waiting.Interval != test.backoff {
				t.Errorf("backoff %s, cause %q", waiting.Interval, waiting.Cause)
			}
			if refused := slices.Contains([]string{"our key is refused", "another host key", "no host key is known"}, name); waiting.Refused != refused {
				t.Errorf("the host refuses us: %v, want %v", waiting.Refused, refused)
			}
			if record.AgentStarted != nil || record.TakeoverGeneration != test.minted {
				t.Errorf("started %+v, takeover generation %d", record.AgentStarted, record.TakeoverGeneration)
			}
		})
	}
}

// TestStopped: a machine whose start is interrupted because the loop stops has not failed. It is
// due again at once.
func TestStopped(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, stop := context.WithCancel(t.Context())
	b.fake.Hook = func(shepherdtest.Point, fleet.CapacityID) error { stop(); return nil }
	if outcome, ok := b.startUntil(ctx).(shepherd.Cancel); !ok {
		t.Errorf("got %T %+v", outcome, outcome)
	}
	if backoff, failed := b.record().Backoffs[fleet.ProcessAgentStart]; failed {
		t.Errorf("it is in backoff: %+v", backoff)
	}
}

// TestFirstUse: where it is allowed the first key is taken, pinned, and no other accepted from then
// on.
func TestFirstUse(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.attest()
	b.sources[0].Config.TrustFirstUse = true
	b.agent = func(*agentv1.TakeoverInit, sshhost.Program) sshhost.Status { return sshhost.Status{Code: 1} }
	if _, failed := b.start().(shepherd.Fail); !failed {
		t.Fatal("a silent agent was believed")
	}
	pinned, err := b.db.HostKeys(t.Context(), b.machine)
	if err != nil || len(pinned.Known) != 1 || pinned.Known[0] != b.hostKey {
		t.Fatalf("pinned %v, %v", pinned, err)
	}
	other, _, err := remote.NewKey("other")
	check(t, err)
	note(t, b, bmdb.PinHostKeys(b.machine, []string{other.Public()}))
	if outcome, failed := b.start().(shepherd.Fail); !failed || !strings.Contains(outcome.Err.Error(), "nothing was sent") ||
		!strings.Contains(outcome.Err.Error(), "`ironherd machine host-key accept "+string(b.machine)+" SHA256:") {
		t.Errorf("another pinned key: %+v", outcome)
	}
	// a person accepts what the host has shown, against whatever the provider attests
	b.attest(other.Public())
	keys, err := b.db.HostKeys(t.Context(), b.machine)
	check(t, err)
	check(t, b.db.AcceptHostKey(t.Context(), "test", b.machine, keys.Refused, remote.Fingerprint(keys.Refused), "seen on the console"))
	b.agent = takesOver
	if outcome, ok := b.start().(shepherd.Finish); !ok {
		t.Errorf("the accepted key: %+v", outcome)
	}
}

// TestUnknownKeyIsAccepted: where no key is known and no first use is trusted, a person accepts the
// key that the host has shown.
func TestUnknownKeyIsAccepted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.attest()
	b.agent = takesOver
	outcome, failed := b.start().(shepherd.Fail)
	if !failed || !strings.Contains(outcome.Err.Error(), "`ironherd machine host-key accept "+string(b.machine)+" "+remote.Fingerprint(b.hostKey)+" --reason WHY`") {
		t.Fatalf("an unknown key: %+v", outcome)
	}
	keys, err := b.db.HostKeys(t.Context(), b.machine)
	check(t, err)
	if keys.Refused != b.hostKey || len(keys.Known) != 0 {
		t.Fatalf("recorded %+v", keys)
	}
	check(t, b.db.AcceptHostKey(t.Context(), "test", b.machine, keys.Refused, remote.Fingerprint(keys.Refused), "seen on the console"))
	if outcome, ok := b.start().(shepherd.Finish); !ok {
		t.Errorf("the accepted key: %+v", outcome)
	}
}

// TestInjectedKey: the key that went with the request to create the machine is the only one that it
// may show, first use or not.
func TestInjectedKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.attest()
	b.sources[0].Config.TrustFirstUse = true
	other, _, err := remote.NewKey("other")
	check(t, err)
	note(t, b, bmdb.InjectHostKey(b.machine, other.Public(), remote.Fingerprint(other.Public())))
	outcome, failed := b.start().(shepherd.Fail)
	if !failed || !strings.Contains(outcome.Err.Error(), "nothing was sent") || !strings.Contains(outcome.Err.Error(), "(injected)") ||
		!strings.Contains(outcome.Err.Error(), "inject_host_key") ||
		!strings.Contains(outcome.Err.Error(), "`ironherd machine host-key accept "+string(b.machine)+" SHA256:") {
		t.Errorf("another key than was injected: %+v", outcome)
	}
	// A request before was given another, and it was the one that made the machine.
	note(t, b, bmdb.InjectHostKey(b.machine, b.hostKey, remote.Fingerprint(b.hostKey)))
	if outcome, ok := b.start().(shepherd.Finish); !ok {
		t.Errorf("the injected key: %+v", outcome)
	}
	if strings.Contains(b.log.String(), "trusted on first use") {
		t.Error("it was trusted on first use")
	}
}

// note writes a change down and makes the machine due again.
func note(t *testing.T, b *bench, change bmdb.Change) {
	t.Helper()
	_, err := b.db.Retry(t.Context(), "test", b.machine, "")
	check(t, err)
	session, err := b.db.StartSession(t.Context(), bmdb.SessionOptions{Component: "note", Lease: time.Minute})
	check(t, err)
	claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1})
	check(t, err)
	check(t, claim.Works[0].Cancel(t.Context(), "only to note", change))
	check(t, session.Close(t.Context(), "noted"))
}
