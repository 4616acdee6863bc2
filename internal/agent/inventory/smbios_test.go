package inventory

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// structure encodes one SMBIOS structure; fields maps offsets to bytes.
func structure(kind byte, length int, fields map[int][]byte, texts ...string) []byte {
	formatted := make([]byte, length)
	formatted[0], formatted[1] = kind, byte(length)
	for offset, data := range fields {
		copy(formatted[offset:], data)
	}
	for _, text := range texts {
		formatted = append(append(formatted, text...), 0)
	}
	if len(texts) == 0 {
		formatted = append(formatted, 0)
	}
	return append(formatted, 0)
}

func le16(n uint16) []byte { return binary.LittleEndian.AppendUint16(nil, n) }
func le32(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }

func smbiosTable() []byte {
	var table []byte
	table = append(table, structure(0, 24, map[int][]byte{4: {1}, 5: {2}, 8: {3}}, "Maker", "1.2", "01/02/2026")...)
	table = append(table, structure(1, 27, map[int][]byte{
		4: {1}, 5: {2}, 7: {3}, 8: {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
	}, "Vendor", "Server \xff9", "SN1")...)
	table = append(table, structure(2, 15, map[int][]byte{4: {1}, 5: {2}}, "Boards", "B1")...)
	module := func(size uint16, extended uint32) []byte {
		return structure(17, 92, map[int][]byte{
			0x0C: le16(size), 0x10: {1}, 0x12: {0x1A}, 0x15: le16(0xFFFF), 0x17: {2}, 0x18: {3}, 0x1A: {4}, 0x1C: le32(extended), 0x54: le32(70000),
		}, "DIMM A1", "Memories", "S1", "P1")
	}
	table = append(table, module(0x7FFF, 128<<10)...) // 128 GiB, in the extended field
	table = append(table, module(0, 0)...)
	table = append(table, module(16<<10, 0)...)
	return append(table, structure(127, 4, nil)...)
}

const entryPoint = "_SM3_\x00\x18\x03\x03\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// withTables is a machine that has nothing but SMBIOS tables of version 3.3.
func withTables(t *testing.T, structures ...[]byte) *agentv1.HardwareReport {
	t.Helper()
	return Collect(tree(t, map[string]string{
		"sys/firmware/dmi/tables/smbios_entry_point": entryPoint,
		"sys/firmware/dmi/tables/DMI":                string(bytes.Join(structures, nil)),
	}))
}

// An old or careless firmware is read as far as it goes.
func TestSMBIOSOddities(t *testing.T) {
	t.Parallel()
	system := structure(1, 27, map[int][]byte{4: {1}, 7: {2}}, "Vendor", "SN1")
	board := func(name string) []byte { return structure(2, 8, map[int][]byte{5: {1}}, name) }
	withUUID := func(id string) []byte { return structure(1, 27, map[int][]byte{4: {1}, 8: []byte(id)}, "Vendor") }
	const left = "SMBIOS structures that make no sense were left out: 1"
	for _, test := range []struct {
		name       string
		structures [][]byte
		want       *agentv1.System
		warning    string
	}{
		{
			"system information of SMBIOS 2.0",
			[][]byte{structure(1, 8, map[int][]byte{4: {1}, 5: {2}, 7: {3}}, "Vendor", "Old", "SN0")},
			&agentv1.System{Vendor: "Vendor", Product: "Old", Serial: "SN0"}, "",
		},
		{
			"a structure that is shorter than its header",
			[][]byte{structure(3, 4, nil, "x")[:1], {2, 0, 0, 'x', 0, 0}, system, structure(127, 4, nil)},
			&agentv1.System{Vendor: "Vendor", Serial: "SN1"}, left,
		},
		{"a structure that ends behind the table", [][]byte{system, {2, 200, 0, 0, 0, 0}}, &agentv1.System{Vendor: "Vendor", Serial: "SN1"}, left},
		{"strings that do not end", [][]byte{system, {2, 8, 0, 0, 1, 1, 0, 0, 'B'}}, &agentv1.System{Vendor: "Vendor", Serial: "SN1"}, left},
		{"four zeros behind a structure without strings", [][]byte{structure(3, 9, nil), {0, 0}, system}, &agentv1.System{Vendor: "Vendor", Serial: "SN1"}, ""},
		{"zeros to the end", [][]byte{system, make([]byte, 999)}, &agentv1.System{Vendor: "Vendor", Serial: "SN1"}, ""},
		{"the boards of a chassis", [][]byte{board("Main"), board("Riser"), board("Fan")}, &agentv1.System{BoardProduct: "Main"}, ""},
		{"a string with a bad number", [][]byte{structure(1, 8, map[int][]byte{4: {9}, 5: {1}}, "P")}, &agentv1.System{Product: "P"}, ""},
		{"a form that nobody filled in", [][]byte{structure(1, 8, map[int][]byte{4: {1}, 5: {2}}, "To Be Filled By O.E.M.", "P")}, &agentv1.System{Product: "P"}, ""},
		{"a UUID of zeros", [][]byte{withUUID(strings.Repeat("\x00", 16))}, &agentv1.System{Vendor: "Vendor"}, ""},
		{"a UUID of ones", [][]byte{withUUID(strings.Repeat("\xff", 16))}, &agentv1.System{Vendor: "Vendor"}, ""},
		{"what follows the end is not there", [][]byte{structure(127, 4, nil), system}, &agentv1.System{}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			report := withTables(t, test.structures...)
			got := report.GetSystem()
			got.Architecture = ""
			if !proto.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			if warned := slices.Contains(report.GetWarnings(), test.warning); warned != (test.warning != "") {
				t.Errorf("warnings: %q", report.GetWarnings())
			}
		})
	}
}

