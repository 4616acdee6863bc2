package kexec

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// generated is like what update-grub writes: functions, conditions and variables around plain
// entries.
const generated = `# DO NOT EDIT
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set boot_once=true
else
   set default="0"
fi
function load_video {
  if [ x$feature_all_video_module = xy ]; then
    insmod all_video
  fi
}
menuentry 'Distribution GNU/Linux, it'\''s {new}' --class gnu $menuentry_id_option 'simple' {
	load_video
	insmod gzio
	if [ x$grub_platform = xxen ]; then insmod xzio; fi
	search --no-floppy --fs-uuid --set=root 0b29
	echo	'Loading Linux 6.1 ...'
	linux	/boot/vmlinuz-6.1 root=UUID=0b29 ro  quiet "dyndbg=file a.c +p" $vt_handoff
	echo	'Loading initial ramdisk ...'
	initrd	/boot/ucode.img /boot/initrd.img-6.1
}
submenu 'Advanced options' {
	menuentry 'Recovery' {
		linux	/boot/vmlinuz-5.10 root=UUID=0b29 ro single
	}
}
`

func TestFirstEntry(t *testing.T) {
	t.Parallel()
	template, err := os.ReadFile("../../image/trees/base/boot/grub/grub.cfg.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	ours := strings.NewReplacer("{{.RootUUID}}", "12-34", "{{.Kernel}}", "6.1", "{{.Console}}", "console=tty0 console=ttyS0").Replace(string(template))
	for _, c := range []struct{ name, config, kernel, initrd, line, refused string }{
		{
			"of our images", ours, "/boot/vmlinuz-6.1", "/boot/initrd.img-6.1",
			"BOOT_IMAGE=/boot/vmlinuz-6.1 root=UUID=12-34 ro console=tty0 console=ttyS0", "",
		},
		{
			"generated", generated, "/boot/vmlinuz-6.1", "/boot/ucode.img /boot/initrd.img-6.1",
			`BOOT_IMAGE=/boot/vmlinuz-6.1 root=UUID=0b29 ro quiet "dyndbg=file a.c +p"`, "",
		},
		{"without an initrd, on a device", "menuentry a {\nif [ x ]; then {\n}\n linuxefi ($root)/vmlinuz ro\n}\n", "/vmlinuz", "", "BOOT_IMAGE=/vmlinuz ro", ""},
		{"another default", "set default=2\n" + generated, "", "", "", `not the first one, but "2"`},
		{"no entry", "linux /vmlinuz\n# menuentry a {\nlinux /vmlinuz\n", "", "", "", "has no entry"},
		{"no end", "menuentry a {\nlinux /vmlinuz\n", "", "", "", "no end"},
		{"no Linux", "menuentry a {\nchainloader /EFI/other\nlinux\n}\n", "", "", "", "starts no Linux"},
		{"a variable in the path", "menuentry a {\nlinux /boot/$kernel ro\n}\n", "", "", "", `not plain: "/boot/$"`},
		{"a variable in a parameter", "menuentry a {\nlinux /vmlinuz root=${disk}1\n}\n", "", "", "", `with a variable: "root=$1"`},
		{"a relative initrd", "menuentry a {\nlinux /vmlinuz\ninitrd initrd.img\n}\n", "", "", "", `not plain: "initrd.img"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e, err := firstEntry([]byte(c.config))
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("got %+v, %v", e, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{c.kernel, c.initrd, c.line}, []string{e.Kernel, strings.Join(e.Initrd, " "), e.commandLine()}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestInitrdsAreAligned, because the kernel looks for the next one at a multiple of four bytes.
func TestInitrdsAreAligned(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"a": "12345", "b": "1234", "c": "1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	var joined bytes.Buffer
	if err := (entry{Initrd: []string{"/a", "/b", "/c"}}).join(&joined, root); err != nil {
		t.Fatal(err)
	}
	if got, want := joined.String(), "12345\x00\x00\x0012341\x00\x00\x00"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := (entry{Initrd: []string{"/../a"}}).join(&joined, root); err == nil {
		t.Error("a path leaves the file system")
	}
}

// FuzzFirstEntry: whatever is found has plain paths, and one line of parameters.
func FuzzFirstEntry(f *testing.F) {
	f.Add(generated)
	f.Add("menuentry a {\nlinux /v \"a b\" 'c'\\ d\ninitrd (x)/i # end\n}\n")
	f.Add("menuentry {\nlinux /0\"0\"0\\\n}")
	f.Fuzz(func(t *testing.T, config string) {
		e, err := firstEntry([]byte(config))
		if err != nil {
			return
		}
		for _, path := range append([]string{e.Kernel}, e.Initrd...) {
			if !strings.HasPrefix(path, "/") {
				t.Errorf("path %q", path)
			}
		}
		if line := e.commandLine(); strings.ContainsAny(line, "\n\x00") {
			t.Errorf("command line %q", line)
		}
	})
}
