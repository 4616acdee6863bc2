package inventory

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/siderolabs/go-smbios/smbios"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// memory describes the memory: the modules by SMBIOS, what is usable by the kernel.
func (p *probe) memory(tables *smbios.SMBIOS) *agentv1.Memory {
	memory := new(agentv1.Memory)
	data, err := p.read(64<<10, "proc/meminfo")
	if err != nil {
		p.warn("/proc/meminfo cannot be read: %s", reason(err))
	} else if memory.UsableBytes = parseMemTotal(data); memory.UsableBytes == 0 {
		p.warn("/proc/meminfo does not say how much memory there is")
	}
	if tables != nil {
		memory.Modules = modules(tables)
	}
	for _, module := range memory.GetModules() {
		memory.InstalledBytes += module.GetSizeBytes()
	}
	return memory
}

// parseMemTotal returns the line "MemTotal: N kB" of /proc/meminfo in bytes, or 0.
func parseMemTotal(data []byte) int64 {
	for line := range bytes.Lines(data) {
		rest, ok := bytes.CutPrefix(line, []byte("MemTotal:"))
		if !ok {
			continue
		}
		fields := strings.Fields(string(rest))
		if len(fields) != 2 || fields[1] != "kB" {
			return 0
		}
		kibibytes, err := strconv.ParseInt(fields[0], 10, 53)
		if err != nil || kibibytes < 0 {
			return 0
		}
		return kibibytes << 10
	}
	return 0
}

// moduleTypes are the types of memory devices that are still built (SMBIOS 3.9, section 7.18.2).
var moduleTypes = map[byte]string{
	0x12: "DDR", 0x13: "DDR2", 0x14: "DDR2 FB-DIMM", 0x18: "DDR3", 0x19: "FBD2", 0x1A: "DDR4", 0x1B: "LPDDR", 0x1C: "LPDDR2",
	0x1D: "LPDDR3", 0x1E: "LPDDR4", 0x1F: "NVDIMM", 0x20: "HBM", 0x21: "HBM2", 0x22: "DDR5", 0x23: "LPDDR5", 0x24: "HBM3",
	0x07: "RAM", 0x0F: "SDRAM",
}

// modules lists the populated memory devices: SMBIOS structures of type 17 (SMBIOS 3.9, section
// 7.18). The fields are read here, because the library cuts extended sizes off at 16 bits and
// counts the types wrongly.
func modules(tables *smbios.SMBIOS) []*agentv1.MemoryModule {
	var list []*agentv1.MemoryModule
	for _, structure := range tables.Structures {
		if structure.Header.Type != 17 || len(list) == maxDevices {
			continue
		}
		size := moduleSize(smbios.GetWord(structure, 0x0C), smbios.GetDWord(structure, 0x1C))
		if size == 0 {
			continue
		}
		speed := int32(smbios.GetWord(structure, 0x15))
		if speed == 0xFFFF {
			speed = int32(smbios.GetDWord(structure, 0x54) &^ (1 << 31))
		}
		list = append(list, &agentv1.MemoryModule{
			Locator:    clean(smbios.GetStringOrEmpty(structure, 0x10)),
			Vendor:     clean(smbios.GetStringOrEmpty(structure, 0x17)),
			Serial:     clean(smbios.GetStringOrEmpty(structure, 0x18)),
			PartNumber: clean(smbios.GetStringOrEmpty(structure, 0x1A)),
			SizeBytes:  size,
			SpeedMts:   speed,
			Type:       moduleTypes[smbios.GetByte(structure, 0x12)],
		})
	}
	return list
}

// moduleSize returns a module's size in bytes: 0 when the slot is empty or the size is unknown.
func moduleSize(size uint16, extended uint32) int64 {
	switch {
	case size == 0 || size == 0xFFFF:
		return 0
	case size == 0x7FFF:
		return int64(extended&^(1<<31)) << 20
	case size&0x8000 != 0:
		return int64(size&^0x8000) << 10
	}
	return int64(size) << 20
}
