package install

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// theESP is partition 15 of a disk, as Debian's images for clouds have it.
var theESP = partition{number: 15, first: 2048, last: 4095, id: [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}}

func efiRoot(t *testing.T, variables map[string]string) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, efiDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, value := range variables {
		if err := os.WriteFile(filepath.Join(dir, name+"-"+efiGlobal), []byte("\x07\x00\x00\x00"+value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func variable(t *testing.T, root, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, efiDir, name+"-"+efiGlobal))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(data), "\x07\x00\x00\x00") {
		t.Errorf("%s has the attributes %x", name, data[:4])
	}
	return string(data[4:])
}

func TestBootEntry(t *testing.T) {
	t.Parallel()
	pxe := "\x01\x00\x00\x00\x04\x00P\x00X\x00E\x00\x00\x00\x7f\xff\x04\x00"
	root := efiRoot(t, map[string]string{"Boot0000": pxe, "Boot0001": pxe, "BootOrder": "\x01\x00\x00\x00", "BootCurrent": "\x00\x00", "BootOptionSupport": "x"})
	for range 2 { // the next install finds the entry of the last one
		if err := bootByEFI(root, theESP); err != nil {
			t.Fatal(err)
		}
		if order := variable(t, root, "BootOrder"); order != "\x02\x00\x01\x00\x00\x00" {
			t.Errorf("the order is %x", order)
		}
	}
	// Written out by hand from the UEFI specification.
	want := "01000000" + "5e00" + // active; the length of the path
		hex.EncodeToString(utf16Text("Ironherd installed system")) +
		"04012a00" + "0f000000" + "0008000000000000" + "0008000000000000" + "0102030405060708090a0b0c0d0e0f10" + "0202" +
		"04043000" + hex.EncodeToString(utf16Text(`\EFI\BOOT\BOOTX64.EFI`)) + "7fff0400"
	if got := hex.EncodeToString([]byte(variable(t, root, "Boot0002"))); got != want {
		t.Errorf("the entry is\n%s, want\n%s", got, want)
	}
	if got := variable(t, root, "Boot0000"); got != pxe {
		t.Error("another's entry was changed")
	}
}

func TestNoBootEntryWithoutEFI(t *testing.T) {
	t.Parallel()
	if err := bootByEFI(t.TempDir(), theESP); err != nil {
		t.Errorf("a machine that was booted by BIOS: %v", err)
	}
	root := efiRoot(t, nil)
	if err := bootByEFI(root, partition{}); err != nil {
		t.Error(err)
	}
	if files, _ := os.ReadDir(filepath.Join(root, efiDir)); len(files) > 0 {
		t.Errorf("an image without an EFI system partition got %v", files)
	}
}

// TestWarningsAreReported: a disk is installed, although the firmware takes no boot entry, and the
// report says both.
func TestWarningsAreReported(t *testing.T) {
	t.Parallel()
	image := partitioned(t)
	m, options := bigMachine(t)
	// A directory cannot be read as a variable.
	if err := os.MkdirAll(filepath.Join(m.root, efiDir, "BootOrder-"+efiGlobal), 0o755); err != nil {
		t.Fatal(err)
	}
	var warned []string
	options.Warn = func(err error) { warned = append(warned, err.Error()) }
	report := Run(t.Context(), requestFor(serveBytes(t, image), image), options)
	if !report.GetOk() || len(warned) != 1 || !strings.HasPrefix(warned[0], "make a boot entry: ") || !slices.Equal(report.GetWarnings(), warned) {
		t.Errorf("warned %q, report: %v", warned, report)
	}
}
