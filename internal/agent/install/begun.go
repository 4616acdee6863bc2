package install

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// sectorSum is the size of the sum of one sector in a record.
const sectorSum = 8

// begin records on the disk that an install has begun, and waits until that is on stable storage.
// The record stays until the install has ended well. By it a later attempt knows the disk that this
// one has begun to write, and tells what a power cut has left of an install from what somebody has
// put there since. A record of another machine goes, and so does one that is newer, as after a
// restore of the control plane: it says nothing of what the disk holds from now on.
func (d *disk) begin(request *agentv1.InstallRequest, c changes) error {
	ends, err := endsOf(d.file, d.size)
	if err != nil {
		return fmt.Errorf("read the disk: %w", err)
	}
	sums := sumSectors(ends.sums(), c.head, 0)
	sums = sumSectors(sums, c.backup, d.size-int64(len(c.backup)))
	records, err := readBegun(d.file, d.size)
	if err != nil {
		return fmt.Errorf("read the disk: %w", err)
	}
	ours := &agentv1.BegunInstall{
		MachineId: request.GetBootToken().GetMachineId(), InstallGeneration: request.GetInstallGeneration(), Attempt: request.GetAttempt(), Sectors: sums,
	}
	_, slot := records.newest(ours.GetMachineId())
	area, err := encodeArea(begunMagic, ours)
	if err == nil {
		err = d.write(area, FirstBootOffset(d.size)+begunSlots[slot])
	}
	if err == nil {
		err = d.sync()
	}
	if other := records[1-slot]; err == nil && other != nil && (other.GetMachineId() != ours.GetMachineId() || newer(other, ours)) {
		err = d.makeZero(FirstBootOffset(d.size)+begunSlots[1-slot], takenOffset-begunSlots[1])
		if err == nil {
			err = d.sync()
		}
	}
	if err != nil {
		return fmt.Errorf("record on the disk that an install has begun: %w", err)
	}
	return nil
}

// end removes the records.
func (d *disk) end() error {
	err := d.makeZero(FirstBootOffset(d.size)+begunSlots[0], mebibyte-begunSlots[0])
	if err == nil {
		err = d.sync()
	}
	if err != nil {
		return fmt.Errorf("remove the record that an install has begun: %w", err)
	}
	return nil
}

// begunRecords are what the slots of a disk hold, nil where that is no record. There are two, so
// that a record which a power cut keeps from being written whole does not cost the one before it.
// Behind them are those of a disk that was smaller, which are read and not written.
type begunRecords [2 * len(begunSlots)]*agentv1.BegunInstall

// readBegun reads the slots of a disk of that size.
func readBegun(disk io.ReaderAt, size int64) (records begunRecords, err error) {
	areas, _, err := areasOf(disk, size)
	data := make([]byte, MaxFirstBootArea)
	for at, area := range areas {
		for i, slot := range begunSlots {
			n, err := disk.ReadAt(data, area+slot)
			if err != nil && !errors.Is(err, io.EOF) {
				return records, err
			}
			begun := new(agentv1.BegunInstall)
			if decodeArea(data[:n], begunMagic, begun) == nil && counted(begun.GetInstallGeneration(), begun.GetAttempt()) {
				records[at*len(begunSlots)+i] = begun
			}
		}
	}
	return records, err
}

// newest returns the newest record of the machine, nil where there is none, and the slot for the
// next one. A disk that was another machine's may have records of that.
func (r begunRecords) newest(machineID string) (newest *agentv1.BegunInstall, next int) {
	for i, begun := range r {
		if begun != nil && begun.GetMachineId() == machineID && (newest == nil || newer(begun, newest)) {
			newest, next = begun, max(0, 1-i)
		}
	}
	return newest, next
}

// newer says whether a record is of a later attempt, or of a higher install generation.
func newer(a, b *agentv1.BegunInstall) bool {
	return a.GetInstallGeneration() > b.GetInstallGeneration() || a.GetInstallGeneration() == b.GetInstallGeneration() && a.GetAttempt() > b.GetAttempt()
}

// leftBy says whether what a disk has at its beginning and its end is what an install found there,
// was about to write there, or wiped.
func leftBy(begun *agentv1.BegunInstall, ends diskEnds) bool {
	known := make(map[[sectorSum]byte]bool)
	for sums := begun.GetSectors(); len(sums) >= sectorSum; sums = sums[sectorSum:] {
		known[[sectorSum]byte(sums)] = true
	}
	for now := ends.sums(); len(now) > 0; now = now[sectorSum:] {
		if !known[[sectorSum]byte(now)] {
			return false
		}
	}
	return true
}

// sums are those of the first and the last MiB.
func (e diskEnds) sums() []byte {
	sums := sumSectors(nil, e.head[:min(len(e.head), mebibyte)], 0)
	return sumSectors(sums, e.tail, e.size-int64(len(e.tail)))
}

// sumSectors adds the sum of each sector at that offset of a disk that is not all zeros.
func sumSectors(sums, data []byte, offset int64) []byte {
	var padded [8 + gptSector]byte
	for ; len(data) > 0; offset += gptSector {
		n := min(len(data), gptSector)
		sector := data[:n]
		data = data[n:]
		if bytes.Equal(sector, zeros[:n]) {
			continue
		}
		binary.BigEndian.PutUint64(padded[:], uint64(offset))
		clear(padded[8+copy(padded[8:], sector):])
		sum := sha256.Sum256(padded[:])
		sums = append(sums, sum[:sectorSum]...)
	}
	return sums
}
