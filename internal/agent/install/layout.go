package install

import (
	"crypto/sha256"
	"fmt"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// layout is what of the image's partition table is to be changed for the disk.
type layout struct {
	request *agentv1.InstallRequest
	size    int64
	// disk and sectors are the path of the disk and the size of its logical sectors; 0: not known.
	disk    string
	sectors int
	// grow and seed say what is asked for.
	grow, seed bool
	// hostName and networkConfig are for the seed; empty: it has none.
	hostName      string
	networkConfig []byte
}

// newLayout returns the layout for a disk of that size. The network is that of the machine's old
// system. An error says why the installed one is not told it, which does not stop an install.
func newLayout(request *agentv1.InstallRequest, chosen *agentv1.BlockDevice, size int64, network *agentv1.Network) (layout, error) {
	form := request.GetImage().GetFirstBootForm()
	l := layout{
		request: request, size: size, disk: devicePath(chosen.GetName()), sectors: int(chosen.GetLogicalSectorBytes()),
		grow: request.GetRootDisk().GetGrow(),
		seed: form == agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD || form == agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD_USER_DATA,
	}
	err := l.nameHost(network)
	return l, err
}

// nameHost gives the seed the machine's name and its network, where the request wants that.
func (l *layout) nameHost(network *agentv1.Network) error {
	if l.request.GetImage().GetFirstBootForm() != agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD {
		return nil
	}
	l.hostName = hostName(l.request.GetMachineName())
	config, err := networkConfig(network)
	if own := ownNetwork(l.request.GetFirstBootData()); own != "" && (len(config) > 0 || err != nil) {
		return fmt.Errorf("the installed system is not told the machine's network, which is left to its first-boot data: that names %s", own)
	}
	l.networkConfig = config
	switch {
	case err == nil:
		return nil
	case len(config) > 0:
		return fmt.Errorf("the installed system is not told the whole of the machine's network: %w", err)
	}
	return fmt.Errorf("the installed system is not told the machine's network: %w", err)
}

// room is how much of the disk the image may have, in bytes from its beginning.
func (l layout) room() int64 {
	room := FirstBootOffset(l.size)
	if l.seed {
		room -= seedSize
	}
	return room
}

// changes is what an install writes besides the image. All of it lies behind the image, but for
// head.
type changes struct {
	// head is the first MiB, with the new table.
	head []byte
	// backup is the backup of the table, at the end of the disk.
	backup []byte
	// seed is a NoCloud seed, to be written at seedAt.
	seed   []byte
	seedAt int64
	// blankFrom is the beginning of a MiB that was behind the image and ends a partition now. What an
	// earlier use of the disk has left there might be taken for a part of that partition.
	blankFrom int64
}

// changed is how many bytes at the beginning may differ from the image.
func (c changes) changed() int64 {
	if c.backup == nil {
		return 0
	}
	return mebibyte
}

// apply works the changes out. It is called when the first MiB of the image is there and nothing
// was written, so that an image that is not fit for what is asked leaves the disk alone. head is
// not changed.
func (l layout) apply(head []byte) (changes, error) {
	c := changes{head: append([]byte(nil), head...)}
	if made := sectorsOf(head); made != 0 && l.sectors != 0 && made != l.sectors {
		return c, fmt.Errorf("%s has logical sectors of %d bytes, and the image's partition table is for sectors of %d, so it would not boot",
			l.disk, l.sectors, made)
	}
	t, err := readTable(c.head, gptSector)
	if err != nil {
		if l.grow || l.seed {
			return c, err
		}
		c.head = head
		if t, err = readTable(head, maxSector); err == nil {
			_, _, err := l.fits(t, maxSector)
			return c, err
		}
		return c, nil // the image is whatever it is
	}
	last, earlier, err := l.fits(t, gptSector)
	if err != nil || last.number == 0 {
		return c, err
	}
	lastUsable := uint64(FirstBootOffset(l.size)/gptSector - 1)
	end := uint64(l.room()/gptSector - 1)
	for _, number := range earlier { // this install makes its own
		clear(t.entry(number))
	}
	if l.grow && end-last.last > mebibyte/gptSector {
		if err := t.grow(last, end); err != nil {
			return c, err
		}
		c.blankFrom = l.room() - mebibyte
	}
	instance := instanceID(l.request.GetBootToken().GetMachineId(), l.request.GetInstallGeneration(), l.request.GetAttempt())
	if l.seed {
		c.seed, c.seedAt = seed(instance, l.hostName, l.request.GetFirstBootData(), l.networkConfig, l.request.GetSshHostKey()), l.room()
		if err := t.add(partition{kind: typeData, id: partitionID("cidata " + instance), first: end + 1, last: lastUsable}, seedName); err != nil {
			return c, err
		}
	}
	// A partition of its own keeps the area from growpart, which minds no limit but that of the disk.
	area := partition{kind: typeReserved, id: partitionID("first boot " + instance), first: lastUsable + 1, last: lastUsable + mebibyte/gptSector}
	if err := t.add(area, areaName); err == nil {
		lastUsable = area.last
	}
	c.backup = t.move(l.size, lastUsable)
	return c, nil
}

// fits returns the partition that ends last, and the numbers of those that an earlier install made:
// the image may be of its disk. An error says that the disk has no room for one. Where the table
// makes no sense and may be whatever it is, there is none.
func (l layout) fits(t *table, sector int64) (last partition, earlier []int, err error) {
	room := uint64(l.room() / sector)
	last, earlier, err = t.last(uint64(FirstBootOffset(l.size) / sector))
	switch {
	case err == nil && last.last >= room:
		err = last.behind()
	case err != nil && !l.grow && !l.seed:
		return partition{}, nil, nil
	}
	return last, earlier, err
}

// partitionID derives a GUID.
func partitionID(of string) (id [16]byte) {
	sum := sha256.Sum256([]byte(of))
	id = [16]byte(sum[:16])
	id[7], id[8] = id[7]&0x0f|0x80, id[8]&0x3f|0x80 // version 8: a hash of the maker's own, RFC 9562
	return id
}
