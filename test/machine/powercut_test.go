package machine

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/vm"
)

var cuts = flag.Int("cuts", 20, "how often the power is cut while an image is written")

const (
	// smallDisk is the size of the disk that the power is cut from, smallSystem that of the systems on
	// it.
	smallDisk, smallSystem = 160 * mebibyte, 128 * mebibyte
	oldSystem, newSystem   = "the old system is whole", "the new system is whole"
	halfSystem             = "the new system is half"
)

// bootCode is a boot sector for a BIOS that reads one sector of its disk. If that begins with
// "whol" it prints one text on the serial port, and another one if not:
//
//	xor ax, ax; mov ds, ax; mov es, ax; mov ss, ax; mov sp, 0x7c00
//	mov ah, 0x42; mov si, packet; int 0x13       ; read a sector to 0x7e00
//	mov si, half; jc print
//	cmp dword [0x7e00], 'whol'; jne print
//	mov si, whole
//	print: lodsb; test al, al; jz end; mov dx, 0x3f8; out dx, al; jmp print
//	end:   hlt; jmp end
//	packet: 16, 0, one sector, to 0:0x7e00, its number in 8 bytes
const bootCode = "31c08ed88ec08ed0bc007cb442be337ccd13be6f7c720e66813e007e77686f6c7503be437cac84c07406baf803eeebf5f4ebfd" +
	"10000100007e0000"

// system is the content of a disk with a system that tells whether it is there as a whole: its last
// sector is looked at, and a good digest is all that it shares with any other.
func system(t *testing.T, whole, half string) []byte {
	t.Helper()
	code, err := hex.DecodeString(bootCode)
	check(t, err)
	disk := make([]byte, smallSystem)
	random := rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%-32s", whole))))
	_, _ = random.Read(disk[mebibyte:])
	sector := append(code, make([]byte, 8)...)
	binary.LittleEndian.PutUint64(sector[len(code):], smallSystem/512-1)
	sector = append(sector, fmt.Sprintf("%-41s\r\n\x00%s\r\n\x00", whole, half)...)
	copy(disk, sector)
	copy(disk[510:], "\x55\xaa")
	copy(disk[smallSystem-512:], "whole")
	return disk
}

// What bootCode was told of where its texts are.
func TestBootCode(t *testing.T) {
	t.Parallel()
	if at := strings.Index(string(system(t, oldSystem, halfSystem)[:512]), halfSystem); at != 0x6f {
		t.Errorf("the second text is at %#x", at)
	}
}

// The power is cut at random moments while an image is written. Then the disk boots the old system
// or nothing, and never the half of the new one. With power again, the machine comes up by other
// means (here a system on another disk), is taken over again, and ends installed.
func TestPowerCuts(t *testing.T) {
	onDemand(t)
	t.Parallel()
	ctx := bounded(t, limit)
	dir := shortDir(t)
	target := filepath.Join(dir, "target.raw")
	old := system(t, oldSystem, "the old system is half")
	check(t, os.WriteFile(target, old, 0o600))
	check(t, os.Truncate(target, smallDisk))
	image, digest, sluice := serveSystem(t, ctx, dir, system(t, newSystem, halfSystem))
	disk := vm.Disk{Path: target, Serial: "target"}
	if what := power(t, ctx, disk); what != oldSystem {
		t.Fatalf("before anything was written the disk boots: %s", what)
	}

	port, ssh := freePort(t), freePort(t)
	c := quick(t, vm.BIOS, "", port, image.port)
	c.Kernel.CommandLine = strings.Replace(c.Kernel.CommandLine, "/dev/vda3", "/dev/vdb3", 1)
	c.Disks = append([]vm.Disk{disk}, c.Disks...)
	c.Networks[0].ForwardFrom = []int{ssh}
	c.StopAtReset = true
	m := boot(t, c)
	awaitSSH(t, ctx, m)
	p := manageBehind(t, initializer.TakeoverKexec, port, ssh, vm.GatewayAddress, func(c *config.Config, p *config.Provider) {
		c.Policy.SilentAfter, c.Policy.InstallTimeout, c.Policy.BootTimeout = 10*time.Second, limit, limit
		c.Policy.InstallRetry = fleet.Backoff{Initial: time.Second}
		c.Policy.RecoveryStepTimeout = limit
		p.Install = &config.Install{
			URL: image.url(), Digest: digest, Compression: fleet.CompressionNone, Size: image.size,
			RootDisk: fleet.DiskSelector{Serial: "target", Erase: true},
		}
	})
	seen := map[string]int{}
	for cut := range *cuts {
		most := rand.Int64N(image.size)
		sluice.letPass(most)
		_, err := m.AwaitConsole(ctx, "an install was started", 0)
		check(t, err)
		sluice.await(t, ctx)
		select { // what has arrived is written meanwhile
		case <-time.After(rand.N(time.Second)):
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		}
		m.Kill()
		what := power(t, ctx, disk)
		seen[what]++
		if what != oldSystem && what != "nothing" {
			t.Fatalf("after cut %d, with %d bytes of the image, the disk boots: %s", cut+1, most, what)
		}
		t.Logf("after cut %d, with %d of %d bytes, the disk boots: %s", cut+1, most, image.size, what)
		m = boot(t, c)
	}
	sluice.letPass(image.size)
	check(t, m.Wait(ctx))
	if what := power(t, ctx, disk); what != newSystem {
		t.Errorf("at the end the disk boots: %s", what)
	}
	t.Logf("%d power cuts: %v; then installed", *cuts, seen)
	for _, entry := range history(t, ctx, p) {
		t.Logf("%s %s: %s", entry.GetAt().AsTime().Format(time.TimeOnly), entry.GetEvent(), entry.GetDetail())
	}
}

