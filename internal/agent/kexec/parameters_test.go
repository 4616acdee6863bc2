package kexec

import (
	"slices"
	"strings"
	"testing"
)

// The drivers that are carried have the parameters that they had: those of modprobe's
// configuration, and then those of the kernel's command line.
func TestParametersOfDrivers(t *testing.T) {
	t.Parallel()
	const own = "console=tty0 rdinit=/init "
	for name, test := range map[string]struct {
		line   string // of the running kernel
		files  map[string]string
		want   string
		warned string
	}{
		"the command line": {line: "netcard.sfp=1 virtio-blk.queue_depth=64 net.ifnames=0 snd.index=1", want: "netcard.sfp=1 virtio-blk.queue_depth=64"},
		"a file":           {files: map[string]string{"etc/modprobe.d/a.conf": "# options netcard no=1\noptions netcard sfp=1  port=2,2\noptions snd index=1\n"}, want: "netcard.sfp=1 netcard.port=2,2"},
		"a long line":      {files: map[string]string{"etc/modprobe.d/a.conf": "options virtio-blk \\\n\tqueue_depth=64"}, want: "virtio_blk.queue_depth=64"},
		"both": {
			line: "netcard.sfp=0", files: map[string]string{"run/modprobe.d/a.conf": "options netcard sfp=1\n"}, want: "netcard.sfp=1 netcard.sfp=0",
		},
		"a file that hides another": {
			files: map[string]string{
				"etc/modprobe.d/b.conf": "options netcard b=1\n", "usr/lib/modprobe.d/b.conf": "options netcard hidden=1\n", "lib/modprobe.d/a.conf": "options netcard a=1\n",
			},
			want: "netcard.a=1 netcard.b=1",
		},
		"no configuration":           {files: map[string]string{"etc/modprobe.d/a.conf.old": "options netcard sfp=1\n"}},
		"bonds":                      {line: "bonding.mode=4", files: map[string]string{"etc/modprobe.d/a.conf": "options bonding max_bonds=1\n"}},
		"quotes":                     {files: map[string]string{"etc/modprobe.d/a.conf": "options netcard a=\"b c\"\n"}, warned: "etc/modprobe.d/a.conf"},
		"quotes on the command line": {line: `netcard.dyndbg="file netcard.c +p" netcard.sfp=1`, want: "netcard.sfp=1", warned: `netcard.dyndbg="file netcard.c +p"`},
		"too many":                   {line: "netcard.sfp=1", files: map[string]string{"etc/modprobe.d/a.conf": "options netcard a=" + strings.Repeat("b", 2000)}, want: "netcard.sfp=1", warned: "too long"},
	} {
		root, put := host(t)
		for path, text := range test.files {
			put(path, text)
		}
		put("proc/cmdline", "root=/dev/vda1 "+test.line+" console=tty0\n")
		plan, err := Survey(root, []string{"bond"})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, word := range strings.Fields(plan.CommandLine) {
			if module, _, _ := strings.Cut(word, "."); slices.Contains([]string{"netcard", "virtio-blk", "virtio_blk", "snd", "bonding", "net"}, module) {
				got = append(got, word)
			}
		}
		if strings.Join(got, " ") != test.want || !strings.Contains(plan.CommandLine, own) {
			t.Errorf("%s: %q, want %q", name, plan.CommandLine, test.want)
		}
		if warnings := strings.Join(plan.Warnings, "\n"); (test.warned != "") != (warnings != "") || !strings.Contains(warnings, test.warned) {
			t.Errorf("%s: warnings %q", name, warnings)
		}
	}
}

// A watchdog is fed as the agent wants, whatever the old system wanted of it.
func TestParametersOfWatchdogs(t *testing.T) {
	t.Parallel()
	root, put := host(t)
	put("proc/modules", "ipmi_watchdog 1 0 - Live 0x0\nchipset_wdt 1 0 - Live 0x0\nipmi_si 1 0 - Live 0x0\n")
	modules := "lib/modules/" + release + "/"
	put(modules+"modules.dep", `kernel/drivers/block/virtio_blk.ko:
kernel/drivers/net/netcard.ko:
kernel/drivers/virtio/virtio-pci.ko:
kernel/drivers/char/ipmi/ipmi_si.ko:
kernel/drivers/char/ipmi/ipmi_watchdog.ko:
kernel/drivers/watchdog/chipset_wdt.ko:
`)
	put(modules+"kernel/drivers/char/ipmi/ipmi_watchdog.ko", "\x7fELF")
	put(modules+"kernel/drivers/watchdog/chipset_wdt.ko", "\x7fELF")
	put("etc/modprobe.d/a.conf", "options ipmi_watchdog start_now=1\noptions chipset_wdt nowayout=1\noptions ipmi_si type=kcs\n")
	plan, err := Survey(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(plan.CommandLine, "start_now") || strings.Contains(plan.CommandLine, "nowayout") || !strings.Contains(plan.CommandLine, "ipmi_si.type=kcs") {
		t.Errorf("the kernel is told %q", plan.CommandLine)
	}
}

// What the kernel would cut off its command line says how the machine restarts.
func TestACommandLineThatIsTooLong(t *testing.T) {
	t.Parallel()
	root, put := host(t)
	put("proc/cmdline", "netcard.a="+strings.Repeat("b", longestCommandLine)+"\n")
	if _, err := Survey(root, nil); err == nil || !strings.Contains(err.Error(), "and kernels take 2047") {
		t.Errorf("a command line that is too long: %v", err)
	}
}
