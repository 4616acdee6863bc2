package inventory

import (
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const netDir = "sys/class/net"

// networkInterfaces lists the interfaces with hardware behind them, and the bonds, VLANs and
// bridges that stand on such.
func (p *probe) networkInterfaces() []*agentv1.NetworkInterface {
	var list []*agentv1.NetworkInterface
	for _, name := range p.names("network interfaces", netDir) {
		dir := filepath.Join(netDir, name)
		if !p.hasHardware(name, maxLayers) {
			continue
		}
		if len(list) == maxDevices {
			p.warn("there are more than %d network interfaces", maxDevices)
			break
		}
		list = append(list, p.networkInterface(name, dir))
	}
	return list
}

// maxLayers is how many interfaces may stand on each other: a bridge on a VLAN on a bond on
// hardware, and twice that.
const maxLayers = 8

// hasHardware tells whether an interface is hardware, or a bond, VLAN or bridge with hardware
// below.
func (p *probe) hasHardware(name string, layers int) bool {
	if p.exists(netDir, name, "device") {
		return true
	}
	if layers == 0 || p.kind(name) == "" {
		return false
	}
	return slices.ContainsFunc(p.lower(name), func(lower string) bool { return p.hasHardware(lower, layers-1) })
}

// kind names what a virtual interface is; "" for hardware and for all other kinds.
func (p *probe) kind(name string) string {
	switch kind := p.uevent("DEVTYPE", netDir, name, "uevent"); {
	case p.exists(netDir, name, "device"):
		return ""
	case kind == "bond" || p.exists(netDir, name, "bonding"):
		return "bond"
	case kind == "vlan" || p.exists("proc/net/vlan", name):
		return "vlan"
	case kind == "bridge" || p.exists(netDir, name, "bridge"):
		return "bridge"
	case kind == "team":
		return "team"
	}
	return ""
}

// lower lists the interfaces that a virtual one stands on: the kernel has a link lower_NAME to
// each.
func (p *probe) lower(name string) []string {
	entries, _ := os.ReadDir(p.path(netDir, name))
	var names []string
	for _, entry := range entries {
		if lower, ok := strings.CutPrefix(entry.Name(), "lower_"); ok && len(names) < maxDevices {
			names = append(names, clean(lower))
		}
	}
	slices.SortFunc(names, compareNatural)
	return names
}

func (p *probe) networkInterface(name, dir string) *agentv1.NetworkInterface {
	nic := &agentv1.NetworkInterface{
		Name:   clean(name),
		Kind:   p.kind(name),
		Mac:    p.text(dir, "bonding_slave/perm_hwaddr"), // of a slave, address is that of the bond
		Driver: p.link("DRIVER", dir, "device/driver"),
		Link:   p.flag(dir, "carrier"),
		Mtu:    int32(p.number(dir, "mtu")),
		BusId:  p.link("PCI_SLOT_NAME", dir, "device"),
	}
	nic.PermanentMac = nic.GetMac()
	if nic.GetMac() == "" {
		nic.Mac = p.text(dir, "address")
	}
	if nic.GetLink() {
		nic.SpeedMbps = linkSpeed(p.number(dir, "speed"))
	}
	if nic.GetKind() != "" {
		nic.Lower = p.lower(name)
	}
	if p.live {
		nic.Addresses = p.addresses(name)
		if nic.GetKind() == "" {
			askDriver(nic)
		}
	}
	return nic
}

// linkSpeed returns a speed in Mbit/s; 0 when it is unknown, for which drivers have all ones, in as
// many bits as they like.
func linkSpeed(speed int64) int64 {
	if speed < 0 || speed == math.MaxUint16 || speed >= math.MaxInt32 {
		return 0
	}
	return speed
}

// link returns the last element of what a symbolic link of sysfs points to, or else the value of
// the key in the uevent file of the device.
func (p *probe) link(key, dir, name string) string {
	target, err := filepath.EvalSymlinks(p.path(dir, name))
	if last := filepath.Base(target); err == nil && last != filepath.Base(name) {
		return clean(last)
	}
	return p.uevent(key, dir, "device/uevent")
}

// uevent returns the value of a key in a uevent file.
func (p *probe) uevent(key string, parts ...string) string {
	data, _ := p.read(4<<10, parts...)
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, key+"="); ok {
			return clean(value)
		}
	}
	return ""
}

// addresses asks the kernel for the addresses of an interface.
func (p *probe) addresses(name string) []string {
	nic, err := net.InterfaceByName(name)
	var list []net.Addr
	if err == nil {
		list, err = nic.Addrs()
	}
	if err != nil {
		p.warn("the addresses of %s cannot be read: %s", name, err)
		return nil
	}
	var texts []string
	for _, address := range list {
		texts = append(texts, clean(address.String()))
	}
	slices.Sort(texts)
	if len(texts) > maxDevices {
		texts = texts[:maxDevices]
	}
	return texts
}
