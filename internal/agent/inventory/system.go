package inventory

import (
	"runtime"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// system describes the machine as a whole.
func (p *probe) system(tables *smbiosTables) *agentv1.System {
	system := &agentv1.System{
		Efi:          p.exists("sys/firmware/efi"),
		Kernel:       p.text("proc/sys/kernel/osrelease"),
		Architecture: runtime.GOARCH,
	}
	if system.Kernel == "" {
		p.warn("the kernel's release cannot be read")
	}
	if tables == nil {
		const dir = "sys/class/dmi/id"
		system.Vendor, system.Product = p.text(dir, "sys_vendor"), p.text(dir, "product_name")
		system.Serial, system.Uuid = p.text(dir, "product_serial"), p.text(dir, "product_uuid")
		system.FirmwareVendor, system.FirmwareVersion = p.text(dir, "bios_vendor"), p.text(dir, "bios_version")
		system.FirmwareDate = p.text(dir, "bios_date")
		system.BoardVendor, system.BoardProduct = p.text(dir, "board_vendor"), p.text(dir, "board_name")
		return system
	}
	about, firmware, board := tables.first(smbiosSystem), tables.first(smbiosFirmware), tables.first(smbiosBoard)
	system.Vendor, system.Product = about.text(4), about.text(5)
	system.Serial, system.Uuid = about.text(7), tables.uuid()
	system.FirmwareVendor, system.FirmwareVersion = firmware.text(4), firmware.text(5)
	system.FirmwareDate = firmware.text(8)
	system.BoardVendor, system.BoardProduct = board.text(4), board.text(5)
	return system
}
