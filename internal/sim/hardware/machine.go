package hardware

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"
)

// Machine is one machine: its model and whatever is its own.
type Machine struct {
	Slot   int
	Model  *Model
	Serial string
	UUID   uuid.UUID
	Disks  []Disk
	NICs   []NIC
	dimms  []string // serial numbers
}

// Disk is one drive of a machine.
type Disk struct {
	DiskModel
	// Name is the kernel's name; the drive's contents are the file dev/<name> below the machine's
	// directory.
	Name   string
	Serial string
	WWN    string
}

// NIC is one port of a network card.
type NIC struct {
	Name string
	MAC  string
}

// New returns the machine in a slot of a world.
func New(seed uint64, slot int) Machine {
	var key [32]byte
	digest := sha256.Sum256(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64([]byte("hardware"), seed), uint64(slot)))
	copy(key[:], digest[:])
	random := rand.New(rand.NewChaCha8(key))

	model := models[random.IntN(len(models))]
	m := Machine{Slot: slot, Model: model, Serial: fmt.Sprintf("%s%09d", model.SerialPrefix, random.IntN(1e9))}
	for i := range m.UUID {
		m.UUID[i] = byte(random.Uint32())
	}
	m.UUID[6], m.UUID[8] = m.UUID[6]&0x0f|0x40, m.UUID[8]&0x3f|0x80
	scsi, nvme := 0, 0
	for _, d := range model.Disks {
		disk := Disk{DiskModel: d}
		if d.NVMe {
			disk.Name = fmt.Sprintf("nvme%dn1", nvme)
			disk.Serial = fmt.Sprintf("%012X", random.Uint64()&0xffffffffffff)
			disk.WWN = fmt.Sprintf("eui.%016x", random.Uint64()|1)
			nvme++
		} else {
			disk.Name = "sd" + string(rune('a'+scsi))
			disk.Serial = fmt.Sprintf("%010X", random.Uint64()&0xffffffffff)
			disk.WWN = fmt.Sprintf("naa.5%015x", random.Uint64()&0xfffffffffffffff)
			scsi++
		}
		m.Disks = append(m.Disks, disk)
	}
	base := random.Uint32() & 0xfffffe
	for i := range 2 {
		n := base + uint32(i)
		m.NICs = append(m.NICs, NIC{
			Name: fmt.Sprintf("eno%d", i+1),
			MAC:  fmt.Sprintf("%s:%02x:%02x:%02x", model.MACPrefix, byte(n>>16), byte(n>>8), byte(n)),
		})
	}
	for range model.DIMMs {
		m.dimms = append(m.dimms, fmt.Sprintf("%08X", random.Uint32()))
	}
	return m
}
