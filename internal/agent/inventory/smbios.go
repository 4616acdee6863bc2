package inventory

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"strings"
)

// maxTables bounds what is read of the SMBIOS tables; real ones have a few KiB.
const maxTables = 1 << 20

// Types of SMBIOS structures (SMBIOS 3.9, section 7).
const (
	smbiosFirmware  = 0
	smbiosSystem    = 1
	smbiosBoard     = 2
	smbiosChassis   = 3
	smbiosProcessor = 4
	smbiosMemory    = 17
	smbiosIPMI      = 38
	smbiosEnd       = 127
)

// smbiosTables are the structures of a machine, in order. Nil stands for none.
type smbiosTables struct {
	major, minor int
	structures   []smbiosStructure
	// damaged counts the structures that make no sense. They are left out.
	damaged int
}

// smbiosStructure is one of them. A field that its firmware does not have reads as zero: older
// versions of SMBIOS have shorter structures. So does every field of nil.
type smbiosStructure struct {
	// formatted is the structure without its strings, from its type on.
	formatted []byte
	strings   [][]byte
}

// smbios returns the machine's SMBIOS tables, or nil with a warning.
func (p *probe) smbios() *smbiosTables {
	entry, err := p.read(64, "sys/firmware/dmi/tables/smbios_entry_point")
	if err == nil {
		var data []byte
		if data, err = p.read(maxTables, "sys/firmware/dmi/tables/DMI"); err == nil {
			var tables *smbiosTables
			if tables, err = decodeSMBIOS(entry, data); err == nil {
				if tables.damaged > 0 {
					p.warn("SMBIOS structures that make no sense were left out: %d", tables.damaged)
				}
				return tables
			}
		}
	}
	switch {
	case !errors.Is(err, fs.ErrNotExist):
		p.warn("SMBIOS cannot be read: %s", reason(err))
	case !p.exists("sys/class/dmi/id"):
		p.warn("this machine has no SMBIOS")
	default:
		p.warn("the SMBIOS tables are not there: memory modules are unknown")
	}
	return nil
}

// decodeSMBIOS reads the table under the version that its entry point names (SMBIOS 3.9, sections
// 5.2.1 and 5.2.2; SMBIOS 2.0 has an entry point of 15 bytes, with the version in decimal digits).
func decodeSMBIOS(entry, table []byte) (*smbiosTables, error) {
	tables := new(smbiosTables)
	switch {
	case bytes.HasPrefix(entry, []byte("_SM3_")) && len(entry) >= 9:
		tables.major, tables.minor = int(entry[7]), int(entry[8])
	case bytes.HasPrefix(entry, []byte("_SM_")) && len(entry) >= 8:
		tables.major, tables.minor = int(entry[6]), int(entry[7])
		switch tables.minor { // as firmware says that means 2.3 and 2.6
		case 0x1F, 0x21:
			tables.minor = 3
		case 0x33:
			tables.minor = 6
		}
	case bytes.HasPrefix(entry, []byte("_DMI_")) && len(entry) >= 15:
		tables.major, tables.minor = int(entry[14]>>4), int(entry[14]&0x0F)
	default:
		return nil, errors.New("the entry point has an unknown form")
	}
	tables.split(table)
	return tables, nil
}

// split cuts the table into structures (SMBIOS 3.9, section 6.1). Each has its length without
// strings in its second byte; two zero bytes end the strings. A structure that makes no sense is
// left out, and the next one is looked for behind the next two zero bytes.
func (t *smbiosTables) split(data []byte) {
	const header = 4
	for len(data) >= header {
		if data[0] == 0 && data[1] == 0 { // padding: no structure begins so
			data = data[2:]
			continue
		}
		if data[0] == smbiosEnd {
			return
		}
		length := int(data[1])
		if length > len(data) {
			t.damaged++
			return
		}
		end := bytes.Index(data[max(length, header):], []byte{0, 0})
		if end < 0 {
			t.damaged++
			return
		}
		end += max(length, header)
		if length < header {
			t.damaged++
		} else {
			t.structures = append(t.structures, smbiosStructure{formatted: data[:length], strings: bytes.Split(data[length:end], []byte{0})})
		}
		data = data[end+2:]
	}
}

// all returns the structures of a type.
func (t *smbiosTables) all(kind byte) []*smbiosStructure {
	if t == nil {
		return nil
	}
	var list []*smbiosStructure
	for i, structure := range t.structures {
		if structure.formatted[0] == kind {
			list = append(list, &t.structures[i])
		}
	}
	return list
}

// first returns the first structure of a type, which is what the kernel and dmidecode show of
// several; nil when there is none.
func (t *smbiosTables) first(kind byte) *smbiosStructure {
	if list := t.all(kind); len(list) > 0 {
		return list[0]
	}
	return nil
}

// field returns the bytes of a field; zeros when the structure ends before them.
func (s *smbiosStructure) field(offset, size int) []byte {
	if s == nil || offset+size > len(s.formatted) {
		return make([]byte, size)
	}
	return s.formatted[offset:][:size]
}

func (s *smbiosStructure) byte(offset int) byte { return s.field(offset, 1)[0] }
func (s *smbiosStructure) word(offset int) uint16 {
	return binary.LittleEndian.Uint16(s.field(offset, 2))
}

func (s *smbiosStructure) dword(offset int) uint32 {
	return binary.LittleEndian.Uint32(s.field(offset, 4))
}

// text returns the string whose number the field holds; "" when there is none, or when it is the
// form that nobody has filled in.
func (s *smbiosStructure) text(offset int) string {
	number := int(s.byte(offset))
	if number == 0 || number > len(s.strings) {
		return ""
	}
	text := clean(string(s.strings[number-1]))
	if strings.EqualFold(text, "To be filled by O.E.M.") {
		return ""
	}
	return text
}

// uuid returns the UUID of a machine (SMBIOS 3.9, section 7.2.1): its first three fields are
// little-endian since SMBIOS 2.6. All zeros or all ones mean that there is none.
func (t *smbiosTables) uuid() string {
	id := bytes.Clone(t.first(smbiosSystem).field(8, 16))
	if bytes.Equal(id, bytes.Repeat(id[:1], 16)) && (id[0] == 0 || id[0] == 0xFF) {
		return ""
	}
	if t.major > 2 || t.major == 2 && t.minor >= 6 {
		id[0], id[1], id[2], id[3] = id[3], id[2], id[1], id[0]
		id[4], id[5] = id[5], id[4]
		id[6], id[7] = id[7], id[6]
	}
	text := hex.EncodeToString(id)
	return strings.Join([]string{text[:8], text[8:12], text[12:16], text[16:20], text[20:]}, "-")
}
