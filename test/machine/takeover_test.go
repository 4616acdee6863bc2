package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/vm"
)

// limit is how long the way of one machine may take when the host is busy with other tests. The
// figure to look at is what is printed.
const limit = 40 * time.Minute

// A stock Debian with OpenSSH is taken over by kexec, reports its hardware, gets an image by digest
// on its only disk, boots it by itself, and is seen to be up. Under Secure Boot each kernel on the
// way is one that Debian has signed, and keeps unsigned code out (lockdown).
func TestFromStockToInstalled(t *testing.T) {
	onDemand(t)
	for name, firmware := range map[string]vm.Firmware{"bios": vm.BIOS, "uefi": vm.UEFI, "secure boot": vm.UEFI} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := offered()
			check(t, err)
			ctx := bounded(t, limit)
			port := freePort(t)
			started := time.Now()
			c := stock(t, firmware, port, o.port)
			c.SecureBoot = name == "secure boot"
			m := boot(t, c)
			awaitSSH(t, ctx, m)
			t.Logf("%-38s %6.1f s, processors %6.1f s", "stock system lets in", time.Since(started).Seconds(), m.ProcessorTime().Seconds())
			booted, spent := time.Now(), m.ProcessorTime()
			p := manage(t, initializer.TakeoverKexec, port, m, func(c *config.Config, p *config.Provider) {
				c.Policy.InstallTimeout, c.Policy.BootTimeout = limit, limit
				p.Install = o.install()
			})
			cost := awaitInstalled(t, ctx, p, m)
			phases(t, ctx, p, booted, spent, cost)
			t.Logf("%-38s %6.1f s, processors %6.1f s", "in all", time.Since(started).Seconds(), m.ProcessorTime().Seconds())
			checkHardware(t, ctx, p, c)
			host := login(t, ctx, m)
			if !strings.Contains(shell(t, ctx, host, "systemctl is-active ironherd-firstboot.service || true"), "inactive") {
				t.Error("the unit that says that the system is up has not ended")
			}
			if got := strings.TrimSpace(shell(t, ctx, host, "findmnt --noheadings --output LABEL /boot/efi || systemctl status boot-efi.mount")); got != "ESP" {
				t.Errorf("the EFI system partition is not mounted: %s", got)
			}
			if firmware == vm.UEFI {
				checkBootEntry(t, ctx, host)
			}
			lockdown := shell(t, ctx, host, "cat /sys/kernel/security/lockdown")
			if strings.Contains(lockdown, "[none]") == c.SecureBoot {
				t.Errorf("the kernel that was installed keeps unsigned code out as %q says", lockdown)
			}
		})
	}
}

// checkBootEntry looks at what the firmware has made of the entry that the agent has written: it is
// the first one, and the one that was booted.
func checkBootEntry(t *testing.T, ctx context.Context, host *remote.Host) {
	t.Helper()
	const variables = `cd /sys/firmware/efi/efivars; v=8be4df61-93ca-11d2-aa0d-00e098032b8c
hex() { od -An -j4 -N2 -tx2 "$1-$v" | tr -d ' ' | tr a-f A-F; }
first=$(hex BootOrder); echo "$first $(hex BootCurrent) $(tr -d '\000' <"Boot$first-$v")"`
	got := shell(t, ctx, host, variables)
	if words := strings.Fields(got); len(words) < 2 || words[0] != words[1] || !strings.Contains(got, "Ironherd installed system") {
		t.Errorf("the first boot entry, the one that was booted, and what the first one is: %q", got)
	}
}

// The same with a quick machine, in half the time: the one that every run of all tests has. It is
// installed by UEFI, and then a BIOS boots the same disk.
func TestFromQuickToInstalled(t *testing.T) {
	t.Parallel()
	o, err := offered()
	check(t, err)
	ctx := bounded(t, limit)
	p, m, c := installedFromQuick(t, ctx, o, vm.UEFI, nil)
	checkHardware(t, ctx, p, c)
	checkBootEntry(t, ctx, login(t, ctx, m))
	m.Kill()
	c.Firmware = vm.BIOS
	started := time.Now()
	m = boot(t, c)
	if got := shell(t, ctx, login(t, ctx, m), "cat /proc/1/comm; ls /sys/firmware"); !strings.HasPrefix(got, "systemd\n") || strings.Contains(got, "efi") {
		t.Errorf("what runs, and by which firmware: %q", got)
	}
	t.Logf("%-38s %6.1f s, processors %6.1f s", "by BIOS, from power on to a login", time.Since(started).Seconds(), m.ProcessorTime().Seconds())
}

