package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// TestOtherSeeds: whatever has the label of a seed on another disk is told, made by the tools that
// people make seeds with.
func TestOtherSeeds(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, dir := range []string{"sys/class/block", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	add := func(name string, content []byte) string {
		t.Helper()
		path := filepath.Join(root, "dev", name)
		if err := os.Mkdir(filepath.Join(root, "sys/class/block", name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	chosen := &agentv1.BlockDevice{Name: "sda", OtherPaths: []string{"sdd"}}
	add("sda", nil)
	for _, own := range []string{"sda4", "sdd4"} {
		add(own, fat12("CIDATA", []fatFile{{"user-data", []byte("x")}}))
	}
	add("sdb1", fat12("BOOT", []fatFile{{"user-data", []byte("x")}}))
	add("sdc", []byte("CIDATA"))
	if err, unread := otherSeeds(root, chosen); err != nil || unread != nil {
		t.Errorf("warned: %v, %v", err, unread)
	}
	add("sdaa3", fat12("CIDATA", []fatFile{{"user-data", []byte("x")}}))
	tool(t, "", "mkfs.vfat", "-n", "CIDATA", add("nvme0n1p2", make([]byte, 8*mebibyte)))
	tool(t, "", "mkfs.vfat", "-F", "32", "-n", "cidata", add("sdb2", make([]byte, 40*mebibyte)))
	tool(t, "", "mke2fs", "-q", "-F", "-L", "cidata", add("sdb3", make([]byte, 8*mebibyte)))
	iso := make([]byte, mebibyte)
	copy(iso[32769:], "CD001")
	copy(iso[32808:], "cidata                          ")
	add("sr0", iso)
	err, unread := otherSeeds(root, chosen)
	if unread != nil || err == nil || !strings.Contains(err.Error(), "CIDATA, too (/dev/nvme0n1p2, /dev/sdaa3, /dev/sdb2, /dev/sdb3, /dev/sr0)") {
		t.Errorf("warned: %v", err)
	}
}
