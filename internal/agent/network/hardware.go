package network

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
)

// isHardware says whether an interface has hardware behind it.
func isHardware(sys, name string) bool {
	_, err := os.Stat(filepath.Join(sys, name, "device"))
	return err == nil
}

// hardware returns the interfaces with hardware behind them.
func hardware() []netlink.Link {
	links, err := netlink.LinkList()
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(links, func(link netlink.Link) bool { return !isHardware(interfaces, link.Attrs().Name) })
}

// whole returns the interfaces with hardware that are no part of another one of them, which has
// their MAC address: the drivers of Hyper-V and of virtio make one of a virtual card and of a
// function of a real one.
func whole(hardware []netlink.Link) []netlink.Link {
	return slices.DeleteFunc(slices.Clone(hardware), func(part netlink.Link) bool {
		return slices.ContainsFunc(hardware, func(link netlink.Link) bool { return link.Attrs().Index == part.Attrs().MasterIndex })
	})
}
