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
// put there since.
func (d *disk) begin(request *agentv1.InstallRequest, c changes) error {
	ends, err := endsOf(d.file, d.size)
	if err != nil {
		return fmt.Errorf("read the disk: %w", err)
	}
	sums := sumSectors(ends.sums(), c.head, 0)
	sums = sumSectors(sums, c.backup, d.size-int64(len(c.backup)))
	_, slot, err := findBegun(d.file, FirstBootOffset(d.size))
	if err != nil {
		return fmt.Errorf("read the disk: %w", err)
	}
	token := request.GetBootToken()
	area, err := encodeArea(begunMagic, &agentv1.BegunInstall{
		MachineId: token.GetMachineId(), InstallGeneration: request.GetInstallGeneration(), Attempt: request.GetAttempt(), Sectors: sums,
	})
	if err == nil {
		err = d.write(area, FirstBootOffset(d.size)+slot)
	}
	if err == nil {
		err = d.sync()
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

// findBegun returns the newest record on a disk whose first-boot area begins at the offset, nil
// where there is none, and the slot for the next one. There are two slots, so that a record which a
// power cut keeps from being written whole does not cost the one before it.
func findBegun(disk io.ReaderAt, offset int64) (newest *agentv1.BegunInstall, next int64, err error) {
	next = begunSlots[0]
	area := make([]byte, MaxFirstBootArea)
	for i, slot := range begunSlots {
		n, err := disk.ReadAt(area, offset+slot)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, 0, err
		}
		begun := new(agentv1.BegunInstall)
		if decodeArea(area[:n], begunMagic, begun) != nil || !counted(begun.GetInstallGeneration(), begun.GetAttempt()) {
			continue
		}
		if newest == nil || begun.GetInstallGeneration() > newest.GetInstallGeneration() ||
			begun.GetInstallGeneration() == newest.GetInstallGeneration() && begun.GetAttempt() > newest.GetAttempt() {
			newest, next = begun, begunSlots[1-i]
		}
	}
	return newest, next, nil
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
