package install

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// seedSize is the size of the partition that holds a NoCloud seed.
const seedSize = 2 * mebibyte

// seed returns a FAT12 file system of seedSize with what cloud-init's NoCloud looks for: a volume
// of the label CIDATA with the files user-data and meta-data, with vendor-data where the install
// brings a host key: cloud-init merges that below what the user wants; and with network-config
// where there is one. The instance ID is another one for each install, so that what is to be done
// once is done once for each. A host name in the user-data counts before that of the meta-data.
func seed(instance, hostName string, userData, networkConfig []byte, hostKey *agentv1.SshHostKey) []byte {
	meta := fmt.Appendf(nil, "instance-id: %s\n", instance)
	if hostName != "" {
		meta = fmt.Appendf(meta, "local-hostname: %q\n", hostName)
	}
	files := []fatFile{{"user-data", userData}, {"meta-data", meta}}
	if hostKey != nil {
		files = append(files, fatFile{"vendor-data", vendorData(hostKey)})
	}
	if len(networkConfig) > 0 {
		files = append(files, fatFile{"network-config", networkConfig})
	}
	return fat12("CIDATA", files)
}

// vendorData gives a system its host key by cloud-init's module for SSH.
func vendorData(key *agentv1.SshHostKey) []byte {
	data := []byte("#cloud-config\nssh_keys:\n  ed25519_private: |\n")
	for line := range strings.Lines(string(key.GetPrivate())) {
		data = append(data, "    "+line...)
	}
	return fmt.Appendf(data, "  ed25519_public: %s\n", key.GetPublic())
}

type fatFile struct {
	name string
	data []byte
}

// Layout of the file system: boot sector, two tables, the root directory, and clusters of 2 KiB,
// which makes 1,021 of them (Microsoft's FAT specification, 1.03).
const (
	fatSector      = 512
	fatCluster     = 4 // sectors
	fatTables      = 2
	fatTableSize   = 3 // sectors: 1.5 bytes for each cluster
	fatRootEntries = 64
	fatRootSize    = fatRootEntries * 32 / fatSector
	fatData        = 1 + fatTables*fatTableSize + fatRootSize // first sector of the clusters
)

// fat12 returns a file system of seedSize with the files in its root directory. Names are longer
// than old ones may be, so each has entries for its long name.
func fat12(label string, files []fatFile) []byte {
	volume := make([]byte, seedSize)
	writeBootSector(volume, label)
	entries := make([]uint16, (seedSize/fatSector-fatData)/fatCluster+2)
	entries[0], entries[1] = 0xff8, 0xfff
	directory := volume[(1+fatTables*fatTableSize)*fatSector : fatData*fatSector]
	copy(directory, shortEntry(fmt.Sprintf("%-11s", label), 0x08, 0, 0))
	at, cluster := 32, uint16(2)
	for i, file := range files {
		short := fmt.Sprintf("FILE%-4d   ", i)
		at += copy(directory[at:], longEntries(file.name, short))
		first := cluster
		for rest := file.data; len(rest) > 0; cluster++ {
			n := copy(volume[(fatData+int(cluster-2)*fatCluster)*fatSector:][:fatCluster*fatSector], rest)
			rest = rest[n:]
			entries[cluster] = cluster + 1
			if len(rest) == 0 {
				entries[cluster] = 0xfff
			}
		}
		if len(file.data) == 0 {
			first = 0
		}
		at += copy(directory[at:], shortEntry(short, 0x20, first, len(file.data)))
	}
	for n := range fatTables {
		pack12(volume[(1+n*fatTableSize)*fatSector:], entries)
	}
	return volume
}

func writeBootSector(volume []byte, label string) {
	b := volume[:fatSector]
	copy(b, "\xeb\x3c\x90IRONHERD")
	binary.LittleEndian.PutUint16(b[11:], fatSector)
	b[13] = fatCluster
	binary.LittleEndian.PutUint16(b[14:], 1)
	b[16] = fatTables
	binary.LittleEndian.PutUint16(b[17:], fatRootEntries)
	binary.LittleEndian.PutUint16(b[19:], seedSize/fatSector)
	b[21] = 0xf8
	binary.LittleEndian.PutUint16(b[22:], fatTableSize)
	binary.LittleEndian.PutUint16(b[24:], 32)
	binary.LittleEndian.PutUint16(b[26:], 64)
	b[36], b[38] = 0x80, 0x29
	copy(b[39:], "SEED")
	copy(b[43:], fmt.Sprintf("%-11s%-8s", label, "FAT12"))
	b[510], b[511] = 0x55, 0xaa
}

// pack12 writes entries of 12 bits, two in three bytes.
func pack12(to []byte, entries []uint16) {
	for i, e := range entries {
		at := i * 3 / 2
		if i%2 == 0 {
			to[at] = byte(e)
			to[at+1] = to[at+1]&0xf0 | byte(e>>8)
		} else {
			to[at] = to[at]&0x0f | byte(e<<4)
			to[at+1] = byte(e >> 4)
		}
	}
}

func shortEntry(name string, attribute byte, cluster uint16, size int) []byte {
	e := make([]byte, 32)
	copy(e, name)
	e[11] = attribute
	const year = 2020
	date := uint16((year-1980)<<9 | int(time.January)<<5 | 1)
	binary.LittleEndian.PutUint16(e[16:], date)
	binary.LittleEndian.PutUint16(e[18:], date)
	binary.LittleEndian.PutUint16(e[24:], date)
	binary.LittleEndian.PutUint16(e[26:], cluster)
	binary.LittleEndian.PutUint32(e[28:], uint32(size))
	return e
}

// longEntries are those that a long name takes, of 13 characters each, the last one first.
func longEntries(name, short string) []byte {
	sum := byte(0)
	for i := range 11 {
		sum = sum>>1 | sum<<7
		sum += short[i]
	}
	const each = 13
	count := (len(name) + each - 1) / each
	entries := make([]byte, 32*count)
	for n := range count {
		e := entries[32*(count-1-n):][:32]
		e[0], e[11], e[13] = byte(n+1), 0x0f, sum
		for i := range each {
			unit := uint16(0xffff)
			switch c := n*each + i; {
			case c < len(name):
				unit = uint16(name[c])
			case c == len(name):
				unit = 0
			}
			at := 1 + 2*i
			if i >= 5 {
				at = 14 + 2*(i-5)
			}
			if i >= 11 {
				at = 28 + 2*(i-11)
			}
			binary.LittleEndian.PutUint16(e[at:], unit)
		}
	}
	entries[0] |= 0x40
	return entries
}

// instanceID names one install of a machine.
func instanceID(machine string, generation int64, attempt int32) string {
	machine = strings.Map(func(r rune) rune {
		if r < '!' || r > '~' {
			return -1
		}
		return r
	}, machine)
	return fmt.Sprintf("%s-%d-%d", machine, generation, attempt)
}
