package inventory

import (
	"encoding/binary"
	"math"
	"path/filepath"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const blockDir = "sys/class/block"

// virtualDisks are the beginnings of the names of block devices that are no disks: made by the
// kernel, over the network, or drives for media.
var virtualDisks = []string{"loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "rbd", "drbd", "bcache", "zd", "mtdblock"}

// blockDevices lists the disks.
func (p *probe) blockDevices() []*agentv1.BlockDevice {
	var list []*agentv1.BlockDevice
	for _, name := range p.names("block devices", blockDir) {
		if len(list) == maxDevices {
			p.warn("there are more than %d disks", maxDevices)
			break
		}
		if p.isDisk(name) {
			list = append(list, p.blockDevice(name))
		}
	}
	return list
}

// isDisk says whether a block device is a disk with something in it: hardware behind it, no
// partition, no second path to a disk that is listed already, no boot area of an MMC.
func (p *probe) isDisk(name string) bool {
	for _, prefix := range virtualDisks {
		if rest, ok := strings.CutPrefix(name, prefix); ok && (rest == "" || isDigit(rest[0])) {
			return false
		}
	}
	if strings.HasPrefix(name, "mmcblk") && (strings.Contains(name, "boot") || strings.HasSuffix(name, "rpmb")) {
		return false
	}
	dir := filepath.Join(blockDir, name)
	return p.exists(dir, "device") && !p.exists(dir, "partition") && !p.flag(dir, "hidden") && p.number(dir, "size") > 0
}

func (p *probe) blockDevice(name string) *agentv1.BlockDevice {
	dir := filepath.Join(blockDir, name)
	device := &agentv1.BlockDevice{
		Name:      clean(name),
		Model:     p.text(dir, "device/model"),
		Serial:    p.serial(dir),
		Wwn:       p.wwn(dir),
		SizeBytes: sectors(p.number(dir, "size")),

		LogicalSectorBytes:  int32(p.number(dir, "queue/logical_block_size")),
		PhysicalSectorBytes: int32(p.number(dir, "queue/physical_block_size")),

		Rotational: p.flag(dir, "queue/rotational"),
		Removable:  p.flag(dir, "removable"),
		ReadOnly:   p.flag(dir, "ro"),
	}
	// else it is a PCI ID
	if vendor := p.text(dir, "device/vendor"); !strings.HasPrefix(vendor, "0x") {
		device.Vendor = vendor
	}
	device.Protocol = p.protocol(name, device.GetVendor())
	if p.live {
		device.Health = p.health(name, device.GetProtocol())
	}
	return device
}

// sectors converts the kernel's 512-byte units to bytes.
func sectors(n int64) int64 {
	if n < 0 || n > math.MaxInt64/512 {
		return 0
	}
	return n * 512
}

// serial looks where the different kinds of disks keep their serial number: NVMe and MMC; virtio;
// SCSI and ATA.
func (p *probe) serial(dir string) string {
	for _, file := range []string{"device/serial", "serial"} {
		if serial := p.text(dir, file); serial != "" {
			return serial
		}
	}
	page, err := p.read(512, dir, "device/vpd_pg80")
	if err != nil {
		return ""
	}
	return parseSerialPage(page)
}

// parseSerialPage reads the unit serial number page of SCSI (SPC-5, section 7.7.19): page code 80h,
// a length, then ASCII.
func parseSerialPage(page []byte) string {
	if len(page) < 4 || page[1] != 0x80 {
		return ""
	}
	length := min(int(binary.BigEndian.Uint16(page[2:])), len(page)-4)
	return clean(string(page[4 : 4+length]))
}

// wwn returns the world wide name in the form in which lsblk shows it. Identifiers that are made of
// vendor, model and serial are none.
func (p *probe) wwn(dir string) string {
	for _, file := range []string{"wwid", "device/wwid"} {
		id := p.text(dir, file)
		if digits, ok := strings.CutPrefix(id, "naa."); ok {
			return "0x" + digits
		}
		for _, prefix := range []string{"eui.", "uuid.", "nvme.", "0x"} {
			if strings.HasPrefix(id, prefix) {
				return id
			}
		}
	}
	return ""
}

// protocol tells how a disk is attached, by its name and its place in the device tree.
func (p *probe) protocol(name, vendor string) string {
	for prefix, protocol := range map[string]string{"nvme": "nvme", "vd": "virtio", "mmcblk": "mmc"} {
		if strings.HasPrefix(name, prefix) {
			return protocol
		}
	}
	if !strings.HasPrefix(name, "sd") {
		return ""
	}
	place, err := filepath.EvalSymlinks(p.path(blockDir, name, "device"))
	if err != nil {
		place = ""
	}
	switch {
	case strings.Contains(place, "/usb"):
		return "usb"
	case vendor == "ATA" || strings.Contains(place, "/ata"):
		return "sata"
	case strings.Contains(place, "/end_device-"):
		return "sas"
	}
	return "scsi"
}
