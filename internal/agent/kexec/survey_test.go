package kexec

import (
	"bytes"
	"encoding/binary"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

const release = "6.1.0-1-amd64"

// image returns the beginning of an x86 kernel image of that version, which has the magic of arm64,
// too.
func image(version string) []byte {
	data := make([]byte, 4096)
	copy(data[56:], "ARM\x64")
	copy(data[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(data[0x20e:], 0x400)
	copy(data[0x600:], version)
	return data
}

// host is a machine of files that can be taken over: a disk behind virtio, a network card that
// needs firmware.
func host(t *testing.T) (root string, put func(name, text string)) {
	t.Helper()
	root = t.TempDir()
	put = func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(root, target), path); err != nil {
			t.Fatal(err)
		}
	}
	put("proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz-"+release+" root=/dev/vda1 ro quiet console=tty0 console=ttyS0,115200n8 net.ifnames=0 hugepages=100000 nvme_core.io_timeout=255\n")
	put("proc/meminfo", "MemTotal:        2000000 kB\nMemAvailable:    1500000 kB\n")
	put("proc/modules", "virtio_blk 1 0 - Live 0x0\nnetcard 1 0 - Live 0x0\nipmi_si 1 0 - Live 0x0\nsnd 1 0 - Live 0x0\n")
	put("proc/self/uid_map", "         0          0 4294967295\n")
	put("proc/self/exe", "agent")
	put("proc/sys/kernel/osrelease", release+"\n")
	put("proc/sys/kernel/version", "#1 SMP Debian 6.1.2-1\n")
	put("proc/sys/kernel/kexec_load_disabled", "0\n")
	put("sys/kernel/kexec_loaded", "0\n")
	put("sys/class/watchdog/watchdog0/device", "of the chipset")
	put("boot/vmlinuz-"+release, string(image(release+" (builder@debian) #1 SMP Debian 6.1.2-1")))

	modules := "lib/modules/" + release + "/"
	put(modules+"modules.dep", `kernel/drivers/block/virtio_blk.ko: kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio_ring.ko:
kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio-pci.ko: kernel/drivers/virtio/virtio.ko
kernel/drivers/net/netcard.ko:
kernel/drivers/net/phy.ko:
kernel/drivers/phy/serdes.ko:
kernel/drivers/clk/clk-card.ko:
kernel/drivers/char/ipmi/ipmi_msghandler.ko:
kernel/drivers/char/ipmi/ipmi_si.ko: kernel/drivers/char/ipmi/ipmi_msghandler.ko
kernel/drivers/char/ipmi/ipmi_devintf.ko: kernel/drivers/char/ipmi/ipmi_msghandler.ko
kernel/drivers/sound/snd.ko:
kernel/drivers/net/bonding/bonding.ko: kernel/net/tls/tls.ko
kernel/net/tls/tls.ko:
kernel/crypto/sum_generic.ko:
`)
	put(modules+"modules.builtin", "kernel/net/8021q/8021q.ko\n")
	put(modules+"modules.softdep", "# comment\nsoftdep netcard pre: phy crypto-sum missing post: snd\n")
	put(modules+"modules.alias", "# comment\nalias crypto-sum sum_generic\nalias crypto-sum sum_of_this_processor\nalias pci:v*d*sv* snd\n")
	for _, path := range []string{
		"block/virtio_blk", "virtio/virtio_ring", "virtio/virtio", "virtio/virtio-pci", "net/netcard", "net/phy", "char/ipmi/ipmi_si", "char/ipmi/ipmi_msghandler", "char/ipmi/ipmi_devintf",
		"net/bonding/bonding", "phy/serdes", "clk/clk-card",
	} {
		put(modules+"kernel/drivers/"+path+".ko", "\x7fELF")
	}
	put(modules+"kernel/net/tls/tls.ko", "\x7fELF")
	put(modules+"kernel/crypto/sum_generic.ko", "\x7fELF")
	put(modules+"kernel/drivers/net/netcard.ko", "\x7fELF\x00license=GPL\x00firmware=net/card.bin\x00firmware=net/other.bin\x00firmware=../../etc/shadow\x00")
	put("lib/firmware/net/card.bin", "firmware")

	disk, card := "sys/devices/pci0/0000:00:04.0/virtio1", "sys/devices/pci0/0000:00:03.0"
	put(disk+"/block/vda/size", "8")
	put(card+"/net/eth0/mtu", "1500")
	link(disk, "sys/devices/pci0/0000:00:04.0/virtio1/block/vda/device")
	link(disk+"/block/vda", "sys/class/block/vda")
	link("sys/module/virtio_blk", disk+"/driver/module")
	link("sys/module/virtio_pci", "sys/devices/pci0/0000:00:04.0/driver/module")
	// A root port's driver is always built in: no list of modules has it.
	link("sys/module/pcieportdrv", "sys/devices/pci0/driver/module")
	link(card, card+"/net/eth0/device")
	link(card+"/net/eth0", "sys/class/net/eth0")
	link("sys/module/netcard", card+"/driver/module")
	// As a device tree may have it: a port's signals come from one device, whose clock is another's,
	// and each of the two supplies the other.
	put("sys/firmware/devicetree/base/compatible", "board")
	link("sys/devices/virtual/devlink/serdes--clock", "sys/devices/soc/clock/supplier:platform:serdes")
	link("sys/devices/soc/serdes", "sys/devices/virtual/devlink/serdes--clock/supplier")
	serdes, clock := "sys/devices/soc/serdes", "sys/devices/soc/clock"
	link("sys/devices/virtual/devlink/serdes--card", card+"/supplier:platform:serdes")
	link(serdes, "sys/devices/virtual/devlink/serdes--card/supplier")
	link("sys/devices/virtual/devlink/clock--serdes", serdes+"/supplier:platform:clock")
	link(clock, "sys/devices/virtual/devlink/clock--serdes/supplier")
	link("sys/module/serdes", serdes+"/driver/module")
	link("sys/module/clk_card", clock+"/driver/module")
	return root, put
}

func TestSurvey(t *testing.T) {
	t.Parallel()
	root, _ := host(t)
	p, err := Survey(root, []string{"bond", "vlan"})
	if err != nil {
		t.Fatal(err)
	}
	if p.Release != release || p.Image != "/boot/vmlinuz-"+release {
		t.Errorf("kernel %q, image %q", p.Release, p.Image)
	}
	var names []string
	for _, m := range p.Modules {
		names = append(names, m.Name)
	}
	if got := slices.Sorted(slices.Values(names)); !slices.Equal(got, []string{
		"bonding", "clk_card", "ipmi_devintf", "ipmi_msghandler", "ipmi_si", "netcard", "phy", "serdes", "sum_generic", "tls", "virtio", "virtio_blk", "virtio_pci", "virtio_ring",
	}) {
		t.Errorf("modules: %v", got)
	}
	for _, order := range [][2]string{
		{"virtio_ring", "virtio"}, {"virtio", "virtio_blk"}, {"virtio", "virtio_pci"}, {"tls", "bonding"}, {"phy", "netcard"}, {"sum_generic", "netcard"}, {"ipmi_msghandler", "ipmi_devintf"},
	} {
		if slices.Index(names, order[0]) > slices.Index(names, order[1]) {
			t.Errorf("%s is loaded after %s, which needs it: %v", order[0], order[1], names)
		}
	}
	if !slices.Equal(p.Firmware, []string{"net/card.bin"}) {
		t.Errorf("firmware: %v", p.Firmware)
	}
	if want := "console=tty0 console=ttyS0,115200n8 nvme_core.io_timeout=255 rdinit=/init panic=10 oops=panic " +
		"softlockup_panic=1 nmi_watchdog=panic watchdog_thresh=30 " +
		"sysctl.kernel.panic_on_rcu_stall=1 sysctl.kernel.max_rcu_stall_to_panic=10 printk.devkmsg=on"; p.CommandLine != want {
		t.Errorf("the kernel is told %q, not %q", p.CommandLine, want)
	}
	if len(p.Warnings) > 0 {
		t.Errorf("warnings: %v", p.Warnings)
	}
}

// An image of arm64 does not tell its version, so only one that is named by the release is taken,
// and only one that kexec starts.
func TestImageOfARM64(t *testing.T) {
	t.Parallel()
	start := func(at int, magic string) string {
		data := make([]byte, 4096)
		copy(data[at:], magic)
		return string(data)
	}
	plain, packed := start(56, "ARM\x64"), start(0, "\x1f\x8b\x08")
	for name, test := range map[string]struct {
		files     map[string]string
		want, err string
	}{
		"plain":             {map[string]string{"boot/vmlinuz-" + release: plain}, "/boot/vmlinuz-" + release, ""},
		"gzip":              {map[string]string{"boot/vmlinuz-" + release: packed}, "", "is compressed, and kexec starts only one that is not on arm64: unpack it as /boot/Image-" + release},
		"packs itself":      {map[string]string{"boot/vmlinuz-" + release: start(0, "MZ\x00\x00zimg")}, "", "is compressed"},
		"unpacked beside":   {map[string]string{"boot/vmlinuz-" + release: packed, "boot/Image-" + release: plain}, "/boot/Image-" + release, ""},
		"something else":    {map[string]string{"boot/vmlinuz-" + release: start(0x202, "HdrS")}, "", "found neither"},
		"without a release": {map[string]string{"boot/vmlinuz": plain, "boot/vmlinuz-linux": plain}, "", "found neither"},
	} {
		root, put := host(t)
		if err := os.RemoveAll(root + "/boot"); err != nil {
			t.Fatal(err)
		}
		for path, text := range test.files {
			put(path, text)
		}
		p := &Plan{root: root}
		err := p.kernel("arm64")
		if p.Image != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %q, %v", name, p.Image, err)
		}
	}
}

