package install

import (
	"bytes"
	"errors"
	"io"
	"slices"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const (
	kindGPT    = "a GUID partition table"
	kindBackup = "the backup of a GUID partition table"
	kindMBR    = "a partition table (MBR)"
	// maxPartitions is how many partitions of a disk are recorded.
	maxPartitions = 128
)

// contentOf is what is known of a disk.
func contentOf(disk io.ReaderAt, size int64) (*agentv1.DiskContent, error) {
	ends, err := endsOf(disk, size)
	if err != nil {
		return nil, err
	}
	return ends.content(), nil
}

func (e diskEnds) content() *agentv1.DiskContent {
	return &agentv1.DiskContent{Kinds: e.kinds(), Partitions: partitionsOf(e.head)}
}

// partitionsOf returns what tells the partitions of a disk from others, by its first MiB. Neither
// the growth of a partition changes it, nor a boot loader, nor a new GUID of the disk, which some
// systems give themselves on their first boot.
func partitionsOf(head []byte) [][]byte {
	var ids [][]byte
	for _, sector := range []int{gptSector, maxSector} {
		if t, err := readTable(head, sector); err == nil {
			for _, p := range t.partitions() {
				ids = append(ids, append(p.kind[:], p.id[:]...))
			}
			return ids[:min(len(ids), maxPartitions)]
		}
	}
	for _, e := range mbrEntries(head) {
		if e[4] != 0 && e[4] != mbrProtective {
			ids = append(ids, append(append(bytes.Clone(head[440:444]), e[4]), e[8:12]...))
		}
	}
	return ids
}

// stillHolds says whether a disk still is what an install has recorded: it has each of the
// partitions that it was written with, and nothing of a kind that it did not have. A disk without
// partitions is never known for sure.
func stillHolds(recorded, now *agentv1.DiskContent) bool {
	kinds := recorded.GetKinds()
	if slices.Contains(kinds, kindGPT) {
		// The installed system may move the backup to the end of the disk.
		kinds = append(slices.Clone(kinds), kindBackup, kindMBR)
	}
	for _, kind := range now.GetKinds() {
		if !slices.Contains(kinds, kind) {
			return false
		}
	}
	for _, id := range recorded.GetPartitions() {
		if !hasPartition(now, id) {
			return false
		}
	}
	return len(recorded.GetPartitions()) > 0
}

func hasPartition(content *agentv1.DiskContent, id []byte) bool {
	return slices.ContainsFunc(content.GetPartitions(), func(other []byte) bool { return bytes.Equal(id, other) })
}

// heldOf returns how many in a hundred of the partitions that the install has recorded a disk has,
// rounded up; 0 where it recorded none.
func heldOf(disk io.ReaderAt, size int64, first *agentv1.FirstBoot) (held int, err error) {
	recorded := first.GetContent().GetPartitions()
	now, err := contentOf(disk, size)
	for _, id := range recorded {
		if hasPartition(now, id) {
			held++
		}
	}
	all := max(1, len(recorded))
	return (held*100 + all - 1) / all, err
}

// diskEnds are the beginning and the end of a disk: its first MiB and a little more, and its last
// MiB.
type diskEnds struct {
	size       int64
	head, tail []byte
}

func endsOf(disk io.ReaderAt, size int64) (diskEnds, error) {
	const more = 4096
	ends := diskEnds{size, make([]byte, min(size, mebibyte+more)), make([]byte, min(size, mebibyte))}
	if _, err := disk.ReadAt(ends.head, 0); err != nil && !errors.Is(err, io.EOF) {
		return ends, err
	}
	if _, err := disk.ReadAt(ends.tail, size-int64(len(ends.tail))); err != nil && !errors.Is(err, io.EOF) {
		return ends, err
	}
	return ends, nil
}

// finished is a disk, wiped by an install, as it is when its first MiB has been written.
type finished struct {
	io.ReaderAt
	head []byte
}

// ReadAt implements io.ReaderAt.
func (f finished) ReadAt(p []byte, offset int64) (int, error) {
	n, err := f.ReaderAt.ReadAt(p, offset)
	if offset < int64(len(f.head)) {
		copy(p[:n], f.head[offset:])
	}
	return n, err
}
