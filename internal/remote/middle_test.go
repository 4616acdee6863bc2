package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ironherd/ironherd/internal/sim/sshhost"
)

// middle is a man in the middle: it answers for other hosts, lets everybody in, and keeps what it
// gets.
type middle struct {
	config *ssh.ServerConfig

	mu sync.Mutex
	// told is what clients told it once they believed it: names, keys, requests, data.
	told []string
	// most is the most bytes that a client sent it.
	most, met int
}

func newMiddle(t *testing.T) *middle {
	t.Helper()
	m := new(middle)
	m.config = &ssh.ServerConfig{
		NoClientAuth: true,
		NoClientAuthCallback: func(meta ssh.ConnMetadata) (*ssh.Permissions, error) {
			m.tell("user " + meta.User())
			return nil, nil
		},
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			m.tell("key " + ssh.FingerprintSHA256(key) + " of " + meta.User())
			return nil, nil
		},
	}
	key, _, err := NewKey("middle")
	if err != nil {
		t.Fatal(err)
	}
	m.config.AddHostKey(key.signer)
	return m
}

func (m *middle) tell(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told = append(m.told, what)
}

// counter counts what is read from a connection.
type counter struct {
	net.Conn
	read atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// serve answers one client.
func (m *middle) serve(raw net.Conn) {
	connection := &counter{Conn: raw}
	defer func() {
		_ = connection.Close()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.most, m.met = max(m.most, int(connection.read.Load())), m.met+1
	}()
	_, channels, requests, err := ssh.NewServerConn(connection, m.config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		m.tell("a channel of type " + offered.ChannelType())
		_ = offered.Reject(ssh.Prohibited, "thank you")
	}
}

// Of ten thousand agent starts one in a hundred meets a man in the middle. None of those gets a
// byte of the agent or of the message that tells it who it is: the connection ends with the key
// exchange. Of the others, one in ten is carried out to its end.
func TestTenThousandStartsAndAManInTheMiddle(t *testing.T) {
	t.Parallel()
	starts := 10_000
	if underRace {
		starts = 1000
	}
	const parallel = 16
	key := newTestKey(t)
	hostKey, _, err := NewKey("machine")
	if err != nil {
		t.Fatal(err)
	}
	machines, executed := newMachines(t, key, hostKey)
	mallory := newMiddle(t)
	middles := bufconn.Listen(1 << 20)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			connection, err := middles.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { mallory.serve(connection) })
		}
	})
	dialer := NewDialer(key, Options{ConnectTimeout: time.Minute, HandshakeTimeout: time.Minute, StepTimeout: time.Minute, Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
		if strings.HasPrefix(address, "192.0.2.") {
			return middles.DialContext(ctx)
		}
		return machines.DialContext(ctx)
	}})
	secret := make([]byte, 64<<10)
	_, _ = rand.Read(secret)
	content := newContent(secret)
	var refused, started atomic.Int64
	var group sync.WaitGroup
	work := make(chan int)
	for range parallel {
		group.Go(func() {
			for i := range work {
				target := Target{
					Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 22), User: "root",
					Trust: Trust{Pinned: []string{hostKey.Public()}},
				}
				if i%100 == 0 {
					target.Address = netip.MustParseAddrPort("192.0.2.1:22")
				}
				host, err := dialer.Dial(t.Context(), target)
				if err != nil {
					if !strings.Contains(err.Error(), "nothing was sent to it") || i%100 != 0 {
						t.Errorf("start %d: %v", i, err)
					}
					refused.Add(1)
					continue
				}
				started.Add(1)
				if i%10 != 1 {
					_ = host.Close()
					continue
				}
				uploaded, err := host.Upload(t.Context(), content, "/root/agent", 0o700)
				if err == nil {
					_, err = host.Run(t.Context(), Command{Args: []string{uploaded.Path, "takeover"}, Stdin: strings.NewReader("the init message")})
				}
				if err != nil {
					t.Errorf("start %d: %v", i, err)
				}
				_ = host.Close()
			}
		})
	}
	for i := range starts {
		work <- i
	}
	close(work)
	group.Wait()
	_ = middles.Close()
	serving.Wait()
	if refused.Load() != int64(starts/100) || started.Load() != int64(starts-starts/100) || executed.Load() != int64(starts/10) {
		t.Errorf("%d refused, %d started, %d executed", refused.Load(), started.Load(), executed.Load())
	}
	if len(mallory.told) > 0 || mallory.met != starts/100 {
		t.Errorf("the man in the middle met %d and was told %v", mallory.met, mallory.told)
	}
	// The version, the algorithms and our half of the key exchange are all that a client sends.
	if mallory.most > 4<<10 {
		t.Errorf("the man in the middle was sent %d bytes", mallory.most)
	}
	t.Logf("%d starts, %d of them met a man in the middle, who was sent %d bytes at most", starts, mallory.met, mallory.most)
}

// newMachines starts simulated machines that are all alike, in memory. executed counts the agents
// that they executed with an init message.
func newMachines(t *testing.T, key, hostKey *Key) (listener *bufconn.Listener, executed *atomic.Int64) {
	t.Helper()
	root, executed := filepath.Join(t.TempDir(), "machine"), new(atomic.Int64)
	if err := os.MkdirAll(filepath.Join(root, "root/.ssh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "root/.ssh/authorized_keys"), []byte(key.Public()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := sshhost.OpenStore(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	server := sshhost.NewServer(sshhost.Options{
		Root: root, Hostname: "machine", HostKey: hostKey.signer, Store: store, Logger: slog.New(slog.DiscardHandler),
		Execute: func(_ context.Context, program sshhost.Program) sshhost.Status {
			input := new(bytes.Buffer)
			if _, err := input.ReadFrom(program.Stdin); err != nil || input.String() != "the init message" {
				return sshhost.Status{Code: 1}
			}
			executed.Add(1)
			return sshhost.Status{}
		},
	})
	listener = bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(ctx, listener)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return listener, executed
}