func TestMemoryModules(t *testing.T) {
	t.Parallel()
	device := func(kind byte, fields map[int][]byte) []byte {
		all := map[int][]byte{0x0C: le16(16 << 10), 0x10: {1}, 0x12: {kind}}
		maps.Copy(all, fields)
		return structure(17, 92, all, "A1")
	}
	for name, test := range map[string]struct {
		structure []byte
		want      *agentv1.MemoryModule
	}{
		"DRAM":            {device(0x03, nil), &agentv1.MemoryModule{Type: "DRAM", SizeBytes: 16 << 30}},
		"MRDIMM":          {device(0x25, map[int][]byte{0x15: le16(8800)}), &agentv1.MemoryModule{Type: "MRDIMM", SizeBytes: 16 << 30, SpeedMts: 8800}},
		"of a later time": {device(0x77, nil), &agentv1.MemoryModule{SizeBytes: 16 << 30}},
		"slower than it could be": {
			device(0x1A, map[int][]byte{0x15: le16(3200), 0x20: le16(2666)}),
			&agentv1.MemoryModule{Type: "DDR4", SizeBytes: 16 << 30, SpeedMts: 3200, ConfiguredSpeedMts: 2666},
		},
		"faster than 16 bits": {
			device(0x22, map[int][]byte{0x15: le16(0xFFFF), 0x54: le32(70000), 0x20: le16(0xFFFF), 0x58: le32(66000)}),
			&agentv1.MemoryModule{Type: "DDR5", SizeBytes: 16 << 30, SpeedMts: 70000, ConfiguredSpeedMts: 66000},
		},
		"in KiB":             {device(0x12, map[int][]byte{0x0C: le16(0x8200)}), &agentv1.MemoryModule{Type: "DDR", SizeBytes: 512 << 10}},
		"of SMBIOS 2.1":      {structure(17, 0x15, map[int][]byte{0x0C: le16(64), 0x10: {1}, 0x12: {0x0F}}, "A1"), &agentv1.MemoryModule{Type: "SDRAM", SizeBytes: 64 << 20}},
		"an empty slot":      {device(0x1A, map[int][]byte{0x0C: {0, 0}}), nil},
		"of unknown size":    {device(0x1A, map[int][]byte{0x0C: {0xFF, 0xFF}}), nil},
		"flash of firmware":  {device(0x09, nil), nil},
		"EEPROM of firmware": {device(0x0A, nil), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			memory := withTables(t, test.structure).GetMemory()
			if test.want == nil {
				if len(memory.GetModules()) != 0 || memory.GetInstalledBytes() != 0 {
					t.Errorf("got %v", memory)
				}
				return
			}
			test.want.Locator = "A1"
			if len(memory.GetModules()) != 1 || !proto.Equal(memory.GetModules()[0], test.want) || memory.GetInstalledBytes() != test.want.GetSizeBytes() {
				t.Errorf("got %v, want %v", memory, test.want)
			}
		})
	}
}

