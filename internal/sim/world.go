package sim

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ironherd/ironherd/internal/sim/equinixapi"
	"github.com/ironherd/ironherd/internal/sim/fault"
	"github.com/ironherd/ironherd/internal/sim/hardware"
	"github.com/ironherd/ironherd/internal/sim/image"
	"github.com/ironherd/ironherd/internal/sim/journal"
	"github.com/ironherd/ironherd/internal/sim/sshhost"
)

// ErrInUse is what Open fails with when another process has the directory or a port of the world.
var ErrInUse = errors.New("in use")

// World is a simulated world. Its methods may be called concurrently.
type World struct {
	cfg     Config
	self    identity
	lock    *os.File
	journal *journal.Journal
	faults  *fault.Set
	// revokedUntil is when the token counts again, in nanoseconds since 1970.
	revokedUntil atomic.Int64
	images       []Image
	made         []image.Image
	files        map[string]string // what /images/ serves, by name
	shared       *hardware.Shared
	store        *sshhost.Store
	preload      map[string]sshhost.Content
	api          *equinixapi.API
	// listener is the API's. With tls, the API speaks TLS, and plain serves images and the status, as
	// machines know no authority of the world's; else both are nil. claim holds the SSH port on an
	// address that no machine has, so that no two worlds of one network choose the same.
	listener, plain, claim net.Listener
	tls                    *tls.Config
	// cpuSlots bounds how many machines are built, or have their disk read back, at the same time.
	cpuSlots chan struct{}
	stats    stats
	slots    sync.Map // slot → equinixapi.Slot

	mu    sync.Mutex
	hosts map[string]*host // by device
	past  past

	// newPeriod returns a context for a machine's period, derived from Run's. tasks are the goroutines
	// of all machines.
	newPeriod func() (context.Context, context.CancelFunc)
	tasks     sync.WaitGroup

	running   sync.Mutex
	closed    bool
	stop      context.CancelFunc
	stopped   chan struct{}
	closeOnce sync.Once
	closeErr  error
}

// identity is what never changes in a world.
type identity struct {
	Seed uint64 `json:"seed"`
	// ID tells this world's objects at the provider from those of others with the same seed. Worlds
	// that were made before there were IDs have none.
	ID       string `json:"id,omitempty"`
	Machines int    `json:"machines"`
	OnDemand int    `json:"on_demand"`
	// Network is the one that machines' addresses begin in. It is 0 in worlds that were made before
	// there was more than one.
	Network int    `json:"network,omitempty"`
	Token   string `json:"token"`
	Listen  string `json:"listen"`
	// Plain is where images are served without TLS, once that was needed.
	Plain   string `json:"plain,omitempty"`
	SSHPort int    `json:"ssh_port"`
}

// journalName is the journal's name in the directory of a world.
const journalName = "journal"

// Exists reports whether a directory holds a world.
func Exists(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, journalName))
	return err == nil
}

// Open prepares the world of cfg.Dir: it reads the journal, makes the images and listens. Before
// Run nothing happens in the world, and no request is answered.
func Open(ctx context.Context, cfg Config) (_ *World, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	w := &World{
		cfg: cfg.withDefaults(), files: map[string]string{}, preload: map[string]sshhost.Content{}, cpuSlots: make(chan struct{}, max(2, runtime.GOMAXPROCS(0))),
		hosts: map[string]*host{},
	}
	defer func() {
		if err != nil {
			_ = w.release()
		}
	}()
	if w.cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, err
	}
	if err := w.lockDir(); err != nil {
		return nil, err
	}
	var state map[string][]byte
	if w.journal, state, err = journal.Open(filepath.Join(w.cfg.Dir, journalName)); err != nil {
		return nil, err
	}
	if err := w.identify(ctx, state); err != nil {
		return nil, err
	}
	if err := w.prepare(state); err != nil {
		return nil, err
	}
	return w, nil
}