// The agent starts what it has installed by kexec: the firmware does not run in between, so that a
// machine whose next restart would boot another kernel is in the installed system all the same. One
// that runs in the old system jumps into memory for the install first.
func TestStartedByKexec(t *testing.T) {
	onDemand(t)
	for firmware, way := range map[vm.Firmware]initializer.Takeover{vm.BIOS: initializer.TakeoverInPlace, vm.UEFI: initializer.TakeoverKexec} {
		t.Run(fmt.Sprintf("%s, from %s", firmware, way), func(t *testing.T) {
			t.Parallel()
			o, err := offered()
			check(t, err)
			ctx := bounded(t, limit)
			port := freePort(t)
			m := boot(t, quick(t, firmware, "", port, o.port))
			awaitSSH(t, ctx, m)
			p := manage(t, way, port, m, func(c *config.Config, p *config.Provider) {
				patient(c)
				if way == initializer.TakeoverKexec {
					p.Install = o.install()
					p.Install.Kexec = true
				}
			})
			if way == initializer.TakeoverInPlace {
				installFromPlace(t, ctx, p, m, o)
			}
			written := time.Now()
			awaitInstalled(t, ctx, p, m)
			for _, entry := range history(t, ctx, p) {
				if entry.GetEvent() == string(fleet.EventDiskWritten) {
					written = entry.GetAt().AsTime()
				}
			}
			t.Logf("%-38s %6.1f s", "from the disk written to seen up", time.Since(written).Seconds())
			host := login(t, ctx, m)
			// kexec_file_load gives itself as type 0xd (Documentation/arch/x86/boot.rst, type_of_loader).
			if got := strings.TrimSpace(shell(t, ctx, host, "cat /proc/sys/kernel/bootloader_type")); got != fmt.Sprint(0xd0) {
				t.Errorf("the boot loader of the installed system is of type %s, want that of kexec", got)
			}
			if got := shell(t, ctx, host, "cat /proc/1/comm"); strings.TrimSpace(got) != "systemd" {
				t.Errorf("the first process is %s: the machine is in the old system", got)
			}
		})
	}
}

// installFromPlace asks for an install on a machine whose agent runs in the old system.
func installFromPlace(t *testing.T, ctx context.Context, p *plane, m *vm.Machine, o offer) {
	t.Helper()
	var id string
	await(t, ctx, "the agent in the old system", func() error {
		machine, err := p.machine(ctx)
		if err == nil && machine.GetMachine().GetState() != string(fleet.StateAvailable) {
			err = fmt.Errorf("the machine is %s: %s", machine.GetMachine().GetState(), machine.GetMachine().GetReason())
		}
		id = machine.GetMachine().GetId()
		return err
	})
	if strings.Contains(m.Console(), "the agent is in memory") {
		t.Error("the agent is in memory before anything is to be installed")
	}
	_, err := p.client.InstallMachine(ctx, &fleetv1.InstallMachineRequest{
		Machine: id, Image: &agentv1.Image{Url: o.url(), Digest: o.digest, Compression: agentv1.Compression_COMPRESSION_ZSTD, Size: o.size},
		RootDisk: &agentv1.DiskSelector{Erase: true}, Kexec: true,
	})
	check(t, err)
}

// An installed system is seen to be up by SSH, under the host key that its install brought, or by
// its unit, and is watched from then on, over a restart, too. When its power is cut, it is shown as
// unreachable, and left alone.
func TestWatched(t *testing.T) {
	onDemand(t)
	for _, by := range []string{"ssh", "unit"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			ctx := bounded(t, limit)
			o, err := offered()
			check(t, err)
			p, m, _ := installedFromQuick(t, ctx, o, vm.BIOS, func(c *config.Config, p *config.Provider) {
				p.Install.SeenUp, p.Install.Watch = by, true
				c.Policy.ProbeInterval, c.Policy.WatchInterval, c.Policy.UnreachableAfter = 5*time.Second, 5*time.Second, 30*time.Second
				c.Prober.ConnectTimeout, c.Prober.Timeout = 10*time.Second, 30*time.Second
			})
			check(t, m.Reset(ctx))
			answered := func(words string) func() error {
				began := time.Now()
				return func() error {
					machine, err := p.machine(ctx)
					if err != nil {
						return err
					}
					for _, fact := range machine.GetFacts() {
						if fact.GetName() == "probe" && fact.GetAt().AsTime().After(began) && strings.Contains(fact.GetDetail(), words) {
							return nil
						}
					}
					return fmt.Errorf("facts: %v", machine.GetFacts())
				}
			}
			await(t, ctx, "the restart", answered("not answered"))
			await(t, ctx, "the system after its restart", answered(map[string]string{"ssh": "it answers SSH", "unit": "its unit calls"}[by]))
			m.Kill()
			await(t, ctx, "the loss of the machine", func() error {
				machine, err := p.machine(ctx)
				if err != nil {
					return err
				}
				if state := machine.GetMachine().GetState(); state != string(fleet.StateUnreachable) {
					return fmt.Errorf("the machine is %s: %s", state, machine.GetMachine().GetReason())
				}
				t.Logf("%s: %s", machine.GetMachine().GetState(), machine.GetMachine().GetReason())
				return nil
			})
		})
	}
}