// Whatever speaks against a jump is found, and said in words that name it.
func TestSurveyRefuses(t *testing.T) {
	t.Parallel()
	modules := "lib/modules/" + release + "/"
	for name, test := range map[string]struct {
		change func(root string, put func(name, text string))
		want   string
	}{
		"container":      {func(_ string, put func(string, string)) { put("run/systemd/container", "lxc\n") }, "container (lxc)"},
		"user namespace": {func(_ string, put func(string, string)) { put("proc/self/uid_map", "0 100000 65536\n") }, "user namespace"},
		"disabled": {
			func(_ string, put func(string, string)) { put("proc/sys/kernel/kexec_load_disabled", "1\n") }, "kernel.kexec_load_disabled is 1",
		},
		"built without": {func(root string, _ func(string, string)) { _ = os.Remove(root + "/sys/kernel/kexec_loaded") }, "without kexec"},
		"Xen": {func(_ string, put func(string, string)) {
			put("sys/hypervisor/type", "xen\n")
			put("sys/hypervisor/guest_type", "PV\n")
		}, "Xen"},
		"upgraded kernel": {func(_ string, put func(string, string)) {
			put("boot/vmlinuz-"+release, string(image(release+" (builder@debian) #1 SMP Debian 6.1.9-1")))
		}, "restart the machine into the newer one"},
		"no image": {func(root string, _ func(string, string)) { _ = os.RemoveAll(root + "/boot") }, "image of the running kernel was found neither"},
		"no modules": {
			func(root string, _ func(string, string)) { _ = os.RemoveAll(filepath.Join(root, modules)) }, "modules of the running kernel (" + release,
		},
		"no driver": {
			func(root string, _ func(string, string)) {
				_ = os.Remove(filepath.Join(root, modules, "kernel/drivers/net/netcard.ko"))
			},
			"the driver netcard of eth0: its file is not there",
		},
		"a driver from elsewhere": {
			func(root string, put func(string, string)) {
				dep, _ := os.ReadFile(filepath.Join(root, modules, "modules.dep"))
				put(modules+"modules.dep", strings.ReplaceAll(string(dep), "kernel/drivers/net/netcard.ko:\n", ""))
			},
			"the driver netcard of eth0: the kernel's list of modules does not have it",
		},
		"little memory": {func(_ string, put func(string, string)) {
			put("proc/meminfo", "MemTotal: 180000 kB\nMemAvailable: 100000 kB\n")
		}, "175 MiB of memory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, put := host(t)
			test.change(root, put)
			_, err := Survey(root, nil)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want something with %q", err, test.want)
			}
		})
	}
}

