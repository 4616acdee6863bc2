package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// system describes the machine as a whole.
func (p *probe) system(tables *smbiosTables) *agentv1.System {
	system := &agentv1.System{
		Efi:          p.exists("sys/firmware/efi") || p.exists("ironherd/efi"), // install.EFIMark
		Kernel:       p.text("proc/sys/kernel/osrelease"),
		Architecture: runtime.GOARCH,
		SecureBoot:   p.secureBoot(),
		TpmVersion:   p.tpm(),
	}
	if system.Kernel == "" {
		p.warn("the kernel's release cannot be read")
	}
	if tables == nil {
		const dir = "sys/class/dmi/id"
		system.Vendor, system.Product = p.text(dir, "sys_vendor"), p.text(dir, "product_name")
		system.Serial, system.Uuid = p.text(dir, "product_serial"), p.text(dir, "product_uuid")
		system.ChassisSerial, system.ChassisAssetTag = p.text(dir, "chassis_serial"), p.text(dir, "chassis_asset_tag")
		system.FirmwareVendor, system.FirmwareVersion = p.text(dir, "bios_vendor"), p.text(dir, "bios_version")
		system.FirmwareDate = p.text(dir, "bios_date")
		system.BoardVendor, system.BoardProduct = p.text(dir, "board_vendor"), p.text(dir, "board_name")
		return system
	}
	about, firmware, board := tables.first(smbiosSystem), tables.first(smbiosFirmware), tables.first(smbiosBoard)
	chassis := tables.first(smbiosChassis)
	system.ChassisSerial, system.ChassisAssetTag = chassis.text(7), chassis.text(8)
	system.Vendor, system.Product = about.text(4), about.text(5)
	system.Serial, system.Uuid = about.text(7), tables.uuid()
	system.FirmwareVendor, system.FirmwareVersion = firmware.text(4), firmware.text(5)
	system.FirmwareDate = firmware.text(8)
	system.BoardVendor, system.BoardProduct = board.text(4), board.text(5)
	return system
}

// secureBoot reads the variable of that name (UEFI 2.10, section 3.3): four bytes of attributes,
// then the value.
func (p *probe) secureBoot() agentv1.SecureBoot {
	data, err := p.read(8, "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")
	switch {
	case err != nil || len(data) != 5:
		return agentv1.SecureBoot_SECURE_BOOT_UNSPECIFIED
	case data[4] == 1:
		return agentv1.SecureBoot_SECURE_BOOT_ENABLED
	}
	return agentv1.SecureBoot_SECURE_BOOT_DISABLED
}

// tpm returns the version of the first TPM, "" when there is none.
func (p *probe) tpm() string {
	const dir = "sys/class/tpm/tpm0"
	switch p.text(dir, "tpm_version_major") {
	case "1":
		return "1.2"
	case "2":
		return "2.0"
	}
	switch { // before Linux 5.6
	case strings.Contains(p.text(dir, "device/caps"), "TCG version: 1.2"):
		return "1.2"
	case p.exists(dir):
		return "unknown"
	}
	return ""
}

// bmc describes the controller that the kernel's IPMI driver has found, or else the one that SMBIOS
// tells of (SMBIOS 3.9, section 7.39); nil when neither knows of one. Where ask is not nil, it asks
// the controller for its addresses.
func (p *probe) bmc(tables *smbiosTables, ask ipmiAsk) *agentv1.Bmc {
	var bmc *agentv1.Bmc
	if device := tables.first(smbiosIPMI); device != nil {
		bmc = new(agentv1.Bmc)
		if version := device.byte(5); version != 0 {
			bmc.IpmiVersion = fmt.Sprintf("%d.%d", version>>4, version&0x0F)
		}
	}
	const dir = "sys/class/ipmi/ipmi0"
	known := p.exists(dir)
	if bmc == nil && (known || ask != nil) {
		bmc = new(agentv1.Bmc)
	}
	if ask != nil {
		lan, err := bmcLAN(ask)
		if err != nil {
			p.warn("the BMC cannot be asked: %s", reason(err))
			return bmc // the files below would make the kernel ask it, which has more patience
		}
		bmc.Address, bmc.Ipv6Addresses, bmc.Mac = lan.GetAddress(), lan.GetIpv6Addresses(), lan.GetMac()
	}
	if known {
		bmc.IpmiVersion = cmp.Or(p.text(dir, "device/bmc/ipmi_version"), bmc.GetIpmiVersion())
		bmc.FirmwareVersion = p.text(dir, "device/bmc/firmware_revision")
		bmc.ManufacturerId, bmc.ProductId = p.text(dir, "device/bmc/manufacturer_id"), p.text(dir, "device/bmc/product_id")
	}
	return bmc
}

// askedBMC describes the controller, and asks it if it is this machine's own.
func (p *probe) askedBMC(tables *smbiosTables) *agentv1.Bmc {
	if !p.live {
		return p.bmc(tables, nil)
	}
	device, err := openIPMI()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			p.warn("the BMC cannot be asked: %s", reason(err))
		}
		return p.bmc(tables, nil)
	}
	defer func() { _ = device.file.Close() }()
	return p.bmc(tables, device.ask)
}
