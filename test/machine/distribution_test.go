package machine

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/vm"
)

// building lets one distribution at a time be put together.
var building sync.Mutex

// otherMachines are the machines of distributions that differ from the rest. Those have their disk
// on virtio, and neither watchdog nor BMC, for which kernels for clouds have no drivers.
var otherMachines = map[string]struct {
	bus, disk                string // and what the kernel calls the disk
	rootPorts, watchdog, bmc bool
}{
	// Its kernel names a module for the driver of root ports, which is built in.
	"Debian 13":    {bus: "nvme", disk: "nvme0n1", rootPorts: true},
	"Debian 11":    {bus: "sata", disk: "sda", watchdog: true, bmc: true},
	"Ubuntu 22.04": {bus: "scsi", disk: "sda"},
}

// Other systems than this host's are taken over as they come, too, with disks on other buses. What
// the preflight found is printed.
func TestOtherDistributions(t *testing.T) {
	onDemand(t)
	t.Parallel()
	for _, d := range distributions {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			ctx := bounded(t, limit)
			building.Lock()
			system, err := d.get(ctx, built.base, func(line string) { t.Log(line) })
			building.Unlock()
			check(t, err)
			port := freePort(t)
			c := stock(t, vm.BIOS, port)
			disk, other := "vda", otherMachines[d.name]
			if other.bus != "" {
				c.Disks[0].Bus, disk = other.bus, other.disk
			}
			c.Disks[0].Path = overlay(t, c.Dir, system.disk)
			c.Kernel = &vm.Kernel{Image: system.kernel, Initrd: system.initrd, CommandLine: "root=/dev/" + disk + " rw console=ttyS0 panic=5"}
			c.RootPorts = other.rootPorts
			c.Watchdog, c.StopAtReset = other.watchdog, other.watchdog
			if other.bmc {
				c.BMC = startBMC(t)
			}
			m := boot(t, c)
			p := manage(t, initializer.TakeoverKexec, port, m, nil)
			report := awaitCarried(t, ctx, p, m)
			checkDisk(t, report, disk, c.Disks[0])
			if other.bmc {
				checkBMC(t, report.GetBmc())
			}
			_, kernel, _ := strings.Cut(m.Console(), "Linux version ")
			kernel, _, _ = strings.Cut(kernel, " ")
			t.Logf("%s, kernel %s: taken over", d.name, kernel)
			for _, entry := range history(t, ctx, p) {
				if entry.GetEvent() == string(fleet.EventTakeoverWarning) {
					t.Logf("warning: %s", entry.GetDetail())
				}
			}
			if other.watchdog {
				awaitWatchdog(t, ctx, m)
			}
		})
	}
}

// checkDisk compares what the agent in memory says of the only disk with what QEMU was told. The
// health of a disk is asked for in the words of its bus.
func checkDisk(t *testing.T, report *agentv1.HardwareReport, name string, disk vm.Disk) {
	t.Helper()
	disks := report.GetBlockDevices()
	if len(disks) != 1 {
		t.Fatalf("disks: %v", disks)
	}
	d := disks[0]
	if d.GetName() != name || d.GetSerial() != disk.Serial || d.GetSizeBytes() != diskSize || d.GetRemovable() {
		t.Errorf("disk: %v", d)
	}
	if tells := disk.Bus == "nvme" || disk.Bus == "sata"; tells && !d.GetHealth().GetPassed() {
		t.Errorf("a disk on %s says nothing of its health: %v", disk.Bus, d)
	}
	t.Logf("disk: %v", d)
}

// awaitWatchdog has the machine's processors stand still for longer than the watchdog of the agent
// in memory waits. The watchdog resets the machine, which is seen by its end.
func awaitWatchdog(t *testing.T, ctx context.Context, m *vm.Machine) {
	t.Helper()
	// The chipset's own, which resets nothing in QEMU 7.2, is the first of two.
	if strings.Count(m.Console(), "a hardware watchdog is on") != 2 {
		t.Fatal("the agent in memory has not switched both watchdogs on")
	}
	release, err := m.Hang()
	check(t, err)
	defer func() { _ = release() }()
	expired := time.NewTimer(90 * time.Second) // the agent's limit is 60 s
	defer expired.Stop()
	select {
	case <-expired.C:
	case <-ctx.Done():
	}
	select {
	case <-m.Ended():
		t.Fatal("the machine ended before its processors went on")
	default:
	}
	check(t, release())
	reset, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := m.Wait(reset); err != nil {
		t.Errorf("a machine whose processors stood still was not reset: %v", err)
	}
}
