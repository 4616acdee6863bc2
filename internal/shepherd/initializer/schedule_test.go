package initializer_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
	"github.com/ironherd/ironherd/internal/sim/sshhost"
)

// ailment is what is wrong with a host.
type ailment string

const (
	// sound: nothing is.
	sound ailment = "sound"
	// refuses connections; unheard: nothing answers one; mute: it accepts them, and says nothing.
	refuses ailment = "refuses"
	unheard ailment = "unheard"
	mute    ailment = "mute"
	// hangs once it has let us in: it takes commands, and does none. stalls does the one that does
	// nothing.
	hangs  ailment = "hangs"
	stalls ailment = "stalls"
)

// crowd is many hosts, each with an SSH server of its own, and a network in memory before them.
type crowd struct {
	t       *testing.T
	key     *remote.Key
	signer  ssh.Signer
	store   *sshhost.Store
	serving sync.WaitGroup
	// takes is how long an agent takes to take a host over.
	takes time.Duration
	hosts map[netip.Addr]*member

	// dialing has one connection made at a time: bufconn sets timers that end at once, and two of them
	// at the same time end the race detector of Go 1.26 (SIGSEGV) where time is fake.
	dialing sync.Mutex

	mu sync.Mutex
	// taken counts the hosts that were taken over, the last of them at the instant last.
	taken int
	last  time.Time
}

// member is one host of a crowd.
type member struct {
	ails     ailment
	listener *bufconn.Listener
}

func newCrowd(t *testing.T, takes time.Duration) *crowd {
	t.Helper()
	key, _, err := remote.NewKey("test")
	check(t, err)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	signer, err := ssh.NewSignerFromKey(private)
	check(t, err)
	store, err := sshhost.OpenStore(t.TempDir())
	check(t, err)
	c := &crowd{t: t, key: key, signer: signer, store: store, takes: takes, hosts: make(map[netip.Addr]*member)}
	t.Cleanup(func() {
		for _, m := range c.hosts {
			_ = m.listener.Close()
		}
		c.serving.Wait()
	})
	return c
}

// add adds a host at an address.
func (c *crowd) add(address netip.Addr, ails ailment) {
	c.t.Helper()
	m := &member{ails: ails, listener: bufconn.Listen(1 << 20)}
	c.hosts[address] = m
	if ails != sound {
		c.serving.Go(func() { c.hang(m) })
		return
	}
	root := c.t.TempDir()
	check(c.t, os.MkdirAll(filepath.Join(root, "root/.ssh"), 0o700))
	check(c.t, os.WriteFile(filepath.Join(root, "root/.ssh/authorized_keys"), []byte(c.key.Public()+"\n"), 0o600))
	server := sshhost.NewServer(sshhost.Options{
		Root: root, Hostname: "host", HostKey: c.signer, Store: c.store, Execute: c.execute, Logger: slog.New(slog.DiscardHandler),
	})
	c.serving.Go(func() { server.Serve(c.t.Context(), m.listener) })
}

// execute is the agent, which takes its time.
func (c *crowd) execute(_ context.Context, program sshhost.Program) sshhost.Status {
	input, init := new(bytes.Buffer), new(agentv1.TakeoverInit)
	if _, err := input.ReadFrom(program.Stdin); err != nil || proto.Unmarshal(input.Bytes(), init) != nil {
		return sshhost.Status{Code: 2}
	}
	time.Sleep(c.takes)
	c.mu.Lock()
	c.taken, c.last = c.taken+1, time.Now()
	c.mu.Unlock()
	return takesOver(init, program)
}

