package install

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// TestADiskThatIsMissingIsNotReplaced: what a selector means is judged with the disks that the
// machine had before its agent was in memory. One that its driver has not found there may be the
// one that is meant.
func TestADiskThatIsMissingIsNotReplaced(t *testing.T) {
	t.Parallel()
	disk := func(name, serial string, size int64) *agentv1.BlockDevice {
		return &agentv1.BlockDevice{Name: name, Serial: serial, SizeBytes: size * mebibyte}
	}
	boot, data := disk("sda", "BOOT", 240_000), disk("nvme0n1", "DATA", 960_000)
	stick, cd := disk("sdb", "STICK", 16_000), disk("sr0", "", 16_000)
	stick.Protocol, cd.Removable = "usb", true
	smallest := &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_SMALLEST}
	for name, c := range map[string]struct {
		now      []*agentv1.BlockDevice
		selector *agentv1.DiskSelector
		prior    prior
		want     string // a disk, or what the error says
	}{
		"all are there":            {[]*agentv1.BlockDevice{disk("sdc", "BOOT", 240_000), data}, smallest, prior{}, "sdc"},
		"the smallest is missing":  {[]*agentv1.BlockDevice{data}, smallest, prior{}, `sda (serial number "BOOT", 251658240000 bytes), which the machine had before`},
		"one of two is missing":    {[]*agentv1.BlockDevice{data}, nil, prior{}, "which fits, is not there: name the disk that is to be written by its serial number or WWN"},
		"the largest is there":     {[]*agentv1.BlockDevice{data}, &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_LARGEST, MinSize: 500_000 * mebibyte}, prior{}, "nvme0n1"},
		"named by serial number":   {[]*agentv1.BlockDevice{data}, &agentv1.DiskSelector{Serial: "DATA"}, prior{}, "nvme0n1"},
		"the named one is missing": {[]*agentv1.BlockDevice{data}, &agentv1.DiskSelector{Serial: "BOOT"}, prior{}, "is not there: see whether it is broken, or ask for an install on another disk"},
		"it has begun to write":    {[]*agentv1.BlockDevice{data}, smallest, prior{begun: map[string]bool{"nvme0n1": true}}, "nvme0n1"},
		"none fits":                {nil, smallest, prior{}, "is not there"},
	} {
		c.prior.missing = Missing([]*agentv1.BlockDevice{boot, data, stick, cd}, c.now)
		got, err := choose(c.now, c.selector, 1, func(string) string { return "" }, c.prior)
		if err == nil && got.GetName() != c.want || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, want %s", name, got.GetName(), err, c.want)
		}
	}
	read, unread := disk("sda", "BOOT", 240_000), disk("sda", "", 240_000)
	read.Wwn, unread.Wwn = "0x1", "0x1"
	if missing := Missing([]*agentv1.BlockDevice{read}, []*agentv1.BlockDevice{unread}); len(missing) != 0 {
		t.Errorf("its serial number was not read: %v", missing)
	}
	unread.Wwn = "0x2"
	if missing := Missing([]*agentv1.BlockDevice{read}, []*agentv1.BlockDevice{unread}); len(missing) != 1 {
		t.Error("it is another disk")
	}
	twins := []*agentv1.BlockDevice{disk("vda", "", 100), disk("vdb", "", 100)}
	if missing := Missing(twins, twins[1:]); len(missing) != 1 {
		t.Errorf("of two that are alike one is missing: %v", missing)
	}
}

// old is the disk of a kernel that can make no zeros on block devices (before Linux 4.9).
type old struct {
	medium
	written int64
}

func (o *old) Zero(uint32, int64, int64) error { return unix.ENODEV }

func (o *old) WriteAt(p []byte, _ int64) (int, error) {
	o.written += int64(len(p))
	return len(p), nil
}

func TestAKernelThatMakesNoZeros(t *testing.T) {
	t.Parallel()
	medium := &old{}
	d := &disk{isDevice: true, medium: medium}
	if err := d.makeZero(0, 3*mebibyte); err != nil || medium.written != 3*mebibyte {
		t.Errorf("%d bytes are written, %v", medium.written, err)
	}
}

func TestPartOf(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"sda": true, "sda1": true, "sda12": true, "sdaa": false, "sdb1": false, "nvme0n1": true, "nvme0n1p2": true, "nvme0n10": false, "nvme0n1p": true,
		"mmcblk1p1": false,
	} {
		d := &agentv1.BlockDevice{Name: "sda", OtherPaths: []string{"nvme0n1"}}
		if got := partOf(name, d); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// rejecting is a medium that claims all ways of zeroing, and fails at each.
type rejecting struct {
	medium
	err   error
	tries *atomic.Int32 // nil: nobody counts them
}

func (m rejecting) Zero(uint32, int64, int64) error {
	if m.tries != nil {
		m.tries.Add(1)
	}
	return m.err
}

// TestARejectedWayOfZeroing: a drive may claim the commands for zeroing, and reject each one, fail
// at it, or not answer. It takes what is written to it.
func TestARejectedWayOfZeroing(t *testing.T) {
	t.Parallel()
	image := testImage(2, 4*mebibyte)
	for _, rejection := range []error{unix.EREMOTEIO, unix.EIO, unix.ETIMEDOUT} {
		t.Run(rejection.Error(), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			options := m.options()
			options.medium = func(m medium) medium { return rejecting{medium: m, err: rejection} }
			request := requestFor(serveBytes(t, image), image)
			if report := Run(t.Context(), request, options); !report.GetOk() {
				t.Fatalf("report: %v", report)
			}
			checkInstalled(t, m, image, request)
		})
	}
}

// TestADiskThatIsGoneIsNotWritten: what says that there is no disk any more is no rejection of one
// way. Nor is a rejection a fault of the disk that an install would tell of. A drive that fails at
// one way, which may take minutes, is not asked for the other.
func TestADiskThatIsGoneIsNotWritten(t *testing.T) {
	t.Parallel()
	for fault, gone := range map[error]bool{unix.ENXIO: true, unix.EIO: false, unix.ETIMEDOUT: false, unix.EREMOTEIO: false} {
		m := newMachine(t)
		target, err := openDisk(m.root, "sda", diskSize)
		if err != nil {
			t.Fatal(err)
		}
		var tries atomic.Int32
		target.medium = rejecting{target.medium, fault, &tries}
		if err := target.makeZero(0, mebibyte); (err != nil) != gone || (target.fault.Load() != nil) != gone {
			t.Errorf("%v: %v, noted %v", fault, err, target.fault.Load())
		}
		target.close()
		want := int32(1)
		if errors.Is(fault, unix.EREMOTEIO) {
			want = int32(len(zeroWays))
		}
		if tries.Load() != want {
			t.Errorf("%v: %d ways of zeroing are tried, want %d", fault, tries.Load(), want)
		}
		if zeroed := bytes.Equal(m.content(t)[:mebibyte], make([]byte, mebibyte)); zeroed == gone {
			t.Errorf("%v: zeros are written: %t", fault, zeroed)
		}
	}
}