// Modules and firmware need as much memory as they have when they are unpacked.
func TestSurveyCountsWhatIsUnpacked(t *testing.T) {
	t.Parallel()
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	packed := string(encoder.EncodeAll(make([]byte, 24*mebibyte), nil))
	modules := "lib/modules/" + release + "/"
	for name, change := range map[string]func(root string, put func(name, text string)){
		"firmware": func(root string, put func(string, string)) {
			_ = os.Remove(root + "/lib/firmware/net/card.bin")
			put("lib/firmware/net/card.bin.zst", packed)
		},
		"module": func(root string, put func(string, string)) {
			dep, _ := os.ReadFile(filepath.Join(root, modules, "modules.dep"))
			put(modules+"modules.dep", strings.ReplaceAll(string(dep), "phy.ko", "phy.ko.zst"))
			put(modules+"kernel/drivers/net/phy.ko.zst", packed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, put := host(t)
			change(root, put)
			for _, memory := range []struct{ total, free, want string }{
				{"250000", "75000", ""},
				{"250000", "70000", "68 MiB of memory are free, and at least 72 MiB are needed"},
				{"240000", "75000", "has 234 MiB of memory, and at least 240 MiB are needed"},
			} {
				put("proc/meminfo", "MemTotal: "+memory.total+" kB\nMemAvailable: "+memory.free+" kB\n")
				_, err := Survey(root, nil)
				if memory.want == "" && err != nil || memory.want != "" && (err == nil || !strings.Contains(err.Error(), memory.want)) {
					t.Errorf("of %s kB, %s are free: %v", memory.total, memory.free, err)
				}
			}
		})
	}
}