// The version decides in which order a UUID's bytes stand.
func TestSMBIOSVersions(t *testing.T) {
	t.Parallel()
	table := structure(1, 25, map[int][]byte{8: {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}})
	const plain, swapped = "00010203-0405-0607-0809-0a0b0c0d0e0f", "03020100-0504-0706-0809-0a0b0c0d0e0f"
	for entry, want := range map[string]string{
		entryPoint:                  swapped,
		"_SM_\x00\x1f\x02\x06":      swapped,
		"_SM_\x00\x1f\x02\x05":      plain,
		"_SM_\x00\x1f\x02\x33":      swapped,
		"_SM_\x00\x1f\x02\x21":      plain,
		"_DMI_\x0012345678\x20":     plain,
		"_DMI_\x0012345678\x26":     swapped,
		"_DMI_\x00short":            "",
		"something else altogether": "",
	} {
		tables, err := decodeSMBIOS([]byte(entry), table)
		if (err != nil) != (want == "") {
			t.Errorf("%q: %v", entry, err)
		}
		if err == nil && tables.uuid() != want {
			t.Errorf("%q: %s", entry, tables.uuid())
		}
	}
}

// A part that fails costs itself, and says so.
func TestPartThatPanics(t *testing.T) {
	t.Parallel()
	broken := part{"gizmos", func(*probe, *agentv1.HardwareReport) { panic("index out of range") }}
	report := collect(&probe{root: tree(t, server())}, slices.Insert(slices.Clone(parts), 2, broken))
	if got := report.GetWarnings(); len(got) != 1 || got[0] != "the gizmos cannot be read because of a fault in the agent: index out of range" {
		t.Errorf("warnings: %q", got)
	}
	if report.GetSystem().GetVendor() == "" || len(report.GetCpus()) != 2 || len(report.GetNetworkInterfaces()) != 2 {
		t.Errorf("other parts are missing: %v", report)
	}
}

// Disks that cannot be read for an install end that install, and not the agent.
func TestDisksThatPanic(t *testing.T) {
	t.Parallel()
	list, err := disks(func() []*agentv1.BlockDevice { panic("index\nout of range") })
	if list != nil || err == nil || err.Error() != "the disks cannot be read because of a fault in the agent: indexout of range" {
		t.Errorf("%v, %v", list, err)
	}
	if list, err := Disks(tree(t, server())); len(list) == 0 || err != nil {
		t.Errorf("%v, %v", list, err)
	}
}

func FuzzSMBIOS(f *testing.F) {
	f.Add([]byte(entryPoint), smbiosTable())
	f.Add([]byte("_SM_1234"), smbiosTable()[:50])
	f.Add([]byte(entryPoint), bytes.Repeat([]byte{17, 4, 0, 0, 0, 0}, 10))
	f.Add([]byte("_DMI_123456789\x20"), structure(1, 8, map[int][]byte{4: {1}}, "Vendor"))
	root := tree(f, map[string]string{"proc/cpuinfo": "processor : 0\n"})
	f.Fuzz(func(t *testing.T, entry, table []byte) {
		tables, err := decodeSMBIOS(entry, table)
		if err != nil {
			return
		}
		p := &probe{root: root, tables: tables}
		report := &agentv1.HardwareReport{System: p.system(tables), Cpus: p.cpus(tables), Memory: p.memory(tables)}
		if _, err := proto.Marshal(report); err != nil {
			t.Error(err)
		}
	})
}