// installedFromQuick brings a quick machine to installed and seen up, and returns its control
// plane, the machine, and how it was switched on. What boots by itself is the disk: the machine is
// switched on again without the kernel that it was started with.
func installedFromQuick(
	t *testing.T, ctx context.Context, o offer, firmware vm.Firmware, change func(*config.Config, *config.Provider),
) (*plane, *vm.Machine, vm.Config) {
	t.Helper()
	port := freePort(t)
	started := time.Now()
	c := quick(t, firmware, "", port, o.port)
	c.StopAtReset = true
	c.Clock = time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC) // the battery is empty
	c.Networks[0].ForwardFrom = []int{freePort(t)}        // the same when it is switched on again
	m := boot(t, c)
	awaitSSH(t, ctx, m)
	t.Logf("%-38s %6.1f s, processors %6.1f s", "stock system lets in", time.Since(started).Seconds(), m.ProcessorTime().Seconds())
	booted, spent := time.Now(), m.ProcessorTime()
	p := manage(t, initializer.TakeoverKexec, port, m, func(c *config.Config, p *config.Provider) {
		patient(c)
		p.Install = o.install()
		if change != nil {
			change(c, p)
		}
	})
	cost := map[string]time.Duration{}
	await(t, ctx, "end of the agent in memory", func() error {
		select {
		case <-m.Ended():
			return nil
		default:
			if err := observe(ctx, p, m, cost); err != nil {
				return err
			}
			return errors.New("the machine was not restarted")
		}
	})
	written := time.Now()
	if !slices.ContainsFunc(history(t, ctx, p), func(e *fleetv1.HistoryEntry) bool {
		return e.GetEvent() == string(fleet.EventTakeoverWarning) && strings.HasPrefix(e.GetDetail(), "the clock of this host says 2010-01-01 ")
	}) {
		t.Error("nobody is told that the clock of the machine is wrong")
	}
	if !strings.Contains(m.Console(), "the clock was set") {
		t.Error("the agent in memory has not set its clock")
	}
	c.StopAtReset, c.Kernel = false, nil
	m = boot(t, c)
	awaitInstalled(t, ctx, p, m)
	phases(t, ctx, p, booted, spent, cost)
	t.Logf("%-38s %6.1f s, processors %6.1f s", "of that, from power on to seen up", time.Since(written).Seconds(), m.ProcessorTime().Seconds())
	t.Logf("%-38s %6.1f s", "in all", time.Since(started).Seconds())
	return p, m, c
}

// patient has nothing given up because this host is busy: what is late here is not lost.
func patient(c *config.Config) {
	c.Initializer.WorkTimeout, c.Initializer.ContactLimit = limit, limit
	c.Policy.NeverSpokeAfter, c.Policy.SilentAfter, c.Policy.InstallTimeout, c.Policy.BootTimeout = limit, limit, limit, limit
}

