package hardware

import (
	"fmt"
	"path"
	"strconv"
)

// pciRoot is the only root complex; every controller is a device right below it.
const pciRoot = "sys/devices/pci0000:00/"

// sysfs adds the part of /sys that describes hardware. Thousands of machines have one, so what
// nobody reads is left out, and the DMI attributes are in the class directory itself.
func (m Machine) sysfs(t *tree) {
	m.sysDMI(t)
	scsi := 0
	for i, d := range m.Disks {
		if d.NVMe {
			m.sysNVMe(t, i, d)
		} else {
			m.sysSCSI(t, scsi, d)
			scsi++
		}
	}
	for i, n := range m.NICs {
		m.sysNIC(t, i, n)
	}
	if m.Model.EFI {
		t.file("sys/firmware/efi/fw_platform_size", "64")
	}
}

func (m Machine) sysDMI(t *tree) {
	const id = "sys/class/dmi/id/"
	t.file(id+"bios_vendor", m.Model.FirmwareVendor)
	t.file(id+"bios_version", m.Model.FirmwareVersion)
	t.file(id+"bios_date", m.Model.FirmwareDate)
	t.file(id+"sys_vendor", m.Model.Vendor)
	t.file(id+"product_name", m.Model.Product)
	t.file(id+"board_vendor", m.Model.Vendor)
	t.file(id+"board_name", m.Model.Board)
	t.own(id+"product_serial", m.Serial)
	t.own(id+"product_uuid", m.UUID.String())

	table, entry := m.smbios()
	t.raw("sys/firmware/dmi/tables/DMI", string(table), true)
	t.raw("sys/firmware/dmi/tables/smbios_entry_point", string(entry), false)
}

// sysBlock adds what every block device has, at dir.
func sysBlock(t *tree, dir, number string, d Disk) {
	rotational := "0"
	if d.Rotational {
		rotational = "1"
	}
	t.file(dir+"/size", strconv.FormatInt(d.Size/512, 10))
	t.file(dir+"/ro", "0")
	t.file(dir+"/removable", "0")
	t.file(dir+"/dev", number)
	t.file(dir+"/queue/rotational", rotational)
	t.file(dir+"/queue/logical_block_size", "512")
	t.file(dir+"/queue/physical_block_size", strconv.Itoa(d.Physical))
	t.link("sys/class/block/"+d.Name, dir)
}

// sysSCSI adds the n-th drive behind the SATA controller.
func (m Machine) sysSCSI(t *tree, n int, d Disk) {
	address := fmt.Sprintf("%d:0:0:0", n)
	device := fmt.Sprintf(pciRoot+"0000:00:17.0/ata%d/host%d/target%d:0:0/%s", n+1, n, n, address)
	dir := device + "/block/" + d.Name
	sysBlock(t, dir, fmt.Sprintf("8:%d", 16*n), d)
	t.link(dir+"/device", device)
	// SCSI pads the vendor to 8 characters, the product to 16, the revision to 4.
	t.file(device+"/vendor", fmt.Sprintf("%-8s", d.Vendor))
	t.file(device+"/model", fmt.Sprintf("%-16.16s", d.Model))
	t.file(device+"/rev", fmt.Sprintf("%-4.4s", d.Firmware))
	t.own(device+"/wwid", d.WWN)
	t.raw(device+"/vpd_pg80", string(append([]byte{0, 0x80, 0, byte(len(d.Serial))}, d.Serial...)), true)
}

// sysNVMe adds the i-th drive of the machine.
func (m Machine) sysNVMe(t *tree, i int, d Disk) {
	function := fmt.Sprintf(pciRoot+"0000:00:1b.%d", i)
	controller := function + "/nvme/" + d.Name[:len(d.Name)-len("n1")]
	dir := controller + "/" + d.Name
	sysBlock(t, dir, fmt.Sprintf("259:%d", i), d)
	t.link(dir+"/device", controller)
	t.own(dir+"/wwid", d.WWN)
	// The model has 40 characters and the serial number 20, padded with spaces.
	t.file(controller+"/model", fmt.Sprintf("%-40.40s", d.Model))
	t.own(controller+"/serial", fmt.Sprintf("%-20.20s", d.Serial))
	t.file(controller+"/firmware_rev", fmt.Sprintf("%-8.8s", d.Firmware))
	t.file(controller+"/transport", "pcie")
	t.link(controller+"/device", function)
}

func (m Machine) sysNIC(t *tree, i int, n NIC) {
	nic := m.Model.NIC
	function := fmt.Sprintf(pciRoot+"0000:00:1f.%d", i)
	dir := function + "/net/" + n.Name
	t.own(dir+"/address", n.MAC)
	t.file(dir+"/type", "1")
	t.file(dir+"/mtu", "1500")
	t.file(dir+"/carrier", "1")
	t.file(dir+"/operstate", "up")
	t.file(dir+"/speed", strconv.Itoa(nic.SpeedMbps))
	t.link(dir+"/device", function)
	t.link("sys/class/net/"+n.Name, dir)
	t.file(function+"/uevent", fmt.Sprintf("DRIVER=%s\nPCI_CLASS=20000\nPCI_ID=%s:%s\nPCI_SLOT_NAME=%s",
		nic.Driver, nic.Vendor, nic.Device, path.Base(function)))
}
