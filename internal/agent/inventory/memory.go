package inventory

import (
	"bytes"
	"strconv"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// memory describes the memory: the modules by SMBIOS, what is usable by the kernel.
func (p *probe) memory(tables *smbiosTables) *agentv1.Memory {
	memory := new(agentv1.Memory)
	data, err := p.read(64<<10, "proc/meminfo")
	if err != nil {
		p.warn("/proc/meminfo cannot be read: %s", reason(err))
	} else if memory.UsableBytes = parseMemTotal(data); memory.UsableBytes == 0 {
		p.warn("/proc/meminfo does not say how much memory there is")
	}
	memory.Modules = modules(tables)
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

const nodeDir = "sys/devices/system/node"

// numaNodes lists the groups of threads and the memory near to them; a kernel without NUMA has
// none.
func (p *probe) numaNodes() []*agentv1.NumaNode {
	if !p.exists(nodeDir) {
		return nil
	}
	var list []*agentv1.NumaNode
	for _, name := range p.names("NUMA nodes", nodeDir) {
		digits, ok := strings.CutPrefix(name, "node")
		number := parseInt32(digits)
		if !ok || number < 0 || len(list) == maxDevices {
			continue
		}
		node := &agentv1.NumaNode{Node: number, Cpus: formatList(p.list(nodeDir, name, "cpulist"))}
		if data, err := p.read(64<<10, nodeDir, name, "meminfo"); err == nil {
			node.MemoryBytes = parseMemTotal(bytes.ReplaceAll(data, []byte("Node "+digits+" "), nil))
		}
		list = append(list, node)
	}
	return list
}

// moduleTypes are the types of memory devices that hold what runs (SMBIOS 3.9, section 7.18.2).
var moduleTypes = [...]string{
	0x03: "DRAM", 0x04: "EDRAM", 0x06: "SRAM", 0x07: "RAM", 0x0D: "CDRAM", 0x0E: "3DRAM", 0x0F: "SDRAM", 0x10: "SGRAM", 0x11: "RDRAM",
	0x12: "DDR", 0x13: "DDR2", 0x14: "DDR2 FB-DIMM", 0x18: "DDR3", 0x19: "FBD2", 0x1A: "DDR4", 0x1B: "LPDDR", 0x1C: "LPDDR2",
	0x1D: "LPDDR3", 0x1E: "LPDDR4", 0x1F: "NVDIMM", 0x20: "HBM", 0x21: "HBM2", 0x22: "DDR5", 0x23: "LPDDR5", 0x24: "HBM3", 0x25: "MRDIMM",
}

func moduleType(kind byte) string {
	if int(kind) < len(moduleTypes) {
		return moduleTypes[kind]
	}
	return ""
}

// holdsFirmware tells of ROM, flash and its forerunners, which some tables list among the modules.
func holdsFirmware(kind byte) bool { return 0x08 <= kind && kind <= 0x0C }

// modules lists the populated memory devices (SMBIOS 3.9, section 7.18).
func modules(tables *smbiosTables) []*agentv1.MemoryModule {
	var list []*agentv1.MemoryModule
	for _, device := range tables.all(smbiosMemory) {
		size := moduleSize(device.word(0x0C), device.dword(0x1C))
		if size == 0 || holdsFirmware(device.byte(0x12)) || len(list) == maxDevices {
			continue
		}
		list = append(list, &agentv1.MemoryModule{
			Locator:    device.text(0x10),
			Vendor:     device.text(0x17),
			Serial:     device.text(0x18),
			PartNumber: device.text(0x1A),
			SizeBytes:  size,
			SpeedMts:   moduleSpeed(device.word(0x15), device.dword(0x54)),
			Type:       moduleType(device.byte(0x12)),

			ConfiguredSpeedMts: moduleSpeed(device.word(0x20), device.dword(0x58)),
		})
	}
	return list
}

// moduleSpeed returns a speed in MT/s; 0 when it is unknown. What does not fit in 16 bits is in the
// extended field.
func moduleSpeed(speed uint16, extended uint32) int32 {
	if speed == 0xFFFF {
		return int32(extended &^ (1 << 31))
	}
	return int32(speed)
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