// hang accepts connections, and hangs as the host does.
func (c *crowd) hang(m *member) {
	config := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return new(ssh.Permissions), nil }}
	config.AddHostKey(c.signer)
	for {
		connection, err := m.listener.Accept()
		if err != nil {
			return
		}
		c.serving.Go(func() {
			defer func() { _ = connection.Close() }()
			if m.ails == mute {
				_, _ = io.Copy(io.Discard, connection)
				return
			}
			_, channels, requests, err := ssh.NewServerConn(connection, config)
			if err != nil {
				return
			}
			c.serving.Go(func() { ssh.DiscardRequests(requests) })
			for offered := range channels {
				channel, requests, err := offered.Accept()
				if err != nil {
					return
				}
				c.serving.Go(func() { m.take(channel, requests) })
			}
		})
	}
}

// take takes what the host is asked for on a channel, and does next to nothing of it.
func (m *member) take(channel ssh.Channel, requests <-chan *ssh.Request) {
	for request := range requests {
		_ = request.Reply(true, nil)
		if m.ails == stalls && request.Type == "exec" && bytes.HasSuffix(request.Payload, []byte(" true")) {
			_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{0}))
			_ = channel.Close()
		}
	}
}

// connect is the network.
func (c *crowd) connect(ctx context.Context, _, address string) (net.Conn, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	switch m := c.hosts[at.Addr()]; m.ails {
	case refuses:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case unheard:
		<-ctx.Done()
		return nil, ctx.Err()
	default:
		c.dialing.Lock()
		defer c.dialing.Unlock()
		return m.listener.DialContext(ctx)
	}
}

// loop returns the real loop with the real initializer, on the crowd's network.
func (c *crowd) loop(db *bmdb.DB, fake provider.Provider, config initializer.Config, eager shepherd.Config) *shepherd.Loop {
	c.t.Helper()
	config.AgentExecutable, config.Endpoint = filepath.Join(c.t.TempDir(), "agent"), "127.0.0.1:7443"
	check(c.t, os.WriteFile(config.AgentExecutable, []byte("#!agent\n"), 0o600))
	dialer := remote.NewDialer(c.key, remote.Options{
		ConnectTimeout: config.ConnectTimeout, HandshakeTimeout: config.StepTimeout, StepTimeout: config.StepTimeout, Dial: c.connect,
	})
	dial := func(ctx context.Context, target remote.Target) (initializer.Host, error) {
		host, err := dialer.Dial(ctx, target)
		if err != nil {
			return nil, err
		}
		return host, nil
	}
	sources := []initializer.Source{{Name: source, Provider: fake, Config: initializer.ProviderConfig{TrustFirstUse: true}}}
	handler, err := initializer.New(db, sources, config, c.key, initializer.Options{Dial: dial})
	check(c.t, err)
	loop, err := shepherd.New(db, handler, eager, shepherd.Options{})
	check(c.t, err)
	return loop
}

