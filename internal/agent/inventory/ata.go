package inventory

import (
	"encoding/binary"
	"errors"
	"os"
	"regexp"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// sector is the unit in which ATA drives tell of themselves.
const sector = 512

// ataIdentity is what a drive says it is.
type ataIdentity struct {
	model, serial, firmware string
	// logs tells that the drive has general purpose logs.
	logs bool
	// removable tells that a medium can be taken out of the drive.
	removable bool
}

// parseIdentity reads the data of IDENTIFY DEVICE (ACS-3, section 7.12.7): words, in whose strings
// the first letter is the upper byte.
func parseIdentity(data []byte) (ataIdentity, error) {
	if len(data) < sector {
		return ataIdentity{}, errors.New("the drive's identity is cut short")
	}
	text := func(first, last int) string {
		swapped := make([]byte, 0, 40)
		for word := first; word <= last; word++ {
			swapped = append(swapped, data[2*word+1], data[2*word])
		}
		return clean(string(swapped))
	}
	const removableMedium = 1 << 7 // of the general configuration (ATA/ATAPI-6, section 8.15.8)
	configuration, features := binary.LittleEndian.Uint16(data), binary.LittleEndian.Uint16(data[2*87:])
	return ataIdentity{
		model: text(27, 46), serial: text(10, 19), firmware: text(23, 26),
		logs: features>>14 == 1 && features&(1<<5) != 0, removable: configuration&removableMedium != 0,
	}, nil
}

// parseInformationPage reads the page of SCSI that holds the identity of a drive behind ATA: page
// code 89h, with the data of IDENTIFY DEVICE from byte 60 on (SAT-3, section 12.4.2).
func parseInformationPage(page []byte) (ataIdentity, error) {
	if len(page) < 60 || page[1] != 0x89 {
		return ataIdentity{}, errors.New("the page is not that of ATA information")
	}
	return parseIdentity(page[60:])
}

// ataCommand is a command and its parameters, as they go into the registers of a drive.
type ataCommand struct {
	command, feature byte
	lba              uint64
	// extended: the command takes 48-bit addresses.
	extended bool
}

// ataRead sends a command that reads one sector, through the ATA pass-through of SCSI (SAT-3,
// section 12.2.2.3).
func ataRead(device *os.File, command ataCommand) ([]byte, error) {
	const dataIn, oneSector = 4 << 1, 0x0E
	cdb := command.encode(dataIn, oneSector)
	cdb[6] = 1
	data := make([]byte, sector)
	status, _, err := scsiCommand(device, cdb, data)
	if err == nil && status != 0 {
		err = errors.New("the drive does not know SMART")
	}
	return data, err
}

// ataStatus sends a command without data, and returns the registers after it as sense data.
func ataStatus(device *os.File, command ataCommand) ([]byte, error) {
	const noData, returnRegisters = 3 << 1, 0x20
	_, sense, err := scsiCommand(device, command.encode(noData, returnRegisters), nil)
	return sense, err
}

// encode returns the ATA PASS-THROUGH (16) command.
func (c ataCommand) encode(protocol, transfer byte) []byte {
	cdb := make([]byte, 16)
	cdb[0], cdb[1], cdb[2] = 0x85, protocol, transfer
	if c.extended {
		cdb[1] |= 1
	}
	cdb[4] = c.feature
	cdb[7], cdb[9], cdb[11] = byte(c.lba>>24), byte(c.lba>>32), byte(c.lba>>40)
	cdb[8], cdb[10], cdb[12] = byte(c.lba), byte(c.lba>>8), byte(c.lba>>16)
	cdb[14] = c.command
	return cdb
}

// smartLBA is the signature that SMART commands want in the address.
const smartLBA = 0xC24F00

var (
	ataIdentify    = ataCommand{command: 0xEC}
	ataSmartData   = ataCommand{command: 0xB0, feature: 0xD0, lba: smartLBA}
	ataSmartStatus = ataCommand{command: 0xB0, feature: 0xDA, lba: smartLBA}
	// ataWear reads page 7 of the device statistics, which is that of solid state (ACS-3, section
	// A.5).
	ataWear = ataCommand{command: 0x2F, lba: 7<<8 | 0x04, extended: true}
)

// ataHealth asks a drive for its SMART data and its own verdict (ACS-3, sections 7.48.5 and
// 7.48.8). It completes the drive's identity, where the kernel did not have it.
func ataHealth(device *os.File, disk *agentv1.BlockDevice) (*agentv1.Health, error) {
	identity := identifyDrive(device, disk)
	data, err := ataRead(device, ataSmartData)
	if err != nil {
		return nil, err
	}
	health, err := parseSmartData(data, identity, disk.GetRotational())
	if err != nil {
		return nil, err
	}
	if !disk.GetRotational() && identity.logs {
		if page, err := ataRead(device, ataWear); err == nil {
			if used := parseWearPage(page); used >= 0 {
				health.PercentageUsed = used
			}
		}
	}
	sense, err := ataStatus(device, ataSmartStatus)
	if err != nil {
		return nil, err
	}
	health.Passed, err = parseSmartStatus(sense)
	if err != nil {
		return nil, err
	}
	return health, nil
}

// identifyDrive asks a drive for its identity, and completes what is known of it.
func identifyDrive(device *os.File, disk *agentv1.BlockDevice) (identity ataIdentity) {
	if data, err := ataRead(device, ataIdentify); err == nil {
		if identity, err = parseIdentity(data); err == nil {
			identity.complete(disk)
		}
	}
	return identity
}

// askIdentity is identifyDrive for a disk that is not open.
func askIdentity(disk *agentv1.BlockDevice) error {
	device, err := openDrive(disk)
	if err != nil {
		return err
	}
	identifyDrive(device, disk)
	return device.Close()
}

// complete replaces what SCSI cuts off: sixteen letters of a model, and four of a version. And it
// replaces what Linux says of a port: it calls every disk removable whose port is made for plugging
// under power, as those of a server's bays may be.
func (i ataIdentity) complete(disk *agentv1.BlockDevice) {
	if i.model != "" {
		disk.Model = i.model
		if disk.GetProtocol() == "sata" {
			disk.Removable = i.removable
		}
	}
	if i.firmware != "" {
		disk.Firmware = i.firmware
	}
	if disk.GetSerial() == "" {
		disk.Serial = i.serial
	}
}

// parseWearPage returns the percentage of the endurance that is used, or -1. The topmost bits of a
// statistic say that it is supported and valid.
func parseWearPage(page []byte) int32 {
	const supportedAndValid = 0xC0
	if len(page) < sector || page[2] != 7 || page[15]&supportedAndValid != supportedAndValid {
		return -1
	}
	return int32(page[8])
}

// parseSmartStatus returns the drive's verdict, which SMART RETURN STATUS leaves in the LBA
// registers.
func parseSmartStatus(sense []byte) (passed bool, err error) {
	var middle, high byte
	switch {
	case len(sense) >= 22 && sense[0]&0x7F == 0x72 && sense[8] == 0x09: // descriptor format
		middle, high = sense[17], sense[19]
	case len(sense) >= 12 && sense[0]&0x7F == 0x70: // fixed format
		middle, high = sense[10], sense[11]
	default:
		return false, errors.New("the drive's verdict cannot be understood")
	}
	switch {
	case middle == 0x4F && high == 0xC2:
		return true, nil
	case middle == 0xF4 && high == 0x2C:
		return false, nil
	}
	return false, errors.New("the drive's verdict cannot be understood")
}

// parseSmartData reads the attribute table: 30 entries of 12 bytes from offset 2, with the number
// of the attribute first, its normalized value fourth, and six raw bytes from the sixth on. What
// the raw bytes mean is for each maker to say; where makers differ, this is how smartmontools reads
// them.
func parseSmartData(data []byte, drive ataIdentity, rotational bool) (*agentv1.Health, error) {
	if len(data) < sector {
		return nil, errors.New("the SMART data is cut short")
	}
	health := &agentv1.Health{PercentageUsed: -1}
	wearAttribute := lifeLeft(drive.model)
	for i := range 30 {
		entry := data[2+12*i:][:12]
		wide := int64(binary.LittleEndian.Uint32(entry[5:]))
		switch entry[0] {
		case 5:
			health.ReallocatedSectors = wide
		case 9:
			health.PowerOnHours = powerOnHours(wide, drive)
		case 187:
			health.MediaErrors = wide & 0xFFFF
		case 190:
			if health.GetTemperatureCelsius() == 0 {
				health.TemperatureCelsius = int32(entry[5])
			}
		case 194:
			health.TemperatureCelsius = int32(entry[5])
		case 197:
			health.PendingSectors = wide
		case 198:
			health.OfflineUncorrectableSectors = wide
		}
		if left := entry[3]; !rotational && entry[0] != 0 && entry[0] == wearAttribute && left <= 100 {
			health.PercentageUsed = 100 - int32(left)
		}
	}
	return health, nil
}

// oldClocks are drives that count attribute 9 in other units than hours, by model and firmware.
var oldClocks = []struct {
	drive   *regexp.Regexp
	perHour int64
}{
	{regexp.MustCompile(`^(Maxtor ([2-589]|6[BEKLY]|7[LY])|HITACHI_DK|HTA4220|HE[JN]4230|HTC4260|FUJITSU MHZ2...BJ)`), 60},
	{regexp.MustCompile(`^TOSHIBA MK..(51GSY|56GSYF?|61GSYN?|76GSX)/`), 60},
	{regexp.MustCompile(`^SAMSUNG (SV....[HN]|SP(40A2|80A4|8004)H|MP0...H|HM(0[468]0H|120I|1[026]0J)[CI]|SP....[CN]/.*-(2[3-9]|3[0-4])$)`), 120},
	{regexp.MustCompile(`^FUJITSU (M1623T|MH[GHJ-NR-V]2|MP[A-G]3)`), 3600},
}

// powerOnHours reads attribute 9: hours in three bytes, except for drives of old that count
// otherwise.
func powerOnHours(raw int64, drive ataIdentity) int64 {
	for _, old := range oldClocks {
		if old.drive.MatchString(drive.model + "/" + drive.firmware) {
			return raw / old.perHour
		}
	}
	return raw & 0xFFFFFF // some drives keep minutes above
}

// lifeLeft returns the attribute in which makers of solid state drives count down from 100 as the
// drive wears out; 0 for those of which it is not known.
func lifeLeft(model string) byte {
	for _, maker := range []struct {
		prefix    string
		attribute byte
	}{
		{"INTEL SSD", 233},
		{"SOLIDIGM", 233},
		{"SAMSUNG ", 177},
		{"Samsung ", 177},
		{"MZ7", 177},
		{"Micron_", 202},
		{"MICRON_", 202},
		{"MTFD", 202},
		{"Crucial_CT", 202},
		{"CT", 202},
		{"KINGSTON ", 231},
		{"SK hynix", 231},
		{"SKhynix", 231},
		{"Corsair Force", 231},
		{"OCZ-VERTEX3", 231},
	} {
		if strings.HasPrefix(model, maker.prefix) {
			return maker.attribute
		}
	}
	return 0
}
