package hardware

import (
	"fmt"
	"path"
	"strconv"
)

// sysfs adds /sys.
func (m Machine) sysfs(t *tree) {
	m.sysDMI(t)
	t.dir("sys/class/block")
	t.dir("sys/block")
	scsi := 0
	for i, d := range m.Disks {
		if d.NVMe {
			m.sysNVMe(t, i, d)
		} else {
			m.sysSCSI(t, i, scsi, d)
			scsi++
		}
	}
	t.dir("sys/class/net")
	for i, n := range m.NICs {
		m.sysNIC(t, i, n)
	}
	sysLoopback(t)
	cpus := m.Model.Sockets * m.Model.CPU.Threads
	for _, name := range []string{"online", "possible", "present"} {
		t.file("sys/devices/system/cpu/"+name, fmt.Sprintf("0-%d", cpus-1))
	}
	if m.Model.EFI {
		t.file("sys/firmware/efi/fw_platform_size", "64")
		t.dir("sys/firmware/efi/efivars")
	}
}

func (m Machine) sysDMI(t *tree) {
	const id = "sys/devices/virtual/dmi/id"
	for name, value := range map[string]string{
		"bios_vendor": m.Model.FirmwareVendor, "bios_version": m.Model.FirmwareVersion, "bios_date": m.Model.FirmwareDate,
		"sys_vendor": m.Model.Vendor, "product_name": m.Model.Product, "product_sku": m.Model.Plan, "product_version": "",
		"board_vendor": m.Model.Vendor, "board_name": m.Model.Board, "board_version": "",
		"chassis_vendor": m.Model.Vendor, "chassis_type": "23",
	} {
		t.file(path.Join(id, name), value)
	}
	t.own(id+"/product_serial", m.Serial)
	t.own(id+"/product_uuid", m.UUID.String())
	t.own(id+"/board_serial", m.boardSerial())
	t.own(id+"/chassis_serial", m.Serial)
	t.link("sys/class/dmi/id", id)

	table, entry := m.smbios()
	t.raw("sys/firmware/dmi/tables/DMI", string(table), true)
	t.raw("sys/firmware/dmi/tables/smbios_entry_point", string(entry), false)
}

// sysBlock adds what every block device has, at dir.
func sysBlock(t *tree, dir string, number string, d Disk) {
	rotational := "0"
	if d.Rotational {
		rotational = "1"
	}
	t.file(dir+"/size", strconv.FormatInt(d.Size/512, 10))
	t.file(dir+"/ro", "0")
	t.file(dir+"/removable", "0")
	t.file(dir+"/hidden", "0")
	t.file(dir+"/dev", number)
	t.file(dir+"/queue/rotational", rotational)
	t.file(dir+"/queue/logical_block_size", "512")
	t.file(dir+"/queue/hw_sector_size", "512")
	t.file(dir+"/queue/physical_block_size", strconv.Itoa(d.Physical))
	t.link("sys/class/block/"+d.Name, dir)
	t.link("sys/block/"+d.Name, dir)
	t.link(dir+"/subsystem", "sys/class/block")
}

// sysSCSI adds the i-th drive of the machine, the n-th behind the SATA or SAS controller.
func (m Machine) sysSCSI(t *tree, _, n int, d Disk) {
	address := fmt.Sprintf("%d:0:0:0", n)
	device := fmt.Sprintf("sys/devices/pci0000:00/0000:00:17.0/ata%d/host%d/target%d:0:0/%s", n+1, n, n, address)
	dir := device + "/block/" + d.Name
	sysBlock(t, dir, fmt.Sprintf("8:%d", 16*n), d)
	t.link(dir+"/device", device)
	// SCSI pads the vendor to 8 characters, the product to 16, the revision to 4.
	t.file(device+"/vendor", fmt.Sprintf("%-8s", d.Vendor))
	t.file(device+"/model", fmt.Sprintf("%-16.16s", d.Model))
	t.file(device+"/rev", fmt.Sprintf("%-4.4s", d.Firmware))
	t.file(device+"/type", "0")
	t.file(device+"/state", "running")
	t.own(device+"/wwid", d.WWN)
	t.raw(device+"/vpd_pg80", string(append([]byte{0, 0x80, 0, byte(len(d.Serial))}, d.Serial...)), true)
	t.raw(device+"/vpd_pg83", string(vpdPage83(d.WWN)), true)
	t.link(device+"/subsystem", "sys/bus/scsi")
	t.dir("sys/bus/scsi")
}

