package inventory

import (
	"bytes"
	"errors"
	"io/fs"
	"runtime"

	"github.com/siderolabs/go-smbios/smbios"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// maxTables bounds what is read of the SMBIOS tables; real ones have a few KiB.
const maxTables = 1 << 20

// smbios returns the decoded SMBIOS tables, or nil with a warning when there is nothing to fall
// back to.
func (p *probe) smbios() *smbios.SMBIOS {
	entry, err := p.read(64, "sys/firmware/dmi/tables/smbios_entry_point")
	if err == nil {
		var data []byte
		if data, err = p.read(maxTables, "sys/firmware/dmi/tables/DMI"); err == nil {
			var tables *smbios.SMBIOS
			if tables, err = decodeSMBIOS(entry, data); err == nil {
				return tables
			}
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		p.warn("SMBIOS cannot be read: %s", reason(err))
	} else if !p.exists("sys/class/dmi/id") {
		p.warn("this machine has no SMBIOS")
	} else {
		p.warn("the SMBIOS tables are not there: memory modules are unknown")
	}
	return nil
}

// decodeSMBIOS decodes the table under the version that its entry point names (SMBIOS 3.9, sections
// 5.2.1 and 5.2.2).
func decodeSMBIOS(entry, table []byte) (*smbios.SMBIOS, error) {
	var version smbios.Version
	switch {
	case bytes.HasPrefix(entry, []byte("_SM3_")) && len(entry) >= 10:
		version = smbios.Version{Major: int(entry[7]), Minor: int(entry[8]), Revision: int(entry[9])}
	case bytes.HasPrefix(entry, []byte("_SM_")) && len(entry) >= 8:
		version = smbios.Version{Major: int(entry[6]), Minor: int(entry[7])}
	default:
		return nil, errors.New("the entry point has an unknown form")
	}
	return smbios.Decode(bytes.NewReader(table), version)
}

// system describes the machine as a whole.
func (p *probe) system(tables *smbios.SMBIOS) *agentv1.System {
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
	about, firmware, board := tables.SystemInformation, tables.BIOSInformation, tables.BaseboardInformation
	system.Vendor, system.Product = clean(about.Manufacturer), clean(about.ProductName)
	system.Serial, system.Uuid = clean(about.SerialNumber), clean(about.UUID)
	system.FirmwareVendor, system.FirmwareVersion = clean(firmware.Vendor), clean(firmware.Version)
	system.FirmwareDate = clean(firmware.ReleaseDate)
	system.BoardVendor, system.BoardProduct = clean(board.Manufacturer), clean(board.Product)
	return system
}
