package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	if err := (Options{Output: "a.raw.zst"}).Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	err := Options{
		Output: ".raw", Suite: "trixie; reboot", Kernel: "-o", Packages: []string{"nginx", "$(id)"}, Hostname: "A", Size: 5,
	}.Validate()
	for _, want := range []string{
		`the output ".raw" ends neither in .raw nor in .raw.zst`, `the suite "trixie; reboot" is not the name`, `"-o" is not the name of a package`,
		`"$(id)" is not the name of a package`, `"A" is not a host name`, "the size 5 is not a multiple of 1 MiB",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "nginx") {
		t.Errorf("a good package is refused: %v", err)
	}
}

// TestTimestamps: one that lies ahead would leave what a build makes the time of the build.
func TestTimestamps(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, test := range map[string]struct {
		at   time.Time
		want string
	}{
		"none":                        {time.Time{}, ""},
		"the beginning of 1970":       {time.Unix(0, 0), ""},
		"now":                         {now, ""},
		"an hour ahead":               {now.Add(time.Hour), fmt.Sprintf("the timestamp %d lies ahead of this host's clock: want seconds since 1970", now.Unix()+3600)},
		"in milliseconds":             {time.Unix(1763769600000, 0), "the timestamp 1763769600000 lies ahead of this host's clock: want seconds since 1970"},
		"more than a time has":        {time.Unix(math.MaxInt64, 0), "the timestamp 9223372036854775807 lies ahead of this host's clock: want seconds since 1970"},
		"less than a time has":        {time.Unix(math.MinInt64, 0), "the timestamp lies before 1970"},
		"a second before 1970 begins": {time.Unix(-1, 0), "the timestamp lies before 1970"},
	} {
		err := Options{Output: "a.raw", Timestamp: test.at}.Validate()
		if (err != nil) != (test.want != "") || err != nil && !strings.HasSuffix(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

func TestUsedInodes(t *testing.T) {
	t.Parallel()
	used, err := usedInodes("Inode count:              24\nFree inodes:              9\nGroup 0: (Blocks 0-1)\n  Free inodes: 14-16, 18\nGroup 1:\n  Free inodes: \n  Free inodes: 20-24\n")
	if err != nil || !slices.Equal(used, []int{2, 11, 12, 13, 17, 19}) {
		t.Errorf("got %v, %v", used, err)
	}
	for _, bad := range []string{"", "Inode count: many\n", "Inode count: 24\n  Free inodes: 3-x\n"} {
		if _, err := usedInodes(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// TestGRUBIsToldWhereItsCoreIs checks what grub-bios-setup would have written.
func TestGRUBIsToldWhereItsCoreIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	boot, core := bytes.Repeat([]byte{0xb0}, 512), bytes.Repeat([]byte{0xc0}, 3*512+5)
	binary.LittleEndian.PutUint16(core[508:], 3)
	for name, data := range map[string][]byte{"boot.img": boot, "core.img": core} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	disk := &memory{data: bytes.Repeat([]byte{0xdd}, 2*mebibyte)}
	if err := writeGRUB(disk, dir); err != nil {
		t.Fatal(err)
	}
	if got := binary.LittleEndian.Uint64(disk.data[0x5c:]); got != 2048 {
		t.Errorf("the first stage loads sector %d", got)
	}
	if !bytes.Equal(disk.data[440:512], bytes.Repeat([]byte{0xdd}, 72)) {
		t.Error("the partition table in the MBR was overwritten")
	}
	if got := binary.LittleEndian.Uint64(disk.data[mebibyte+500:]); got != 2049 {
		t.Errorf("the core goes on at sector %d", got)
	}
	binary.LittleEndian.PutUint16(core[508:], 9)
	if err := os.WriteFile(filepath.Join(dir, "core.img"), core, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeGRUB(disk, dir); err == nil {
		t.Error("a core that is cut short was taken")
	}
}

// TestESPIsFound compares the serial number of the EFI system partition with the one by which the
// system looks for it. A system that does not find it waits 90 s for it on every boot.
func TestESPIsFound(t *testing.T) {
	t.Parallel()
	tool, err := findTools()
	if err != nil && os.Getenv("CI") == "" {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	tree := t.TempDir()
	for _, path := range espFiles {
		if err := write(filepath.Join(tree, path.from), []byte(path.from), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b := &builder{Options: Options{}.withDefaults(), tool: tool, work: t.TempDir(), seed: [32]byte{1}}
	if err := b.makeESP(t.Context(), tree); err != nil {
		t.Fatal(err)
	}
	if err := install(tree, "trees/base", b.values("6.1")); err != nil {
		t.Fatal(err)
	}
	esp, err := os.ReadFile(b.espPath())
	if err != nil {
		t.Fatal(err)
	}
	const serialOf32 = 67 // of FAT32: Microsoft's "FAT: General Overview of On-Disk Format", BS_VolID
	serial := binary.LittleEndian.Uint32(esp[serialOf32:])
	fstab, err := os.ReadFile(filepath.Join(tree, "etc/fstab"))
	if want := fmt.Sprintf("UUID=%04X-%04X /boot/efi vfat ", serial>>16, serial&0xffff); err != nil || !strings.Contains(string(fstab), want) {
		t.Errorf("no %q in fstab: %v\n%s", want, err, fstab)
	}
}

type memory struct{ data []byte }

func (m *memory) WriteAt(p []byte, at int64) (int, error) { return copy(m.data[at:], p), nil }

// TestMountsStayInside: what a tool mounts is not there for anybody else, even if it is killed.
func TestMountsStayInside(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("this needs to be root")
	}
	dir := t.TempDir()
	b := &builder{Options: Options{}.withDefaults(), work: dir}
	said, err := b.run(t.Context(), nil, "sh", "-c", "mkdir in && mount -t tmpfs none in && touch in/side && grep "+dir+"/in /proc/self/mountinfo && kill -KILL $$")
	if err == nil {
		t.Fatalf("the tool was not killed: %s", said)
	}
	if !strings.Contains(err.Error(), "killed") {
		t.Fatalf("it could not mount: %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("a mount was left to the host: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "in/side")); err == nil {
		t.Error("what was mounted can be seen from outside")
	}
}

func TestMissingToolsAreNamedTogether(t *testing.T) {
	t.Setenv("PATH", "/nonexistent")
	before := tools
	defer func() { tools = before }()
	tools = append(slices.Clone(tools), struct{ program, pkg string }{"no-such-a", "pkg-a"}, struct{ program, pkg string }{"no-such-b", "pkg-b"})
	if _, err := findTools(); err == nil || !strings.Contains(err.Error(), "pkg-a pkg-b") {
		t.Errorf("got %v", err)
	}
}

// TestMissingFilesAreNamedBeforeAnythingIsDone: together, and not when packages have been fetched
// for minutes.
func TestMissingFilesAreNamedBeforeAnythingIsDone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gone, output := filepath.Join(dir, "gone"), filepath.Join(dir, "out", "debian.raw")
	if err := os.Mkdir(filepath.Dir(output), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		options Options
		want    []string
	}{
		"all": {Options{Sources: gone + "-sources", AptConfig: gone + "-config", Agent: gone + "-agent"}, []string{
			"read the APT sources: stat " + gone + "-sources", "read the APT configuration: stat " + gone + "-config", "read the agent's executable: stat " + gone + "-agent",
		}},
		"one":         {Options{Sources: there, AptConfig: there, Agent: gone}, []string{"read the agent's executable: stat " + gone + ": no such file"}},
		"a directory": {Options{Sources: there, Agent: dir}, []string{"read the agent's executable: " + dir + " is a directory"}},
	} {
		test.options.Output = output
		_, err := Build(t.Context(), test.options)
		for _, want := range test.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q in it", name, err, want)
			}
		}
		if err != nil && strings.Contains(err.Error(), there) {
			t.Errorf("%s: a file that is there is named: %v", name, err)
		}
	}
	if done, err := os.ReadDir(filepath.Dir(output)); err != nil || len(done) > 0 {
		t.Errorf("something was done: %v, %v", done, err)
	}
}

// TestOnlyItsOwnManifestIsReplaced: what somebody else has called as the manifest will be is left
// alone, and so is the manifest of another image: before anything is done, and at the end.
func TestOnlyItsOwnManifestIsReplaced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		there   string
		refused bool
	}{
		"nothing":                        {"", false},
		"its own":                        {`{"file": "web.raw.zst", "digest": "sha256:0", "packages": []}`, false},
		"that of the uncompressed one":   {`{"file": "web.raw", "digest": "sha256:0"}`, true},
		"a configuration":                {`{"listen": ":80"}`, true},
		"a configuration, not an object": {`[]`, true},
		"no JSON":                        {"listen: 80", true},
		"a directory":                    {"directory", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			place := filepath.Join(dir, "web.json")
			inside := place
			if c.there == "directory" {
				inside = filepath.Join(place, "inside")
			}
			if c.there != "" {
				if err := write(inside, []byte(c.there), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			o := Options{Output: filepath.Join(dir, "web.raw.zst"), Sources: filepath.Join(dir, "gone")}
			const says = "web.json is there and is not the manifest of web.raw.zst: move it away"
			if _, err := Build(t.Context(), o); err == nil || strings.Contains(err.Error(), says) != c.refused {
				t.Errorf("before the build: %v", err)
			}
			made := map[string]string{"disk": "image", "manifest": "manifest"}
			for file, text := range made {
				if err := write(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			b := &builder{Options: o}
			err := b.publish(filepath.Join(dir, "disk"), filepath.Join(dir, "manifest"), place)
			if (err != nil) != c.refused || c.refused && !strings.Contains(err.Error(), says) {
				t.Errorf("after the build: %v", err)
			}
			want, image := "manifest", fs.ErrNotExist
			if c.refused {
				want = c.there
			} else {
				image = nil
			}
			if text, err := os.ReadFile(inside); err != nil || string(text) != want {
				t.Errorf("in the place of the manifest is %q, %v", text, err)
			}
			if _, err := os.Stat(o.Output); !errors.Is(err, image) {
				t.Errorf("the image: %v", err)
			}
		})
	}
}

// TestAnImageIsReadableWhateverTheUmask: people serve it and its manifest as another user than the
// one who has built them.
func TestAnImageIsReadableWhateverTheUmask(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disk, manifest := filepath.Join(dir, "disk"), filepath.Join(dir, "manifest")
	for _, made := range []string{disk, manifest} {
		if err := os.WriteFile(made, nil, 0o600); err != nil { // as a umask of 077 has it
			t.Fatal(err)
		}
	}
	b := &builder{Options: Options{Output: filepath.Join(dir, "web.raw.zst")}}
	if err := b.publish(disk, manifest, filepath.Join(dir, "web.json")); err != nil {
		t.Fatal(err)
	}
	for _, published := range []string{"web.raw.zst", "web.json"} {
		if info, err := os.Stat(filepath.Join(dir, published)); err != nil || info.Mode() != 0o644 {
			t.Errorf("%s: %v, %v", published, info, err)
		}
	}
}
