package hardware

import (
	"encoding/binary"
	"fmt"
)

// SMBIOS structure types (DMTF DSP0134).
const (
	smbiosBIOS      = 0
	smbiosSystem    = 1
	smbiosBoard     = 2
	smbiosChassis   = 3
	smbiosProcessor = 4
	smbiosMemArray  = 16
	smbiosMemDevice = 17
	smbiosEnd       = 127
)

// structure is an SMBIOS structure under construction: its formatted area and its strings.
type structure struct {
	data    []byte
	strings []string
}

func newStructure(kind byte, handle uint16, length int) *structure {
	s := &structure{data: make([]byte, length)}
	s.data[0], s.data[1] = kind, byte(length)
	binary.LittleEndian.PutUint16(s.data[2:], handle)
	return s
}

func (s *structure) str(offset int, text string) {
	if text != "" {
		s.strings = append(s.strings, text)
		s.data[offset] = byte(len(s.strings))
	}
}

func (s *structure) byte(offset int, v byte)   { s.data[offset] = v }
func (s *structure) word(offset int, v uint16) { binary.LittleEndian.PutUint16(s.data[offset:], v) }

func (s *structure) dword(offset int, v uint32) { binary.LittleEndian.PutUint32(s.data[offset:], v) }
func (s *structure) copy(offset int, v []byte)  { copy(s.data[offset:], v) }
func (s *structure) append(table []byte) []byte {
	table = append(table, s.data...)
	for _, text := range s.strings {
		table = append(append(table, text...), 0)
	}
	if len(s.strings) == 0 {
		table = append(table, 0)
	}
	return append(table, 0)
}

// smbios returns the machine's structure table and the 64-bit entry point that describes it (SMBIOS
// 3.2).
func (m Machine) smbios() (table, entry []byte) {
	table = m.smbiosBIOS().append(table)
	table = m.smbiosSystem().append(table)
	table = m.smbiosBoard().append(table)
	table = m.smbiosChassis().append(table)
	for socket := range m.Model.Sockets {
		table = m.smbiosProcessor(socket).append(table)
	}
	table = m.smbiosMemArray().append(table)
	for slot := range m.dimms {
		table = m.smbiosMemDevice(slot).append(table)
	}
	table = newStructure(smbiosEnd, 0x7f00, 4).append(table)

	entry = make([]byte, 24)
	copy(entry, "_SM3_")
	entry[6], entry[7], entry[8], entry[10] = 24, 3, 2, 1
	binary.LittleEndian.PutUint32(entry[12:], uint32(len(table)))
	binary.LittleEndian.PutUint64(entry[16:], 0x6f000000)
	var sum byte
	for _, b := range entry {
		sum += b
	}
	entry[5] = -sum
	return table, entry
}

func (m Machine) smbiosBIOS() *structure {
	s := newStructure(smbiosBIOS, 0x0000, 26)
	s.str(4, m.Model.FirmwareVendor)
	s.str(5, m.Model.FirmwareVersion)
	s.word(6, 0xf000)
	s.str(8, m.Model.FirmwareDate)
	s.byte(9, 0xff)
	s.copy(10, []byte{0x80, 0x98, 0x0b, 0, 0, 0, 0, 0})
	s.byte(18, 0x03)
	if m.Model.EFI {
		s.byte(19, 0x0d) // boots through UEFI
	} else {
		s.byte(19, 0x05)
	}
	s.copy(20, []byte{0xff, 0xff, 0xff, 0xff})
	return s
}

// uuidLE is the UUID with its first three fields in little-endian order, as SMBIOS 2.6 and later
// keep it.
func (m Machine) uuidLE() []byte {
	u := m.UUID
	return append([]byte{u[3], u[2], u[1], u[0], u[5], u[4], u[7], u[6]}, u[8:]...)
}

func (m Machine) smbiosSystem() *structure {
	s := newStructure(smbiosSystem, 0x0100, 27)
	s.str(4, m.Model.Vendor)
	s.str(5, m.Model.Product)
	s.str(7, m.Serial)
	s.copy(8, m.uuidLE())
	s.byte(24, 6) // woken by the power switch
	s.str(26, m.Model.Plan)
	return s
}

func (m Machine) smbiosBoard() *structure {
	s := newStructure(smbiosBoard, 0x0200, 15)
	s.str(4, m.Model.Vendor)
	s.str(5, m.Model.Board)
	s.str(7, m.boardSerial())
	s.byte(9, 0x09)
	s.word(11, 0x0300)
	s.byte(13, 10)
	return s
}

func (m Machine) boardSerial() string { return "." + m.Serial + ".MB" }

func (m Machine) smbiosChassis() *structure {
	s := newStructure(smbiosChassis, 0x0300, 21)
	s.str(4, m.Model.Vendor)
	s.byte(5, 0x17) // rack mount
	s.str(7, m.Serial)
	s.copy(9, []byte{3, 3, 3, 3})
	return s
}

func (m Machine) smbiosProcessor(socket int) *structure {
	cpu := m.Model.CPU
	s := newStructure(smbiosProcessor, 0x0400+uint16(socket), 48)
	s.str(4, fmt.Sprintf("CPU%d", socket+1))
	s.byte(5, 3)
	s.byte(6, 0xb3)
	s.str(7, cpu.Vendor)
	s.str(16, cpu.Name)
	s.word(18, 100)
	s.word(20, uint16(cpu.MHz))
	s.word(22, uint16(cpu.MHz))
	s.byte(24, 0x41)
	s.byte(35, byte(cpu.Cores))
	s.byte(36, byte(cpu.Cores))
	s.byte(37, byte(cpu.Threads))
	s.word(38, 0xfc)
	s.word(40, 0x01)
	s.word(42, uint16(cpu.Cores))
	s.word(44, uint16(cpu.Cores))
	s.word(46, uint16(cpu.Threads))
	return s
}

func (m Machine) smbiosMemArray() *structure {
	s := newStructure(smbiosMemArray, 0x1000, 23)
	s.copy(4, []byte{3, 3, 6}) // on the board, system memory, multi-bit ECC
	s.dword(7, 0x80000000)
	s.word(11, 0xfffe)
	s.word(13, uint16(len(m.dimms)))
	return s
}

func (m Machine) smbiosMemDevice(slot int) *structure {
	dimm := m.Model.DIMM
	s := newStructure(smbiosMemDevice, 0x1100+uint16(slot), 40)
	s.word(4, 0x1000)
	s.word(6, 0xfffe)
	s.word(8, 72)
	s.word(10, 64)
	if dimm.SizeMiB < 0x7fff {
		s.word(12, uint16(dimm.SizeMiB))
	} else {
		s.word(12, 0x7fff)
		s.dword(28, uint32(dimm.SizeMiB))
	}
	s.byte(14, 9) // DIMM
	s.str(16, fmt.Sprintf("DIMM_%c1", 'A'+slot))
	s.str(17, fmt.Sprintf("NODE 0 CHANNEL %d", slot))
	s.byte(18, dimm.Type)
	s.word(19, 0x2080)
	s.word(21, uint16(dimm.SpeedMTs))
	s.str(23, dimm.Vendor)
	s.str(24, m.dimms[slot])
	s.str(26, dimm.Part)
	s.byte(27, 2)
	s.word(32, uint16(dimm.SpeedMTs))
	return s
}
