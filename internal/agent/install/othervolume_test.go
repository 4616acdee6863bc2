package install

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// volumeAt makes a block device below root that holds the content, and returns its path.
func volumeAt(t *testing.T, root, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(root, "dev", name)
	for _, dir := range []string{filepath.Join(root, "sys/class/block", name), filepath.Dir(path)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestOtherSeeds: whatever has the label of a seed on another disk is told, made by the tools that
// people make seeds with.
func TestOtherSeeds(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	add := func(name string, content []byte) string { return volumeAt(t, root, name, content) }
	chosen := &agentv1.BlockDevice{Name: "sda", OtherPaths: []string{"sdd"}}
	add("sda", nil)
	for _, own := range []string{"sda4", "sdd4"} {
		add(own, fat12("CIDATA", []fatFile{{"user-data", []byte("x")}}))
	}
	add("sdb1", fat12("BOOT", []fatFile{{"user-data", []byte("x")}}))
	add("sdc", []byte("CIDATA"))
	if warned := otherVolumes(root, chosen, true); len(warned) > 0 {
		t.Errorf("warned: %v", warned)
	}
	add("sdaa3", fat12("CIDATA", []fatFile{{"user-data", []byte("x")}}))
	tool(t, "", "mkfs.vfat", "-n", "CIDATA", add("nvme0n1p2", make([]byte, 8*mebibyte)))
	tool(t, "", "mkfs.vfat", "-F", "32", "-n", "cidata", add("sdb2", make([]byte, 40*mebibyte)))
	tool(t, "", "mke2fs", "-q", "-F", "-L", "cidata", add("sdb3", make([]byte, 8*mebibyte)))
	iso := make([]byte, mebibyte)
	copy(iso[32769:], "CD001")
	copy(iso[32808:], "cidata                          ")
	add("sr0", iso)
	warned := otherVolumes(root, chosen, true)
	if len(warned) != 1 || !strings.Contains(warned[0].Error(), "CIDATA, too (/dev/nvme0n1p2, /dev/sdaa3, /dev/sdb2, /dev/sdb3, /dev/sr0)") {
		t.Errorf("warned: %v", warned)
	}
	if warned := otherVolumes(root, chosen, false); len(warned) > 0 {
		t.Errorf("warned without a seed: %v", warned)
	}
}

// marked returns a volume with these texts at these offsets.
func marked(texts map[int]string) []byte {
	volume := make([]byte, 128<<10)
	for at, text := range texts {
		copy(volume[at:], text)
	}
	return volume
}

// TestVolumesLikeThoseOfTheInstall: an image that finds its root by a label or a UUID may find that
// of another disk. What has neither is told by nobody, and is like nothing.
func TestVolumesLikeThoseOfTheInstall(t *testing.T) {
	t.Parallel()
	ext := func(label, id string) func(string) {
		return func(path string) { tool(t, "", "mke2fs", "-q", "-F", "-L", label, "-U", id, path) }
	}
	fat := func(args ...string) func(string) {
		return func(path string) { tool(t, "", "mkfs.vfat", append(args, path)...) }
	}
	const id, another = "8aee2ba5-8a4b-4a38-9c6e-8a5f6d9a1c01", "8aee2ba5-8a4b-4a38-9c6e-8a5f6d9a1c02"
	put := func(texts map[int]string) func(string) {
		return func(path string) {
			if err := os.WriteFile(path, marked(texts), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	xfs := func(label, id string) func(string) { return put(map[int]string{0: "XFSB", 32: id, 108: label}) }
	btrfs := func(label, id string) func(string) {
		return put(map[int]string{65600: "_BHRfS_M", 65568: id, 65835: label})
	}
	for name, test := range map[string]struct {
		own, other func(path string)
		like       bool
	}{
		"one label":              {ext("cloudimg-rootfs", id), ext("cloudimg-rootfs", another), true},
		"one UUID":               {ext("a", id), ext("b", id), true},
		"another one":            {ext("a", id), ext("b", another), false},
		"no labels":              {ext("", id), ext("", another), false},
		"FAT of one label":       {fat("-n", "UEFI", "-i", "12345678"), fat("-n", "UEFI", "-i", "12345679"), true},
		"FAT of one number":      {fat("-i", "12345678"), fat("-i", "12345678"), true},
		"FAT without labels":     {fat("-i", "12345678"), fat("-i", "12345679"), false},
		"FAT without numbers":    {fat("-i", "00000000"), fat("-i", "00000000"), false},
		"XFS of one label":       {xfs("root", "0123456789abcdef"), xfs("root", "fedcba9876543210"), true},
		"XFS of one UUID":        {xfs("", "0123456789abcdef"), xfs("", "0123456789abcdef"), true},
		"XFS of another UUID":    {xfs("", "0123456789abcdef"), xfs("", "fedcba9876543210"), false},
		"Btrfs of one label":     {btrfs("root", "0123456789abcdef"), btrfs("root", "fedcba9876543210"), true},
		"Btrfs of one UUID":      {btrfs("", "0123456789abcdef"), btrfs("", "0123456789abcdef"), true},
		"a label on another one": {xfs("root", "0123456789abcdef"), ext("root", id), true},
		"a seed of the image":    {fat("-n", "CIDATA", "-i", "12345678"), fat("-n", "CIDATA", "-i", "12345678"), false},
		"nothing":                {put(nil), put(nil), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for path, write := range map[string]func(string){"sda1": test.own, "sdb1": test.other} {
				write(volumeAt(t, root, path, make([]byte, 8*mebibyte)))
			}
			var want []string
			if test.like {
				want = []string{"the installed system may take a volume of another disk for its own: wipe or detach what has the label or the UUID of one on /dev/sda, too (/dev/sdb1)"}
			}
			var told []string
			for _, warning := range otherVolumes(root, &agentv1.BlockDevice{Name: "sda"}, false) {
				told = append(told, warning.Error())
			}
			if !slices.Equal(told, want) {
				t.Errorf("told %q, want %q", told, want)
			}
		})
	}
}

// TestAnotherDiskOfTheSameLabelIsReported of an install that has no seed.
func TestAnotherDiskOfTheSameLabelIsReported(t *testing.T) {
	t.Parallel()
	image := testImage(1, 3*mebibyte)
	m := newMachine(t)
	for _, name := range []string{"sda1", "sdb1"} {
		volumeAt(t, m.root, name, marked(map[int]string{0: "XFSB", 108: "root"}))
	}
	report := Run(t.Context(), requestFor(serveBytes(t, image), image), m.options())
	if told := strings.Join(report.GetWarnings(), "\n"); !report.GetOk() || !strings.Contains(told, "the label or the UUID of one on /dev/sda, too (/dev/sdb1)") {
		t.Errorf("report: %v", report)
	}
}
