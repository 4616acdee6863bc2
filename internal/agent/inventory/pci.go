package inventory

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const pciDir = "sys/bus/pci/devices"

// pciDevices lists the controllers, graphics and accelerators. Bridges and the like would be most
// of what there is, and virtual functions come and go by the hundred: both are left out.
func (p *probe) pciDevices() []*agentv1.PciDevice {
	if !p.exists(pciDir) {
		return nil
	}
	var list []*agentv1.PciDevice
	addresses := p.names("PCI devices", pciDir)
	slices.Sort(addresses) // hexadecimal digits
	for _, address := range addresses {
		dir := filepath.Join(pciDir, address)
		kind := pciKind(p.text(dir, "class"), p.text(dir, "vendor"), p.text(dir, "device"))
		if kind == "" || p.exists(dir, "physfn") {
			continue
		}
		if len(list) == maxDevices {
			p.warn("there are more than %d PCI devices", maxDevices)
			break
		}
		device := &agentv1.PciDevice{
			Address: clean(address), Kind: kind, Id: p.ids(dir, "vendor", "device"), SubsystemId: p.ids(dir, "subsystem_vendor", "subsystem_device"),
			NumaNode: parseInt32(p.text(dir, "numa_node")), Model: p.graphicsModel(dir, address),
		}
		if target, err := filepath.EvalSymlinks(p.path(dir, "driver")); err == nil {
			device.Driver = clean(filepath.Base(target))
		}
		list = append(list, device)
	}
	return list
}

// ids joins two IDs, such as 8086:1572; "" when either is not there.
func (p *probe) ids(dir, first, second string) string {
	a, okA := strings.CutPrefix(p.text(dir, first), "0x")
	b, okB := strings.CutPrefix(p.text(dir, second), "0x")
	if !okA || !okB {
		return ""
	}
	return a + ":" + b
}

// The makers of GPUs, and the chips of theirs that old BMCs show their pictures with.
var (
	gpuMakers = []string{"0x10de", "0x1002", "0x8086"}
	bmcChips  = []string{"0x1002:0x4752", "0x1002:0x515e", "0x1002:0x5159", "0x1002:0x5969"}
)

// pciKind names the kind of a device by its class code (PCI Code and ID Assignment Specification);
// "" for what is not listed.
func pciKind(class, vendor, device string) string {
	code, err := strconv.ParseUint(strings.TrimPrefix(class, "0x"), 16, 24)
	if err != nil {
		return ""
	}
	switch code >> 16 {
	case 0x01:
		return "storage"
	case 0x02:
		return "network"
	case 0x03:
		if slices.Contains(gpuMakers, vendor) && !slices.Contains(bmcChips, vendor+":"+device) {
			return "gpu"
		}
		return "display"
	case 0x0B:
		return "coprocessor"
	case 0x12:
		if vendor == "0x10de" || vendor == "0x1002" {
			return "gpu"
		}
		return "accelerator"
	}
	return ""
}

// graphicsModel returns the name of a graphics card, where its driver tells it: those of AMD and of
// NVIDIA do.
func (p *probe) graphicsModel(dir, address string) string {
	if name := p.text(dir, "product_name"); name != "" {
		return name
	}
	data, _ := p.read(4<<10, "proc/driver/nvidia/gpus", address, "information")
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "Model:"); ok {
			return clean(value)
		}
	}
	return ""
}
