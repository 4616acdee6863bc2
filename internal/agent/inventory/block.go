package inventory

import (
	"encoding/binary"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const blockDir = "sys/class/block"

// virtualDisks are the beginnings of the names of block devices that are no disks: made by the
// kernel, over the network, drives for media, or memory.
var virtualDisks = []string{
	"loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "rbd", "drbd", "bcache", "zd", "mtdblock", "pmem", "ndblk", "ublkb", "nullb",
}

// blockDevices lists the disks, and asks them for their health if they are this machine's own.
func (p *probe) blockDevices() []*agentv1.BlockDevice {
	list := p.listDisks()
	if !p.live {
		return list
	}
	places := make([]int, len(list))
	for at := range list {
		places[at] = at
	}
	for _, warning := range machineDrives.ask(list, places, drivesLimit, question{"health", askHealth}) {
		p.warn("%s", warning)
	}
	return list
}

// completeDisks lists the disks, and asks those of this machine for their identity whose whole
// model the kernel does not have, as older ones do not. People choose a disk by what a report says
// of it, and there every drive behind ATA has told its whole model. One that does not answer stays
// as it is.
func (p *probe) completeDisks(drives *drives, limit time.Duration, ask func(*agentv1.BlockDevice) error) []*agentv1.BlockDevice {
	list := p.listDisks()
	var places []int
	for at, disk := range list {
		if _, err := p.informationPage(filepath.Join(blockDir, disk.GetName())); err != nil && p.live && disk.GetProtocol() == "sata" {
			places = append(places, at)
		}
	}
	drives.ask(list, places, limit, question{"identity", ask})
	return list
}

func (p *probe) listDisks() []*agentv1.BlockDevice {
	var list []*agentv1.BlockDevice
	for _, name := range p.names("block devices", blockDir) {
		if !p.isDisk(name) {
			continue
		}
		disk := p.blockDevice(name)
		if known := sameDisk(list, disk); known != nil {
			if len(known.GetOtherPaths()) < maxDevices {
				known.OtherPaths = append(known.OtherPaths, disk.GetName())
			}
			continue
		}
		if len(list) == maxDevices {
			p.warn("there are more than %d disks", maxDevices)
			break
		}
		list = append(list, disk)
	}
	return list
}

// sameDisk returns the disk among those known to which another device is one more path: the
// world wide name, which no two disks share, and all else that identifies them are the same.
func sameDisk(known []*agentv1.BlockDevice, disk *agentv1.BlockDevice) *agentv1.BlockDevice {
	at := slices.IndexFunc(known, func(k *agentv1.BlockDevice) bool {
		return disk.GetWwn() != "" && k.GetWwn() == disk.GetWwn() && k.GetSerial() == disk.GetSerial() && k.GetSizeBytes() == disk.GetSizeBytes()
	})
	if at < 0 {
		return nil
	}
	return known[at]
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
	device.Firmware = p.firmware(dir)
	if identity, err := p.informationPage(dir); err == nil {
		identity.complete(device)
	}
	return device
}

// informationPage returns what the kernel knows of a drive behind ATA.
func (p *probe) informationPage(dir string) (ataIdentity, error) {
	page, err := p.read(1024, dir, "device/vpd_pg89")
	if err != nil {
		return ataIdentity{}, err
	}
	return parseInformationPage(page)
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

// firmware looks where the different kinds of disks keep the version of their firmware: NVMe, SCSI,
// MMC.
func (p *probe) firmware(dir string) string {
	for _, file := range []string{"device/firmware_rev", "device/rev", "device/fwrev"} {
		if version := p.text(dir, file); version != "" {
			return version
		}
	}
	return ""
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
			id = "0x" + digits
		}
		for _, prefix := range []string{"eui.", "uuid.", "nvme.", "0x"} {
			// zeros are none
			if digits, ok := strings.CutPrefix(id, prefix); ok && strings.Trim(digits, "0-") != "" {
				return id
			}
		}
	}
	return ""
}

// protocol tells how a disk is attached, by its name and its place in the device tree.
func (p *probe) protocol(name, vendor string) string {
	switch {
	case strings.HasPrefix(name, "nvme"):
		return p.nvmeProtocol(name)
	case strings.HasPrefix(name, "vd"):
		return "virtio"
	case strings.HasPrefix(name, "mmcblk"):
		if p.text(blockDir, name, "device/type") == "SD" { // a card, which Linux does not call removable
			return "sd"
		}
		return "mmc"
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
	case strings.Contains(place, "/session"):
		return "iscsi"
	case strings.Contains(place, "/rport-"):
		return "fc"
	case vendor == "ATA" || strings.Contains(place, "/ata"):
		return "sata"
	case strings.Contains(place, "/end_device-"):
		return "sas"
	}
	return "scsi"
}

// nvmeProtocol tells an NVMe drive in the machine from one over a network. What several controllers
// lead to belongs to a subsystem, which has a link to each of them.
func (p *probe) nvmeProtocol(name string) string {
	device := filepath.Join(blockDir, name, "device")
	controllers, _ := filepath.Glob(filepath.Join(p.path(device), "nvme*", "transport"))
	places := []string{filepath.Join(device, "transport")}
	for _, controller := range controllers {
		places = append(places, filepath.Join(device, filepath.Base(filepath.Dir(controller)), "transport"))
	}
	for _, place := range places {
		switch transport := p.text(place); transport {
		case "tcp", "rdma", "fc":
			return "nvme-" + transport
		}
	}
	return "nvme"
}
