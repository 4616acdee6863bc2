package install

import (
	"encoding/hex"
	"maps"
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

// option is a boot entry of another's, with that device path.
func option(attributes byte, path string) string {
	return entryNamed("Onboard", attributes, path)
}

func entryNamed(name string, attributes byte, path string) string {
	path += "\x7f\xff\x04\x00"
	return string([]byte{attributes, 0, 0, 0, byte(len(path)), 0}) + string(utf16Text(name)) + path + "data of the firmware's own"
}

// node is a node of a device path.
func node(kind, of byte, data string) string {
	return string([]byte{kind, of, byte(4 + len(data)), 0}) + data
}

var (
	pci      = node(2, 1, "\xd0\x41\x03\x0a\x00\x00\x00\x00") + node(1, 1, "\x00\x03")
	pxe      = option(1, pci+node(3, 11, strings.Repeat("\x02", 33))+node(3, 12, strings.Repeat("\x00", 23)))
	httpBoot = option(1, pci+node(3, 13, strings.Repeat("\x00", 56))+node(3, 24, ""))
	// setUp is EDK2's set-up: active, hidden, an application.
	setUp = "\x09\x01" + option(0, node(4, 7, strings.Repeat("\x05", 16)))[2:]
)

// Our entry comes before every other one that boots no network, and network boot stays first where
// it was. What the firmware does not boot by itself counts for nothing.
func TestBootOrder(t *testing.T) {
	t.Parallel()
	const warning = "the firmware boots from the network first"
	for name, test := range map[string]struct {
		entries     map[string]string
		order, want string
		warned      bool
	}{
		"none":                {nil, "", "\x00\x00", false},
		"a disk":              {map[string]string{"Boot0000": option(1, pci)}, "\x00\x00", "\x01\x00\x00\x00", false},
		"a disk, then PXE":    {map[string]string{"Boot0000": option(1, pci), "Boot0001": pxe}, "\x00\x00\x01\x00", "\x02\x00\x00\x00\x01\x00", false},
		"PXE, a disk, PXE":    {map[string]string{"Boot0000": option(1, pci), "Boot0001": pxe, "Boot0002": httpBoot}, "\x01\x00\x00\x00\x02\x00", "\x01\x00\x03\x00\x00\x00\x02\x00", true},
		"HTTP, then PXE":      {map[string]string{"Boot0000": httpBoot, "Boot0001": pxe}, "\x00\x00\x01\x00", "\x00\x00\x01\x00\x02\x00", true},
		"PXE that is off":     {map[string]string{"Boot0000": option(0, pci+node(3, 11, ""))}, "\x00\x00", "\x00\x00\x01\x00", false},
		"PXE by name alone":   {map[string]string{"Boot0000": entryNamed("PXE Device 1: NIC 1", 1, node(1, 4, "\x41\x18\x19\x3a"))}, "\x00\x00", "\x00\x00\x01\x00", true},
		"a disk of that name": {map[string]string{"Boot0000": entryNamed("PXE Corp. SSD", 1, pci+node(3, 18, "\x00\x00"))}, "\x00\x00", "\x01\x00\x00\x00", false},
		"iSCSI":               {map[string]string{"Boot0000": option(1, pci+node(3, 11, "")+node(3, 12, "")+node(3, 19, ""))}, "\x00\x00", "\x01\x00\x00\x00", false},
		"a path that is cut":  {map[string]string{"Boot0000": "\x01\x00\x00\x00\xff\xffP\x00\x00\x00\x02\x01\x00\x00\x03"}, "\x00\x00", "\x01\x00\x00\x00", false},
		"one that is gone":    {nil, "\x07\x00", "\x00\x00\x07\x00", false},
		"a disk that is off, PXE, a disk": {
			map[string]string{"Boot0000": option(0, pci), "Boot0001": pxe, "Boot0002": option(1, pci)}, "\x00\x00\x01\x00\x02\x00", "\x00\x00\x01\x00\x03\x00\x02\x00", true,
		},
		"a set-up application, PXE":  {map[string]string{"Boot0000": setUp, "Boot0001": pxe}, "\x00\x00\x01\x00", "\x00\x00\x01\x00\x02\x00", true},
		"one that is gone, PXE":      {map[string]string{"Boot0001": pxe}, "\x07\x00\x01\x00", "\x07\x00\x01\x00\x00\x00", true},
		"PXE, a set-up application":  {map[string]string{"Boot0000": setUp, "Boot0001": pxe}, "\x01\x00\x00\x00", "\x01\x00\x02\x00\x00\x00", true},
		"a set-up application, disk": {map[string]string{"Boot0000": setUp, "Boot0001": option(1, pci)}, "\x00\x00\x01\x00", "\x02\x00\x00\x00\x01\x00", false},
		"PXE as an application":      {map[string]string{"Boot0000": "\x01\x01" + pxe[2:]}, "\x00\x00", "\x00\x00\x01\x00", false},
		"ours, put before PXE":       {map[string]string{"Boot0000": pxe, "Boot0001": string(loadOption(theESP, "x"))}, "\x01\x00\x00\x00", "\x01\x00\x00\x00", false},
		"ours, put at the end":       {map[string]string{"Boot0000": option(1, pci), "Boot0001": string(loadOption(theESP, "x"))}, "\x00\x00\x01\x00", "\x01\x00\x00\x00", false},
	} {
		variables := map[string]string{}
		maps.Copy(variables, test.entries)
		if test.order != "" {
			variables["BootOrder"] = test.order
		}
		root := efiRoot(t, variables)
		for range 2 { // the next install finds the entry of the last one
			entry, err := bootByEFI(root, theESP)
			if !entry || (err != nil) != test.warned || err != nil && !strings.HasPrefix(err.Error(), warning) {
				t.Errorf("%s: entry %t, %v", name, entry, err)
			}
			if order := variable(t, root, "BootOrder"); order != test.want {
				t.Errorf("%s: the order is %x, want %x", name, order, test.want)
			}
		}
	}
}

func TestBootEntry(t *testing.T) {
	t.Parallel()
	root := efiRoot(t, map[string]string{"Boot0000": pxe, "Boot0001": pxe, "BootOrder": "\x01\x00\x00\x00", "BootCurrent": "\x00\x00", "BootOptionSupport": "x"})
	if entry, err := bootByEFI(root, theESP); !entry || err == nil {
		t.Fatalf("entry %t, %v", entry, err)
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
	if entry, err := bootByEFI(t.TempDir(), theESP); entry || err != nil {
		t.Errorf("a machine that was booted by BIOS: entry %t, %v", entry, err)
	}
	root := efiRoot(t, nil)
	if entry, err := bootByEFI(root, partition{}); entry || err != nil {
		t.Errorf("no EFI system partition: entry %t, %v", entry, err)
	}
	if files, _ := os.ReadDir(filepath.Join(root, efiDir)); len(files) > 0 {
		t.Errorf("an image without an EFI system partition got %v", files)
	}
}

// A kernel in memory may show nothing of EFI, although the machine boots by it. The old system has
// left word then: the image needs an EFI system partition, and that no boot entry was made is told.
func TestEFIThatTheKernelDoesNotShow(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	mark := filepath.Join(root, EFIMark)
	if err := os.MkdirAll(filepath.Dir(mark), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, mebibyte)
	copy(head, "\xeb\x63\x90") // a boot loader for BIOS
	head[510], head[511] = 0x55, 0xaa
	if _, _, err := checkBoot(root, head); err == nil {
		t.Error("an image without an EFI system partition is taken")
	}
	if entry, doubt := bootByEFI(root, theESP); entry || doubt == nil {
		t.Errorf("a boot entry was made (%t), or that none was is not told: %v", entry, doubt)
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
