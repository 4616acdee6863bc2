package sim_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packethost/packngo"
	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/sim"
)

// rig is a world, and a client of it.
type rig struct {
	t      *testing.T
	config sim.Config
	world  *sim.World
	client *packngo.Client
	key    ssh.Signer
	agents *agents
	done   chan error
}

func newSigner(tb testing.TB) ssh.Signer {
	tb.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		tb.Fatal(err)
	}
	return signer
}

func newRig(t *testing.T, change func(*sim.Config)) *rig {
	t.Helper()
	r := &rig{t: t, key: newSigner(t), agents: &agents{}}
	r.config = sim.Config{
		Dir: t.TempDir(), Seed: 5, Speed: 100, Agent: r.agents.run, Images: []sim.ImageSpec{{Name: "small", Size: 4 << 20}},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if change != nil {
		change(&r.config)
	}
	r.open()
	t.Cleanup(r.close)
	_, _, err := r.client.SSHKeys.Create(&packngo.SSHKeyCreateRequest{
		Label: "test", Key: string(ssh.MarshalAuthorizedKey(r.key.PublicKey())), ProjectID: r.world.ProjectID(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) open() {
	r.t.Helper()
	world, err := sim.Open(r.t.Context(), r.config)
	if err != nil {
		r.t.Fatal(err)
	}
	r.world, r.done = world, make(chan error, 1)
	done := r.done
	go func() { done <- world.Run(context.WithoutCancel(r.t.Context())) }()
	if r.client, err = packngo.NewClientWithBaseURL("test", r.world.Token(), nil, r.world.URL()+"/"); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) close() {
	if err := errors.Join(r.world.Close(), <-r.done); err != nil {
		r.t.Error(err)
	}
	r.done <- nil
}

func (r *rig) restart() {
	r.t.Helper()
	r.close()
	r.open()
}

// create creates a device on the n-th reservation.
func (r *rig) create(n int) (string, error) {
	reservations, _, err := r.client.HardwareReservations.List(r.world.ProjectID(), &packngo.ListOptions{SortBy: "id", PerPage: 100})
	if err != nil {
		return "", err
	}
	d, _, err := r.client.Devices.Create(&packngo.DeviceCreateRequest{
		Hostname: fmt.Sprintf("m%d", n), OS: "debian_13", ProjectID: r.world.ProjectID(), HardwareReservationID: reservations[n].ID,
	})
	if err != nil {
		return "", err
	}
	return d.ID, nil
}

func (r *rig) createAll() []string {
	r.t.Helper()
	var ids []string
	for n := range r.config.Machines {
		id, err := r.create(n)
		if err != nil {
			r.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// eventually waits for something that is sure to come.
func (r *rig) eventually(what string, is func() bool) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(2 * time.Minute)
	defer limit.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-limit.C:
			r.t.Fatalf("never: %s; status %+v", what, r.world.Status())
		}
	}
}

func (r *rig) waitState(id, state string) *packngo.Device {
	r.t.Helper()
	var d *packngo.Device
	r.eventually("device is "+state, func() bool {
		var err error
		if d, _, err = r.client.Devices.Get(id, nil); err != nil {
			r.t.Fatal(err)
		}
		return d.State == state
	})
	return d
}

func (r *rig) act(id, action string) {
	r.t.Helper()
	if _, err := r.client.DoRequest("POST", "devices/"+id+"/actions", map[string]string{"type": action}, nil); err != nil {
		r.t.Fatal(err)
	}
}

func dialWith(address string, port int, key ssh.Signer) (*ssh.Client, error) {
	return ssh.Dial("tcp", net.JoinHostPort(address, strconv.Itoa(port)), &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(), Timeout: 10 * time.Second,
	})
}

func (r *rig) dial(address string) *ssh.Client {
	r.t.Helper()
	client, err := dialWith(address, r.world.SSHPort(), r.key)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = client.Close() })
	return client
}

// dialSoon dials a machine that is booting.
func (r *rig) dialSoon(address string) (client *ssh.Client) {
	r.t.Helper()
	r.eventually("the machine answers", func() (ok bool) {
		var err error
		client, err = dialWith(address, r.world.SSHPort(), r.key)
		return err == nil
	})
	r.t.Cleanup(func() { _ = client.Close() })
	return client
}

// silent waits until none of the machines answers a connection or refuses it.
func (r *rig) silent(addresses []string) {
	r.t.Helper()
	for _, address := range addresses {
		r.eventually(address+" is silent", func() bool {
			conn, err := net.Dial("tcp", net.JoinHostPort(address, strconv.Itoa(r.world.SSHPort())))
			if err != nil {
				return false
			}
			defer func() { _ = conn.Close() }()
			err = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
			if err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
			return errors.Is(err, os.ErrDeadlineExceeded)
		})
	}
}

func (r *rig) hostKey(address string) (key string) {
	r.t.Helper()
	conn, err := ssh.Dial("tcp", net.JoinHostPort(address, strconv.Itoa(r.world.SSHPort())), &ssh.ClientConfig{
		User: "root", HostKeyCallback: func(_ string, _ net.Addr, k ssh.PublicKey) error {
			key = string(k.Marshal())
			return nil
		},
	})
	if err == nil {
		_ = conn.Close()
	}
	return key
}

// waitBoot waits until the machine runs under another boot ID, and returns it.
func (r *rig) waitBoot(address, before string) (boot string) {
	r.t.Helper()
	r.eventually("another boot", func() bool {
		client, err := dialWith(address, r.world.SSHPort(), r.key)
		if err != nil {
			return false
		}
		defer func() { _ = client.Close() }()
		boot, err = r.try(client, "cat /proc/sys/kernel/random/boot_id", "")
		return err == nil && boot != before
	})
	return boot
}

// try runs a command line and returns its output.
func (r *rig) try(client *ssh.Client, line, stdin string) (string, error) {
	session, err := client.NewSession()
	if err != nil {
		return "", err
	}
	defer func() { _ = session.Close() }()
	var out bytes.Buffer
	session.Stdin, session.Stdout = strings.NewReader(stdin), &out
	err = session.Run(line)
	return out.String(), err
}

// run runs a command line, whatever its exit code.
func (r *rig) run(client *ssh.Client, line, stdin string) string {
	r.t.Helper()
	out, err := r.try(client, line, stdin)
	if _, ok := errors.AsType[*ssh.ExitError](err); err != nil && !ok {
		r.t.Fatalf("%s: %v", line, err)
	}
	return out
}

func (r *rig) upload(address, name, content string) {
	r.t.Helper()
	client, err := sftp.NewClient(r.dial(address))
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	err = client.MkdirAll("/root/agent")
	if err == nil {
		var file *sftp.File
		if file, err = client.Create(name); err == nil {
			_, err = io.WriteString(file, content)
			err = errors.Join(err, file.Close(), client.Chmod(name, 0o755))
		}
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// agents is a program that plays the agent in the simulator's process.
type agents struct {
	mu    sync.Mutex
	alive map[string]int
	args  map[string][]string
}

// hostOf tells a machine by the end of its directory's name, which has its slot.
func hostOf(root string) string {
	var slot int
	_, _ = fmt.Sscanf(root[strings.LastIndexByte(root, '/')+1:], "%d-", &slot)
	return fmt.Sprintf("127.20.0.%d", slot+2) // in a rig's world, by its seed
}

func (a *agents) running(address string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.alive[address]
}

func (a *agents) last(address string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.args[address])
}

func (a *agents) live(root string, args []string) func(context.Context) {
	address := hostOf(root)
	count := func(n int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.alive == nil {
			a.alive, a.args = map[string]int{}, map[string][]string{}
		}
		a.alive[address] += n
		a.args[address] = args
	}
	return func(ctx context.Context) {
		count(1)
		defer count(-1)
		<-ctx.Done()
	}
}

func (a *agents) run(ctx context.Context, root string, args []string, stdin io.Reader, stdout, stderr io.Writer, host sim.AgentHost) int {
	switch args[0] {
	case "takeover":
		host.Detach(a.live(root, args))
		_, _ = io.WriteString(stdout, "taken over")
	case "run":
		a.live(root, args)(ctx)
	case "install":
		if err := install(ctx, root, args[1], stdin); err != nil {
			_, _ = fmt.Fprintln(stderr, err)
			return 1
		}
		if err := host.Reboot(ctx); err != nil {
			return 1
		}
	default:
		return 3
	}
	return 0
}