// All that speaks against it is told at once.
func TestSurveyTellsEverything(t *testing.T) {
	t.Parallel()
	root, put := host(t)
	put("proc/sys/kernel/kexec_load_disabled", "1\n")
	put("proc/meminfo", "MemTotal: 180000 kB\nMemAvailable: 100000 kB\n")
	_, err := Survey(root, nil)
	if err == nil || !strings.Contains(err.Error(), "kexec_load_disabled") || !strings.Contains(err.Error(), "MiB of memory") {
		t.Errorf("got %v", err)
	}
}

func TestSurveyWarns(t *testing.T) {
	t.Parallel()
	root, put := host(t)
	put("sys/kernel/kexec_loaded", "1\n")
	put("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
	if err := os.Remove(root + "/lib/firmware/net/card.bin"); err != nil {
		t.Fatal(err)
	}
	// A watchdog without a device is the kernel's own.
	if err := os.Rename(root+"/sys/class/watchdog/watchdog0/device", root+"/sys/class/watchdog/watchdog0/identity"); err != nil {
		t.Fatal(err)
	}
	p, err := Survey(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(p.Warnings, "\n")
	for _, want := range []string{"already", "locked down (integrity)", "netcard names firmware (net/card.bin", "no hardware watchdog is here"} {
		if !strings.Contains(all, want) {
			t.Errorf("no warning of %q: %s", want, all)
		}
	}
	put("proc/modules", "ipmi_watchdog 1 0 - Live 0x0\n")
	if p, err = Survey(root, nil); err != nil || strings.Contains(strings.Join(p.Warnings, "\n"), "no hardware watchdog") {
		t.Errorf("with the watchdog of IPMI: %v, %v", p, err)
	}
}

// A compressed module is carried as the kernel takes it, and so is firmware.
func TestBuild(t *testing.T) {
	t.Parallel()
	root, _ := host(t)
	modules := filepath.Join(root, "lib/modules", release)
	for _, path := range []string{"lib/firmware/net/card.bin", "lib/modules/" + release + "/kernel/drivers/net/phy.ko"} {
		if out, err := exec.CommandContext(t.Context(), "zstd", "-q", "--rm", filepath.Join(root, path)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	dep, err := os.ReadFile(filepath.Join(modules, "modules.dep"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(modules, "modules.dep"), bytes.ReplaceAll(dep, []byte("phy.ko"), []byte("phy.ko.zst")), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Survey(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := p.Build(&archive, []File{{Path: "/deep/down/state", Mode: 0o600, Data: []byte("secret")}}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	unpack := exec.CommandContext(t.Context(), "cpio", "-idm", "--quiet", "--no-absolute-filenames")
	unpack.Dir, unpack.Stdin = dir, &archive
	// Others than root may not make the console.
	if out, err := unpack.CombinedOutput(); err != nil && os.Getuid() == 0 {
		t.Fatalf("%v: %s", err, out)
	}
	own, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"init": string(own), "lib/firmware/net/card.bin": "firmware", "lib/modules/phy.ko": "\x7fELF", "deep/down/state": "secret",
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != want[name] {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "init")); err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("init: %v, %v", info, err)
	}
	// Go's runtime needs it where there is no console.
	if info, err := os.Stat(filepath.Join(dir, "dev/null")); os.Getuid() == 0 && (err != nil || info.Mode()&os.ModeCharDevice == 0) {
		t.Errorf("/dev/null: %v, %v", info, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "deep/down/state")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("state: %v, %v", info, err)
	}
}

// FuzzFirmware: a module's information is foreign bytes.
func FuzzFirmware(f *testing.F) {
	f.Add([]byte("\x00firmware=a/b.bin\x00"))
	f.Add([]byte("\x00firmware="))
	f.Fuzz(func(t *testing.T, module []byte) {
		for _, name := range firmwareOf(module) {
			if !filepath.IsLocal(name) {
				t.Errorf("%q leads out of the directory", name)
			}
		}
	})
}