// vpdPage83 is the device identification page with the drive's NAA name.
func vpdPage83(wwn string) []byte {
	page := []byte{0, 0x83, 0, 12, 0x01, 0x03, 0, 8}
	n, _ := strconv.ParseUint(wwn[len("naa."):], 16, 64) // we made it
	for shift := 56; shift >= 0; shift -= 8 {
		page = append(page, byte(n>>shift))
	}
	return page
}

// sysNVMe adds the i-th drive of the machine.
func (m Machine) sysNVMe(t *tree, i int, d Disk) {
	function := fmt.Sprintf("sys/devices/pci0000:40/0000:40:03.%d/0000:4%d:00.0", i+1, i+1)
	controller := function + "/nvme/" + d.Name[:len(d.Name)-len("n1")]
	dir := controller + "/" + d.Name
	sysBlock(t, dir, fmt.Sprintf("259:%d", i), d)
	t.link(dir+"/device", controller)
	t.own(dir+"/wwid", d.WWN)
	t.file(dir+"/nsid", "1")
	// The model has 40 characters and the serial number 20, padded with spaces.
	t.file(controller+"/model", fmt.Sprintf("%-40.40s", d.Model))
	t.own(controller+"/serial", fmt.Sprintf("%-20.20s", d.Serial))
	t.file(controller+"/firmware_rev", fmt.Sprintf("%-8.8s", d.Firmware))
	t.file(controller+"/transport", "pcie")
	t.file(controller+"/address", path.Base(function))
	t.file(controller+"/state", "live")
	t.link(controller+"/device", function)
	t.link(controller+"/subsystem", "sys/class/nvme")
	t.link("sys/class/nvme/"+path.Base(controller), controller)
}

func (m Machine) sysNIC(t *tree, i int, n NIC) {
	nic := m.Model.NIC
	function := fmt.Sprintf("sys/devices/pci0000:16/0000:16:02.0/0000:18:00.%d", i)
	dir := function + "/net/" + n.Name
	t.own(dir+"/address", n.MAC)
	t.file(dir+"/addr_len", "6")
	t.file(dir+"/type", "1")
	t.file(dir+"/mtu", "1500")
	t.file(dir+"/flags", "0x1003")
	t.file(dir+"/ifindex", strconv.Itoa(i+2))
	t.file(dir+"/carrier", "1")
	t.file(dir+"/operstate", "up")
	t.file(dir+"/duplex", "full")
	t.file(dir+"/speed", strconv.Itoa(nic.SpeedMbps))
	t.link(dir+"/device", function)
	t.link(dir+"/subsystem", "sys/class/net")
	t.link("sys/class/net/"+n.Name, dir)
	t.file(function+"/vendor", nic.Vendor)
	t.file(function+"/device", nic.Device)
	t.file(function+"/class", "0x020000")
	t.link(function+"/driver", "sys/bus/pci/drivers/"+nic.Driver)
	t.link(function+"/subsystem", "sys/bus/pci")
	t.dir("sys/bus/pci/drivers/" + nic.Driver)
}

func sysLoopback(t *tree) {
	const dir = "sys/devices/virtual/net/lo"
	for name, value := range map[string]string{
		"address": "00:00:00:00:00:00", "addr_len": "6", "type": "772", "mtu": "65536", "flags": "0x9", "ifindex": "1",
		"carrier": "1", "operstate": "unknown",
	} {
		t.file(path.Join(dir, name), value)
	}
	t.link(dir+"/subsystem", "sys/class/net")
	t.link("sys/class/net/lo", dir)
}
