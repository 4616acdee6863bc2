package hardware_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/siderolabs/go-smbios/smbios"

	"github.com/ironherd/ironherd/internal/sim/hardware"
)

func build(tb testing.TB, m hardware.Machine) string {
	tb.Helper()
	dir := tb.TempDir()
	shared, err := hardware.NewShared(filepath.Join(dir, "shared"))
	if err != nil {
		tb.Fatal(err)
	}
	root := filepath.Join(dir, "root")
	if err := m.Build(root, shared); err != nil {
		tb.Fatal(err)
	}
	return root
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// everyModel returns a machine of each model.
func everyModel(t *testing.T) []hardware.Machine {
	t.Helper()
	seen := map[string]hardware.Machine{}
	for slot := range 200 {
		m := hardware.New(1, slot)
		seen[m.Model.Plan] = m
	}
	var all []hardware.Machine
	for _, model := range hardware.Models() {
		m, ok := seen[model.Plan]
		if !ok {
			t.Fatalf("no machine of model %s among 200", model.Plan)
		}
		all = append(all, m)
	}
	return all
}

func TestMachinesAreDecidedBySeedAndSlot(t *testing.T) {
	t.Parallel()
	serials := map[string]bool{}
	for slot := range 500 {
		m := hardware.New(7, slot)
		if again := hardware.New(7, slot); fmt.Sprint(again) != fmt.Sprint(m) {
			t.Fatalf("slot %d: %v, then %v", slot, m, again)
		}
		for _, s := range []string{m.Serial, m.UUID.String(), m.NICs[0].MAC, m.NICs[1].MAC, m.Disks[0].Serial, m.Disks[1].WWN} {
			if serials[s] {
				t.Errorf("slot %d: %s is not unique", slot, s)
			}
			serials[s] = true
		}
	}
}

func TestTreesSayWhatTheModelSays(t *testing.T) {
	t.Parallel()
	for _, m := range everyModel(t) {
		t.Run(m.Model.Plan, func(t *testing.T) {
			t.Parallel()
			root := build(t, m)
			for _, d := range m.Disks {
				class := filepath.Join(root, "sys/class/block", d.Name)
				if got := read(t, class+"/size"); got != strconv.FormatInt(d.Size/512, 10) {
					t.Errorf("%s has %s sectors, want %d", d.Name, got, d.Size/512)
				}
				if info, err := os.Stat(d.Path(root)); err != nil || info.Size() != d.Size {
					t.Errorf("disk %s: %v, %v", d.Name, info, err)
				}
				wwid := class + "/device/wwid"
				if d.NVMe {
					wwid = class + "/wwid"
					if got := read(t, class+"/device/serial"); got != d.Serial {
						t.Errorf("%s has serial %q, want %q", d.Name, got, d.Serial)
					}
				} else if page := read(t, class+"/device/vpd_pg80"); page[4:] != d.Serial {
					t.Errorf("%s has serial page %q, want %q", d.Name, page, d.Serial)
				}
				if got := read(t, wwid); got != d.WWN {
					t.Errorf("%s has WWN %q, want %q", d.Name, got, d.WWN)
				}
			}
			for _, n := range m.NICs {
				class := filepath.Join(root, "sys/class/net", n.Name)
				if got := read(t, class+"/address"); got != n.MAC {
					t.Errorf("%s has address %q, want %q", n.Name, got, n.MAC)
				}
				if events := read(t, class+"/device/uevent"); !strings.HasPrefix(events, "DRIVER="+m.Model.NIC.Driver+"\n") {
					t.Errorf("%s has driver %q, want %q", n.Name, events, m.Model.NIC.Driver)
				}
			}
			if n := strings.Count(read(t, root+"/proc/cpuinfo"), "processor\t"); n != m.Model.Sockets*m.Model.CPU.Threads {
				t.Errorf("cpuinfo has %d processors", n)
			}
			noLinkLeavesTheRoot(t, root)
		})
	}
}

func noLinkLeavesTheRoot(t *testing.T, root string) {
	t.Helper()
	inside, err := os.OpenRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inside.Close() }()
	err = filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.Mode()&os.ModeSymlink == 0 {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		_, err = inside.Stat(name)
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSMBIOSIsWhatARealParserReads(t *testing.T) {
	t.Parallel()
	for _, m := range everyModel(t) {
		t.Run(m.Model.Plan, func(t *testing.T) {
			t.Parallel()
			root := build(t, m)
			entry := readBytes(t, root+"/sys/firmware/dmi/tables/smbios_entry_point")
			table := readBytes(t, root+"/sys/firmware/dmi/tables/DMI")
			version := smbios.Version{Major: int(entry[7]), Minor: int(entry[8])}
			s, err := smbios.Decode(bytes.NewReader(table), version)
			if err != nil {
				t.Fatal(err)
			}
			if s.SystemInformation.SerialNumber != m.Serial || s.SystemInformation.UUID != m.UUID.String() ||
				s.SystemInformation.ProductName != m.Model.Product {
				t.Errorf("system %+v, want serial %s and UUID %s", s.SystemInformation, m.Serial, m.UUID)
			}
			if s.BIOSInformation.Version != m.Model.FirmwareVersion {
				t.Errorf("firmware %+v", s.BIOSInformation)
			}
			if len(s.ProcessorInformation) != m.Model.Sockets || int(s.ProcessorInformation[0].CoreCount) != m.Model.CPU.Cores {
				t.Errorf("processors %+v", s.ProcessorInformation)
			}
			total := 0
			for _, d := range s.MemoryDevices {
				if d.Size == 0x7fff { // too large for that field
					total += int(d.ExtendedSize)
				} else {
					total += d.Size.Megabytes()
				}
				if d.PartNumber != m.Model.DIMM.Part {
					t.Errorf("memory module %+v", d)
				}
			}
			if want := m.Model.DIMMs * m.Model.DIMM.SizeMiB; total != want {
				t.Errorf("%d MiB of memory, want %d", total, want)
			}
		})
	}
}

func readBytes(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestABootChangesTheBootIDAndForgetsWhatIsInMemory(t *testing.T) {
	t.Parallel()
	root := build(t, hardware.New(1, 1))
	for i, dir := range []string{"run", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, dir, "left"), nil, 0o600); err != nil {
			t.Fatal(i, err)
		}
	}
	for _, id := range []string{"first", "second"} {
		if err := hardware.SetBoot(root, id); err != nil {
			t.Fatal(err)
		}
		if got := read(t, root+"/proc/sys/kernel/random/boot_id"); got != id {
			t.Errorf("boot ID %q, want %q", got, id)
		}
	}
	for _, dir := range []string{"run", "tmp"} {
		if entries, err := os.ReadDir(filepath.Join(root, dir)); err != nil || len(entries) != 0 {
			t.Errorf("%s has %v, %v", dir, entries, err)
		}
	}
}

func BenchmarkBuild(b *testing.B) {
	dir := b.TempDir()
	shared, err := hardware.NewShared(filepath.Join(dir, "shared"))
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		if err := hardware.New(1, i).Build(filepath.Join(dir, strconv.Itoa(i)), shared); err != nil {
			b.Fatal(err)
		}
	}
}
