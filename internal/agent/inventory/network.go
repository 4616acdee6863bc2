package inventory

import (
	"net"
	"path/filepath"
	"slices"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const netDir = "sys/class/net"

// networkInterfaces lists the interfaces with hardware behind them.
func (p *probe) networkInterfaces() []*agentv1.NetworkInterface {
	var list []*agentv1.NetworkInterface
	for _, name := range p.names("network interfaces", netDir) {
		dir := filepath.Join(netDir, name)
		if !p.exists(dir, "device") {
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

func (p *probe) networkInterface(name, dir string) *agentv1.NetworkInterface {
	nic := &agentv1.NetworkInterface{
		Name:      clean(name),
		Mac:       p.text(dir, "bonding_slave/perm_hwaddr"), // of a slave, address is that of the bond
		Driver:    p.link("DRIVER", dir, "device/driver"),
		Link:      p.flag(dir, "carrier"),
		SpeedMbps: max(0, p.number(dir, "speed")),
		Mtu:       int32(p.number(dir, "mtu")),
		BusId:     p.link("PCI_SLOT_NAME", dir, "device"),
	}
	if nic.GetMac() == "" {
		nic.Mac = p.text(dir, "address")
	}
	if p.live {
		nic.Addresses = p.addresses(name)
	}
	return nic
}

// link returns the last element of what a symbolic link of sysfs points to, or else the value of
// the key in the uevent file of the device.
func (p *probe) link(key, dir, name string) string {
	target, err := filepath.EvalSymlinks(p.path(dir, name))
	if last := filepath.Base(target); err == nil && last != filepath.Base(name) {
		return clean(last)
	}
	data, _ := p.read(4<<10, dir, "device/uevent")
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