// sluice lets the first bytes of a file pass, and holds up whoever wants more.
type sluice struct {
	mu      sync.Mutex
	most    int64
	reached chan struct{} // closed when somebody has had all that may pass
	raised  chan struct{} // closed when more may pass
}

// letPass has so many bytes of the file pass from now on.
func (s *sluice) letPass(most int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.raised != nil {
		close(s.raised)
	}
	s.most, s.reached, s.raised = most, make(chan struct{}), make(chan struct{})
}

// await returns when somebody is held up.
func (s *sluice) await(t *testing.T, ctx context.Context) {
	t.Helper()
	s.mu.Lock()
	reached := s.reached
	s.mu.Unlock()
	select {
	case <-reached:
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
	}
}

// pass returns how many bytes behind the offset may pass. It waits until there are some.
func (s *sluice) pass(ctx context.Context, offset int64) (int64, error) {
	for {
		s.mu.Lock()
		room, raised := s.most-offset, s.raised
		if room <= 0 {
			select {
			case <-s.reached:
			default:
				close(s.reached)
			}
		}
		s.mu.Unlock()
		if room > 0 {
			return room, nil
		}
		select {
		case <-raised:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// held is a file behind a sluice, as one request reads it. It has no other methods of the file,
// by which the kernel would send it past the sluice.
type held struct {
	file   *os.File
	ctx    context.Context //nolint:containedctx // the request's
	sluice *sluice
	offset int64
}

func (h *held) Seek(offset int64, whence int) (int64, error) {
	at, err := h.file.Seek(offset, whence)
	h.offset = at
	return at, err
}

func (h *held) Read(p []byte) (int, error) {
	size, err := h.file.Stat()
	if err != nil {
		return 0, err
	}
	if h.offset < size.Size() {
		room, err := h.sluice.pass(h.ctx, h.offset)
		if err != nil {
			return 0, err
		}
		p = p[:min(int64(len(p)), room)]
	}
	n, err := h.file.Read(p)
	h.offset += int64(n)
	return n, err
}

// power boots a machine from the disk alone and says what it finds there.
func power(t *testing.T, ctx context.Context, disk vm.Disk) string {
	t.Helper()
	m := boot(t, vm.Config{Name: "alone", Dir: shortDir(t), Firmware: vm.BIOS, Memory: 64, Disks: []vm.Disk{disk}, StopAtReset: true})
	defer m.Kill()
	said := func() string {
		for _, what := range []string{oldSystem, newSystem, halfSystem} {
			if strings.Contains(m.Console(), what) {
				return what
			}
		}
		return ""
	}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		if what := said(); what != "" {
			return what
		}
		select {
		case <-m.Ended():
			if said() == "" {
				return "nothing"
			}
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatal(errors.New("the machine neither boots nor ends"))
		}
	}
}

// serveSystem serves an image to machines, through a sluice that is shut.
func serveSystem(t *testing.T, ctx context.Context, dir string, content []byte) (offer, string, *sluice) {
	t.Helper()
	o, gate := offer{path: filepath.Join(dir, "new.raw"), size: int64(len(content))}, new(sluice)
	gate.letPass(0)
	check(t, os.WriteFile(o.path, content, 0o600))
	sum, err := digest(o.path)
	check(t, err)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	check(t, err)
	o.port = listener.Addr().(*net.TCPAddr).Port
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file, err := os.Open(o.path)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer func() { _ = file.Close() }()
		http.ServeContent(w, r, filepath.Base(o.path), time.Time{}, &held{file: file, ctx: r.Context(), sluice: gate})
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return o, sum, gate
}
