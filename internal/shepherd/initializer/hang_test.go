package initializer_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
	"github.com/ironherd/ironherd/internal/sim/sshhost"
)

// hang is a host that accepts connections and then, one way or another, nothing comes of them.
func hang(t *testing.T, address string, way int, key ssh.Signer) {
	t.Helper()
	listener, err := net.Listen("tcp", address) //nolint:noctx // a test
	check(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(key)
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = connection.Close() })
			switch way % 3 {
			case 0: // says nothing
			case 1: // says who it is
				_, _ = connection.Write([]byte("SSH-2.0-OpenSSH_9.2\r\n"))
			case 2: // takes a command, and that is all
				go func() {
					_, channels, requests, err := ssh.NewServerConn(connection, config)
					if err != nil {
						return
					}
					go ssh.DiscardRequests(requests)
					for channel := range channels {
						if _, _, err := channel.Accept(); err != nil {
							return
						}
					}
				}()
			}
		}
	}()
}

// started runs the loop until every good machine has its agent, and returns how long that took, and
// why the first attempt at each hanging machine failed. Hosts have the addresses prefix.1 and on;
// the good ones come last.
func started(t *testing.T, prefix string, hanging, good int) (took time.Duration, failed map[fleet.MachineID]string) {
	t.Helper()
	b := newBench(t)
	b.agent = func(init *agentv1.TakeoverInit, program sshhost.Program) sshhost.Status {
		<-time.After(500 * time.Millisecond)
		return takesOver(init, program)
	}
	address := func(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("%s.%d", prefix, n)) }
	b.fake = shepherdtest.NewFakeProvider(hanging + good)
	b.fake.Address = address
	db := shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})
	_, private, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	key, err := ssh.NewSignerFromKey(private)
	check(t, err)
	ids := shepherdtest.Seed(t, db, source, b.fake, hanging+good)
	for n := 1; n <= hanging+good; n++ {
		if at := netip.AddrPortFrom(address(n), b.config.Port).String(); n <= hanging {
			hang(t, at, n, key)
		} else {
			b.serveOn(at)
		}
	}
	b.config.FirstSilence, b.config.StepTimeout = 200*time.Millisecond, time.Minute
	sources := []initializer.Source{{Name: source, Provider: b.fake, Config: initializer.ProviderConfig{TrustFirstUse: true}}}
	handler, err := initializer.New(db, sources, b.config, b.key, initializer.Options{})
	check(t, err)
	loop, err := shepherd.New(db, handler, shepherd.DefaultConfig(), shepherd.Options{})
	check(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	start := time.Now()
	go func() { ended <- loop.Run(ctx) }()
	defer func() { stop(); check(t, <-ended) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	failed = make(map[fleet.MachineID]string)
	late := time.After(5 * time.Minute)
	for done := 0; done < good; {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%d of %d machines have their agents after five minutes", done, good)
		}
		done = 0
		for _, id := range ids {
			record, err := db.Machine(t.Context(), id)
			check(t, err)
			if record.AgentStarted != nil {
				done++
			}
			hangs := record.Provided.Address.Compare(address(hanging)) <= 0
			if b := record.Backoffs[fleet.ProcessAgentStart]; hangs && b.Failures == 1 {
				failed[id] = b.Cause // later ones are patient
			}
		}
	}
	return time.Since(start), failed
}

// TestMachinesThatHangCostOthersLittle although nobody knows yet that they do: each keeps its slot
// for the silence that a first attempt allows, not for as long as a step may take.
func TestMachinesThatHangCostOthersLittle(t *testing.T) {
	t.Parallel()
	alone, _ := started(t, "127.77.31", 0, 12)
	beside, failed := started(t, "127.77.32", 40, 12)
	t.Logf("12 machines took %s, and %s beside 40 that hang", alone, beside)
	if len(failed) == 0 {
		t.Error("no machine that hangs was tried")
	}
	for _, why := range failed {
		if !strings.Contains(why, "200ms") {
			t.Errorf("a machine that hangs kept its slot: %s", why)
		}
	}
}

// TestTheSecondAttemptIsPatient: what was silent may only have been slow.
func TestTheSecondAttemptIsPatient(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	key, err := ssh.NewSignerFromKey(private)
	check(t, err)
	at := netip.AddrPortFrom(netip.MustParseAddr("127.77.33.1"), b.config.Port)
	hang(t, at.String(), 0, key)
	b.fake.Change(b.device.ID, func(e *provider.Entry) bool { e.Address = at.Addr(); return true })
	b.config.StartBackoff = fleet.Backoff{Initial: time.Second}
	b.config.FirstSilence, b.config.StepTimeout = 100*time.Millisecond, 5*time.Second
	for _, want := range []string{"said nothing for 100ms", "did not finish the SSH handshake within 5s"} {
		if outcome, ok := b.start().(shepherd.Fail); !ok || !strings.Contains(outcome.Err.Error(), want) || fleet.KindOf(outcome.Err) != fleet.KindTimeout {
			t.Errorf("got %+v, want %q", outcome, want)
		}
		<-time.After(1300 * time.Millisecond) // the backoff, and what is added to it
	}
}
