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
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/vm"
)

var cuts = flag.Int("cuts", 3, "how often the power is cut while an image is written")

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
	image, digest := serveSystem(t, ctx, dir, system(t, newSystem, halfSystem))
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
		if !awaitWriting(t, ctx, p, m, rand.Int64N(image.size)) {
			t.Logf("cut %d came too late: the image was written", cut+1)
			break
		}
		m.Kill()
		what := power(t, ctx, disk)
		seen[what]++
		if what != oldSystem && what != "nothing" {
			t.Fatalf("after cut %d the disk boots: %s", cut+1, what)
		}
		t.Logf("after cut %d the disk boots: %s", cut+1, what)
		m = boot(t, c)
	}
	check(t, m.Wait(ctx))
	if what := power(t, ctx, disk); what != newSystem {
		t.Errorf("at the end the disk boots: %s", what)
	}
	t.Logf("%d power cuts: %v; then installed", *cuts, seen)
	for _, entry := range history(t, ctx, p) {
		t.Logf("%s %s: %s", entry.GetAt().AsTime().Format(time.TimeOnly), entry.GetEvent(), entry.GetDetail())
	}
}

// awaitWriting returns when an attempt has written as much as that since the machine was started,
// or false when the machine has ended by itself, because it was installed.
func awaitWriting(t *testing.T, ctx context.Context, p *plane, m *vm.Machine, bytes int64) bool {
	t.Helper()
	_, err := m.AwaitConsole(ctx, "an install was started", 0)
	check(t, err)
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		machine, err := p.machine(ctx)
		check(t, err)
		progress := machine.GetInstallProgress()
		if progress.GetBytesDone() >= bytes {
			return true
		}
		select {
		case <-m.Ended():
			return false
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		}
	}
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

// serveSystem serves an image to machines.
func serveSystem(t *testing.T, ctx context.Context, dir string, content []byte) (offer, string) {
	t.Helper()
	o := offer{path: filepath.Join(dir, "new.raw"), size: int64(len(content))}
	check(t, os.WriteFile(o.path, content, 0o600))
	sum, err := digest(o.path)
	check(t, err)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	check(t, err)
	o.port = listener.Addr().(*net.TCPAddr).Port
	server := &http.Server{Handler: http.FileServer(http.Dir(dir)), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return o, sum
}