// TestDeadAndHangingHostsSlowNobodyOverSSH: of many hosts one in ten is dead, and one in twenty
// hangs once it has let us in. The others have their agents, which the real initializer starts over
// SSH, within 1.2 times of the ideal schedule. In that one every slot is busy all the time, with
// each host once: for as long as its agent takes, or for as long as the configuration bears its
// silence.
func TestDeadAndHangingHostsSlowNobodyOverSSH(t *testing.T) {
	t.Parallel()
	config, eager := initializer.DefaultConfig(), shepherd.DefaultConfig()
	for name, test := range map[string]struct {
		hangs ailment
		costs time.Duration
	}{
		"at once":                 {hangs, config.FirstSilence},
		"after the first command": {stalls, config.StepTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const hosts = 240
				c, fake := newCrowd(t, 2*time.Second), shepherdtest.NewFakeProvider(hosts)
				db := shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})
				ids := shepherdtest.Seed(t, db, source, fake, hosts)
				costs := map[ailment]time.Duration{
					sound: c.takes, refuses: 0, unheard: config.ConnectTimeout, mute: config.FirstSilence, test.hangs: test.costs,
				}
				counts := make(map[ailment]int)
				var ideal time.Duration
				for i, device := range fake.Devices() {
					ails := sound
					switch {
					case i%10 == 3:
						ails = []ailment{refuses, unheard, mute}[i/10%3]
					case i%20 == 6:
						ails = test.hangs
					}
					c.add(device.Address, ails)
					counts[ails]++
					ideal += costs[ails]
				}
				ideal /= time.Duration(eager.Parallelism)
				loop := c.loop(db, fake, config, eager)
				ctx, stop := context.WithCancel(t.Context())
				ended, begun := make(chan error, 1), time.Now()
				go func() { ended <- loop.Run(ctx) }()
				time.Sleep(3 * ideal)
				stop()
				check(t, <-ended)
				c.mu.Lock()
				taken, took := c.taken, c.last.Sub(begun)
				c.mu.Unlock()
				alone := time.Duration(counts[sound]) * c.takes / time.Duration(eager.Parallelism)
				t.Logf("%v: the sound ones have agents after %s, %.2f times the ideal schedule of %s; without the others that is %s",
					counts, took, took.Seconds()/ideal.Seconds(), ideal, alone)
				if taken != counts[sound] || took.Seconds() > 1.2*ideal.Seconds() {
					t.Errorf("%d of %d sound hosts have agents after %s; ideal is %s", taken, counts[sound], took, ideal)
				}
				tried := 0
				for _, id := range ids {
					record, err := db.Machine(t.Context(), id)
					check(t, err)
					if record.AgentStarted != nil || record.Backoffs[fleet.ProcessAgentStart].Failures > 0 {
						tried++
					}
				}
				if tried != hosts {
					t.Errorf("%d of %d hosts were tried", tried, hosts)
				}
			})
		})
	}
}

// hungProvider does not answer questions.
type hungProvider struct{ *shepherdtest.FakeProvider }

func (hungProvider) Get(ctx context.Context, _ fleet.ProviderID) (provider.Entry, error) {
	<-ctx.Done()
	return provider.Entry{}, fleet.ContextError(ctx)
}

// TestAProviderThatHangsHoldsNobodyElseUp: its machines were due before, and are many.
func TestAProviderThatHangsHoldsNobodyElseUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})
		hung, fine := shepherdtest.NewFakeProvider(50), shepherdtest.NewFakeProvider(5)
		fine.Provisioning = 0
		ids := shepherdtest.Seed(t, db, "hung", hung, 50)
		time.Sleep(time.Second)
		shepherdtest.Seed(t, db, "fine", fine, 5)
		config := initializer.DefaultConfig()
		config.AgentExecutable, config.Endpoint = filepath.Join(t.TempDir(), "agent"), "127.0.0.1:7443"
		check(t, os.WriteFile(config.AgentExecutable, []byte("#!agent\n"), 0o600))
		dialled := make(chan time.Time, 50)
		handler, err := initializer.New(db, []initializer.Source{{Name: "hung", Provider: hungProvider{hung}}, {Name: "fine", Provider: fine}}, config, nil,
			initializer.Options{Dial: func(context.Context, remote.Target) (initializer.Host, error) {
				dialled <- time.Now()
				return nil, fleet.Errorf(fleet.KindTemporary, "not here")
			}})
		check(t, err)
		loop, err := shepherd.New(db, handler, shepherd.DefaultConfig(), shepherd.Options{})
		check(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		start := time.Now()
		go func() { ended <- loop.Run(ctx) }()
		defer func() { stop(); check(t, <-ended) }()
		time.Sleep(32 * time.Second)
		if n := len(dialled); n < 5 {
			t.Fatalf("%d of 5 machines were dialled", n)
		}
		for range 5 {
			if took := (<-dialled).Sub(start); took > time.Second {
				t.Errorf("a machine waited for %s", took)
			}
		}
		left := 0
		for _, id := range ids {
			record, err := db.Machine(t.Context(), id)
			check(t, err)
			if strings.Contains(record.Backoffs[fleet.ProcessAgentStart].Cause, "provider hung did not answer within 30s") {
				left++
			}
		}
		if left < 5 {
			t.Errorf("%d machines of the provider that hangs have left their slots", left)
		}
	})
}