// lockDir locks the directory, so that no other process uses it.
func (w *World) lockDir() error {
	if err := os.MkdirAll(w.cfg.Dir, 0o755); err != nil {
		return fmt.Errorf("directory of the world: %w: name one that can be made", err)
	}
	lock, err := os.OpenFile(filepath.Join(w.cfg.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("directory of the world: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return fmt.Errorf("the world in %s is %w by another process", w.cfg.Dir, ErrInUse)
	}
	w.lock = lock
	return nil
}

// identify reads the world's identity from the journal, or decides it, and listens.
func (w *World) identify(ctx context.Context, state map[string][]byte) error {
	text, known := state["world"]
	if known {
		if err := json.Unmarshal(text, &w.self); err != nil {
			return fmt.Errorf("journal: world: %w", err)
		}
		if n := w.cfg.Machines; n != 0 && n != w.self.Machines {
			return fmt.Errorf("the world in %s has %d machines, not %d", w.cfg.Dir, w.self.Machines, n)
		}
		if s := w.cfg.Seed; s != 0 && s != w.self.Seed {
			return fmt.Errorf("the world in %s was made with seed %d, not %d", w.cfg.Dir, w.self.Seed, s)
		}
	} else {
		w.self = identity{
			Seed: w.cfg.Seed, ID: randomHex(), Machines: w.cfg.Machines, OnDemand: w.cfg.OnDemand, Network: networkOf(w.cfg.Seed), Token: randomHex(),
		}
	}
	var files syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files)
	if err != nil {
		return fmt.Errorf("ask for the limit of open files: %w", err)
	}
	if machines := w.self.Machines + w.self.OnDemand; files.Cur < OpenFiles(machines) {
		return fmt.Errorf("%d machines (%d of them on demand) may have %d files open at once, and this process may have %d: raise the limit (`ulimit -n`), or ask for fewer machines",
			machines, w.self.OnDemand, OpenFiles(machines), files.Cur)
	}
	if w.listener, err = listenOn(ctx, keptPort(w.cfg.Listen, w.self.Listen)); err != nil {
		return err
	}
	if w.cfg.TLS {
		host, _, _ := net.SplitHostPort(w.cfg.Listen) // it could be listened on
		if w.tls, err = serverTLS(w.cfg.Dir, host); err != nil {
			return err
		}
		if w.plain, err = listenOn(ctx, keptPort(net.JoinHostPort(host, "0"), w.self.Plain)); err != nil {
			return err
		}
		w.self.Plain = w.plain.Addr().String()
	}
	port := w.self.SSHPort
	if w.cfg.SSHPort != 0 {
		port = w.cfg.SSHPort
	}
	if w.claim, err = listenOn(ctx, net.JoinHostPort(claimAddress(w.self.Network).String(), strconv.Itoa(port))); err != nil {
		return err
	}
	w.self.Listen, w.self.SSHPort = w.listener.Addr().String(), w.claim.Addr().(*net.TCPAddr).Port
	return w.record("world", w.self)
}

// OpenFiles returns how many files a world may have open at once, with so many machines (those on
// demand, too): for each machine that it listens on, the connection of its agent and the lock of
// the agent's PID file; and for what goes on beside that, few at a time.
func OpenFiles(machines int) uint64 { return uint64(3*machines + 200) }

func randomHex() string {
	secret := make([]byte, 16)
	_, _ = rand.Read(secret) // never fails
	return hex.EncodeToString(secret)
}

// keptPort returns an address to listen on: where its port is 0, the port from before, if any.
func keptPort(listen, before string) string {
	address, port, err := net.SplitHostPort(listen)
	if err != nil || port != "0" || before == "" {
		return listen
	}
	if _, port, err = net.SplitHostPort(before); err != nil {
		return listen
	}
	return net.JoinHostPort(address, port)
}

// prepare makes everything that the world is made of.
func (w *World) prepare(state map[string][]byte) error {
	if err := w.makeImages(); err != nil {
		return err
	}
	var err error
	if w.shared, err = hardware.NewShared(filepath.Join(w.cfg.Dir, "shared")); err != nil {
		return err
	}
	if w.store, err = sshhost.OpenStore(filepath.Join(w.cfg.Dir, "contents")); err != nil {
		return err
	}
	for name, file := range w.cfg.Preload {
		if w.preload[name], err = w.store.Add(file, 0o755); err != nil {
			return fmt.Errorf("preload %s: %w", name, err)
		}
	}
	spec, err := fault.Parse(w.cfg.Faults)
	if err != nil {
		return err
	}
	var counts []fault.Count
	provider := map[string][]byte{}
	for key, text := range state {
		kind, name, _ := strings.Cut(key, "/")
		switch kind {
		case "api":
			provider[name] = text
		case "fault":
			var c fault.Count
			err = json.Unmarshal(text, &c)
			counts = append(counts, c)
		case "past":
			err = json.Unmarshal(text, &w.past)
		case "host":
			h := &host{world: w}
			if err = json.Unmarshal(text, &h.record); err == nil {
				h.init()
				w.hosts[name] = h
			}
		}
		if err != nil {
			return fmt.Errorf("journal: %s: %w", key, err)
		}
	}
	w.faults = fault.NewSet(spec, w.self.Seed, counts, func(c fault.Count) {
		if err := w.record("fault/"+string(c.Fault), c); err != nil {
			w.cfg.Logger.Warn("fault was not recorded", slog.Any("fault", c.Fault), slog.Any("err", err))
		}
	})
	w.api, err = equinixapi.New(w.providerConfig(provider))
	return err
}

func (w *World) makeImages() error {
	dir := filepath.Join(w.cfg.Dir, "images")
	for _, spec := range w.cfg.Images {
		made, err := image.Make(dir, image.Spec{Name: spec.Name, Size: spec.Size, Compression: spec.Compression, Seed: w.self.Seed})
		if err != nil {
			return err
		}
		name := filepath.Base(made.Path)
		w.files[name] = made.Path
		w.made = append(w.made, made)
		w.images = append(w.images, Image{
			Name: spec.Name, URL: w.plainURL() + "/images/" + name, Digest: made.Digest, Size: made.Size,
			TransferSize: made.TransferSize, Compression: made.Compression,
		})
	}
	return nil
}

// record writes one value to the journal.
func (w *World) record(key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return w.journal.Append(journal.Change{Key: key, Value: text})
}

// Run runs the world until ctx ends. Stopping leaves no trace in the journal: a machine that was on
// is on again after the next Open. Run returns nil when ctx has ended or the world was closed. It
// can be called once.
func (w *World) Run(ctx context.Context) error {
	w.running.Lock()
	if w.closed || w.stop != nil {
		defer w.running.Unlock()
		if w.closed {
			return nil
		}
		return errors.New("a world runs once")
	}
	ctx, w.stop = context.WithCancel(ctx)
	w.stopped = make(chan struct{})
	w.running.Unlock()
	defer close(w.stopped)

	w.mu.Lock()
	w.newPeriod = func() (context.Context, context.CancelFunc) { return context.WithCancel(ctx) }
	hosts := make([]*host, 0, len(w.hosts))
	for _, h := range w.hosts {
		hosts = append(hosts, h)
	}
	w.mu.Unlock()
	w.killLeftovers(hosts)
	w.reconcile(ctx, hosts)
	w.api.Start(ctx)
	err := w.serve(ctx)
	w.stop()
	w.api.Wait()
	w.tasks.Wait()
	return err
}

// reconcile resumes the machines. It removes those whose device is gone, because the process was
// killed after the device was deleted and before its machine was.
func (w *World) reconcile(ctx context.Context, hosts []*host) {
	devices := map[string]bool{}
	for _, id := range w.api.Devices() {
		devices[id] = true
	}
	for _, h := range hosts {
		if devices[h.record.Device] {
			h.resume()
			continue
		}
		if err := w.Remove(ctx, h.record.Device); err != nil {
			w.cfg.Logger.Warn("machine of a deleted device stays", slog.String("machine", h.record.Hostname), slog.Any("err", err))
		}
	}
}

// Close stops Run, kills every process of the world, and releases its directory. It may be called
// more than once.
func (w *World) Close() error {
	w.running.Lock()
	w.closed = true
	stop, stopped := w.stop, w.stopped
	w.running.Unlock()
	if stop != nil {
		stop()
		<-stopped
	}
	w.closeOnce.Do(func() { w.closeErr = w.release() })
	return w.closeErr
}

// release closes what Open has opened.
func (w *World) release() error {
	var errs []error
	for _, l := range []net.Listener{w.listener, w.plain, w.claim} {
		if l != nil {
			if err := l.Close(); !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
	}
	if w.journal != nil {
		errs = append(errs, w.journal.Close())
	}
	if w.lock != nil {
		// A child that is being started has a copy of the descriptor, and the lock, until it executes.
		errs = append(errs, syscall.Flock(int(w.lock.Fd()), syscall.LOCK_UN), w.lock.Close())
	}
	return errors.Join(errs...)
}

// URL is where the API is found, without a trailing slash: http://address/metal/v1, or https.
func (w *World) URL() string {
	if w.tls != nil {
		return "https://" + w.self.Listen + equinixapi.Prefix
	}
	return "http://" + w.self.Listen + equinixapi.Prefix
}

// CAFile is the certificate that clients of the API must trust; empty without TLS.
func (w *World) CAFile() string {
	if w.tls == nil {
		return ""
	}
	return filepath.Join(w.cfg.Dir, caName)
}

// plainURL is where the world serves what it has beside the API.
func (w *World) plainURL() string {
	if w.plain != nil {
		return "http://" + w.self.Plain
	}
	return "http://" + w.self.Listen
}

// StatusURL is where Status is served as JSON.
func (w *World) StatusURL() string { return w.plainURL() + statusPath }

// Token is the API key of the world's only user.
func (w *World) Token() string { return w.self.Token }

// ProjectID is the project that owns all hardware reservations.
func (w *World) ProjectID() string { return w.api.ProjectID() }

// Machines returns how many hardware reservations there are.
func (w *World) Machines() int { return w.self.Machines }

// SSHPort is the port on which every machine answers.
func (w *World) SSHPort() int { return w.self.SSHPort }

// Images lists what the world serves, in the order of Config.Images.
func (w *World) Images() []Image { return append([]Image{}, w.images...) }
