package install

import (
	"context"
	"fmt"
	"hash"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// beginning is what happens when the first MiB of the image is there: it is looked at, and only
// then is anything written.
type beginning struct {
	request *agentv1.InstallRequest
	options Options
	chosen  *agentv1.BlockDevice
	target  *disk
	layout  layout
	stream  *stream
	source  *source
	// raw and file are the digests that are wanted of the image and of its file, nil where none is.
	// fileHash gets the file.
	raw, file *digest
	fileHash  hash.Hash
	// length is how long the image is, as the server says of one that is not compressed; -1: it is not
	// known.
	length int64

	// changes, esp and doubtful are what was found out: what is to be written besides the image, its
	// EFI system partition, and why it may not boot.
	changes  changes
	esp      partition
	doubtful error
}

// begin looks at the first MiB, or at all of a smaller image, and wipes the disk where it is of
// use.
func (b *beginning) begin(ctx context.Context, head []byte) (err error) {
	if b.stream.ended { // a page that says what went wrong, for instance
		if err := checkLength(b.request.GetImage(), b.stream); err != nil {
			return err
		}
		if err := b.verify(); err != nil {
			return err
		}
	}
	if err := refuseFormat(head); err != nil {
		return err
	}
	if b.changes, err = b.layout.apply(head); err != nil {
		return err
	}
	if b.length > b.stream.limit {
		return errTooLarge
	}
	if b.esp, b.doubtful, err = checkBoot(b.options.Root, head); err != nil {
		return err
	}
	b.source.patient.Store(true) // it is read ahead while we ask
	err = b.options.Begin(ctx, &agentv1.BegunDisk{
		InstallGeneration: b.request.GetInstallGeneration(),
		Name:              b.chosen.GetName(), Serial: b.chosen.GetSerial(), Wwn: b.chosen.GetWwn(),
	})
	if err != nil {
		return err
	}
	return b.wipe()
}

// verify fails when what has arrived of the image is not what was asked for.
func (b *beginning) verify() error {
	if err := b.file.check("the image's file", b.fileHash); err != nil {
		return err
	}
	return b.raw.check("the image", b.stream.hash)
}

// wipe begins to write: it wipes what boots the disk, and records on it that an install has begun.
// An older install of the machine gets the record first, because it could not be told from a
// stranger when the power is cut while it is wiped. A stranger is wiped first: the place of the
// record may be in the middle of its data, so it must not boot any more. So is an install on a disk
// that was made larger since: it may have made a partition there.
func (b *beginning) wipe() error {
	target := b.target
	found, _, err := foreign(target.file, target.size, b.options.MachineID, 0)
	if err != nil {
		return fmt.Errorf("read the disk: %w", err)
	}
	areas, _, err := areasOf(target.file, target.size)
	if err != nil {
		return fmt.Errorf("read the disk: %w", err)
	}
	wipeFirst := len(found) > 0 || len(areas) > 1
	if !wipeFirst {
		if err := target.begin(b.request, b.changes); err != nil {
			return err
		}
	}
	if err := target.wipe(); err != nil || !wipeFirst {
		return err
	}
	return target.begin(b.request, b.changes)
}