// checkHardware compares the report of the agent in memory with what QEMU was told.
func checkHardware(t *testing.T, ctx context.Context, p *plane, c vm.Config) {
	t.Helper()
	machine, err := p.machine(ctx)
	check(t, err)
	h, s := machine.GetHardware(), machine.GetHardware().GetSystem()
	if s.GetVendor() != "Ironherd" || s.GetProduct() != "Test machine" || s.GetSerial() != "SN-0001" ||
		!strings.EqualFold(s.GetUuid(), "11111111-2222-4333-8444-555555555555") || s.GetEfi() != (c.Firmware == vm.UEFI) ||
		(s.GetSecureBoot() == agentv1.SecureBoot_SECURE_BOOT_ENABLED) != c.SecureBoot {
		t.Errorf("system: %v", s)
	}
	threads := int32(0)
	for _, cpu := range h.GetCpus() {
		threads += cpu.GetThreads()
	}
	if modules := h.GetMemory().GetModules(); threads != 2 || len(modules) != 1 || modules[0].GetSizeBytes() != 1024*mebibyte ||
		h.GetMemory().GetInstalledBytes() != 1024*mebibyte {
		t.Errorf("processors: %v, memory: %v", h.GetCpus(), h.GetMemory())
	}
	disks := h.GetBlockDevices()
	if len(disks) != 1 || disks[0].GetSerial() != "only-disk" || disks[0].GetSizeBytes() != diskSize {
		t.Errorf("disks: %v", disks)
	}
	cards := h.GetNetworkInterfaces()
	if len(cards) != 1 || cards[0].GetMac() != "52:54:00:12:34:56" || !cards[0].GetLink() ||
		!slices.ContainsFunc(cards[0].GetAddresses(), func(a string) bool { return strings.HasPrefix(a, "10.0.2.15/") }) {
		t.Errorf("network interfaces: %v", cards)
	}
}

// awaitInstalled returns when the one machine is installed, and how much processor time it had used
// when each event was first seen in history.
func awaitInstalled(t *testing.T, ctx context.Context, p *plane, m *vm.Machine) map[string]time.Duration {
	t.Helper()
	cost := map[string]time.Duration{}
	await(t, ctx, "install", func() error {
		if err := observe(ctx, p, m, cost); err != nil {
			return err
		}
		machine, err := p.machine(ctx)
		if err != nil {
			return err
		}
		if machine.GetMachine().GetState() != string(fleet.StateInstalled) {
			return fmt.Errorf("the machine is %s: %s", machine.GetMachine().GetState(), machine.GetMachine().GetReason())
		}
		return nil
	})
	return cost
}

// observe notes how much processor time the machine had used when each event was first seen in
// history.
func observe(ctx context.Context, p *plane, m *vm.Machine, cost map[string]time.Duration) error {
	machine, err := p.machine(ctx)
	if err != nil {
		return err
	}
	list, err := p.client.ListHistory(ctx, &fleetv1.ListHistoryRequest{Machine: machine.GetMachine().GetId()})
	if err != nil {
		return err
	}
	for _, entry := range list.GetEntries() {
		if _, ok := cost[entry.GetEvent()]; !ok {
			cost[entry.GetEvent()] = m.ProcessorTime()
		}
	}
	return nil
}

// history returns what has happened to the one machine, the oldest first.
func history(t *testing.T, ctx context.Context, p *plane) []*fleetv1.HistoryEntry {
	t.Helper()
	machine, err := p.machine(ctx)
	check(t, err)
	list, err := p.client.ListHistory(ctx, &fleetv1.ListHistoryRequest{Machine: machine.GetMachine().GetId()})
	check(t, err)
	return list.GetEntries()
}

// phases prints how long each phase took since the last one, and how much processor time of the
// host it cost, since as much had been spent.
func phases(t *testing.T, ctx context.Context, p *plane, last time.Time, spent time.Duration, cost map[string]time.Duration) {
	t.Helper()
	at := map[string]time.Time{}
	for _, entry := range history(t, ctx, p) {
		event, when := entry.GetEvent(), entry.GetAt().AsTime()
		if last, ok := at[event]; !ok || when.Before(last) {
			at[event] = when
		}
	}
	for _, phase := range []struct{ what, event string }{
		{"agent loaded", string(fleet.EventAgentStarted)},
		{"jump, first heartbeat", string(fleet.EventAgentSpoke)},
		{"hardware report", string(fleet.EventHardwareReported)},
		{"install handed out", string(fleet.EventInstallHandedOut)},
		{"image written", string(fleet.EventDiskWritten)},
		{"boots by itself, seen up", string(fleet.EventInstalled)},
	} {
		when, ok := at[phase.event]
		if !ok {
			t.Errorf("history has no %q", phase.event)
			continue
		}
		if used, ok := cost[phase.event]; ok {
			t.Logf("%-38s %6.1f s, processors %6.1f s", phase.what, when.Sub(last).Seconds(), (used - spent).Seconds())
			spent = used
		} else {
			t.Logf("%-38s %6.1f s", phase.what, when.Sub(last).Seconds())
		}
		last = when
	}
}
