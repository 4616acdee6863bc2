package install

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// TestImageOfADiskInstalledBefore: the image was read from a disk where an install has made its
// first-boot area, and a seed perhaps. Nothing of that is on the new disk, whatever the size of
// either, and it keeps the root from no growth.
func TestImageOfADiskInstalledBefore(t *testing.T) {
	t.Parallel()
	const smaller, size, oneMore, larger = 11 * mebibyte, 13 * mebibyte, 14 * mebibyte, 17*mebibyte + 3*gptSector
	head := partitioned(t)[:mebibyte]
	const rootEnd = 7*mebibyte/gptSector - 1
	for _, c := range []struct {
		size                    int64
		seedBefore, seed, grown bool
	}{
		{size, false, false, false},
		{size, false, true, false},
		{size, true, false, false},
		{size, true, true, false},
		{size, false, false, true},
		{size, false, true, true},
		{size, true, false, true},
		{size, true, true, true},
		{smaller, false, false, false},
		{smaller, false, true, false},
		{smaller, true, false, false},
		{smaller, true, true, false},
		{smaller, false, false, true},
		{smaller, false, true, true},
		{smaller, true, false, true},
		{smaller, true, true, true},
		{oneMore, false, false, false},
		{oneMore, false, true, false},
		{oneMore, true, false, false},
		{oneMore, true, true, false},
		{oneMore, false, false, true},
		{oneMore, false, true, true},
		{oneMore, true, false, true},
		{oneMore, true, true, true},
		{larger, false, false, false},
		{larger, false, true, false},
		{larger, true, false, false},
		{larger, true, true, false},
		{larger, false, false, true},
		{larger, false, true, true},
		{larger, true, false, true},
		{larger, true, true, true},
	} {
		l := layout{request: &agentv1.InstallRequest{InstallGeneration: 1}, size: size, seed: c.seedBefore}
		before, err := l.apply(head)
		if err != nil {
			t.Fatal(err)
		}
		l = layout{request: &agentv1.InstallRequest{InstallGeneration: 2}, size: c.size, seed: c.seed, grow: c.grown}
		after, err := l.apply(before.head)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		area, end, want := FirstBootOffset(c.size)/gptSector, int64(rootEnd), 3
		if c.grown {
			end = l.room()/gptSector - 1
		}
		if c.seed {
			want++
		}
		table, err := readTable(after.head, gptSector)
		if err != nil {
			t.Fatal(err)
		}
		earlier, err := readTable(before.head, gptSector)
		if err != nil {
			t.Fatal(err)
		}
		partitions := table.partitions()
		if len(partitions) != want || partitions[1].last != uint64(end) || partitions[want-1].first != uint64(area) || after.backup == nil {
			t.Errorf("%+v: the root is to end with %d, and the area to begin with %d: %v", c, end, area, partitions)
		}
		for _, p := range partitions[2:] {
			if slices.ContainsFunc(earlier.partitions(), func(e partition) bool { return e.id == p.id }) {
				t.Errorf("%+v: partition %d is of the install before: %v", c, p.number, p)
			}
		}
	}
}

// TestWhatOnlyLooksLikeThePartitionOfAnInstall stays, and is the last one where it is.
func TestWhatOnlyLooksLikeThePartitionOfAnInstall(t *testing.T) {
	t.Parallel()
	const reserved, data = "8DA63339-0007-60C0-C436-083AC8230908", "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"
	for name, last := range map[string]string{
		"another name":              fmt.Sprintf("size=2048, type=%s, name=reserved", reserved),
		"another size":              fmt.Sprintf("size=4096, type=%s, name=\"ironherd first boot\"", reserved),
		"another type":              fmt.Sprintf("size=2048, type=%s, name=\"ironherd first boot\"", data),
		"a seed before another":     fmt.Sprintf("size=4096, type=%s, name=cidata\nsize=2048, type=%s, name=mine", data, data),
		"a seed without an area":    fmt.Sprintf("size=4096, type=%s, name=cidata", data),
		"another seed at an area":   fmt.Sprintf("size=2048, type=%s, name=cidata\nsize=2048, type=%s, name=\"ironherd first boot\"", data, reserved),
		"other data before an area": fmt.Sprintf("size=4096, type=%s, name=mydata\nsize=2048, type=%s, name=\"ironherd first boot\"", data, reserved),
	} {
		image := imageOf(t, 8*mebibyte, "label: gpt\nstart=2048, size=2048, type=L, name=root\nstart=4096, "+last+"\n", func(string) {})
		l := layout{request: &agentv1.InstallRequest{}, size: 16 * mebibyte, grow: true}
		c, err := l.apply(image[:mebibyte])
		if err != nil {
			t.Fatal(err)
		}
		table, err := readTable(c.head, gptSector)
		if err != nil {
			t.Fatal(err)
		}
		partitions := table.partitions()
		stay := 1
		if strings.Contains(last, "mine") {
			stay++
		}
		if len(partitions) != 2+stay || partitions[0].last != 4095 || partitions[1].first != 4096 || partitions[stay].last != uint64(l.room()/gptSector-1) {
			t.Errorf("%s: %v", name, partitions)
		}
	}
}

// TestAnImageOfAnInstalledDiskGrows on a larger disk, and other tools find nothing to say of it.
func TestAnImageOfAnInstalledDiskGrows(t *testing.T) {
	t.Parallel()
	before, options := bigMachine(t)
	image := partitioned(t)
	request := requestFor(serveBytes(t, image), image)
	request.Image.FirstBootForm = agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD
	if report := Run(t.Context(), request, options); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	image, err := os.ReadFile(before.disk)
	if err != nil {
		t.Fatal(err)
	}
	m, options := bigMachine(t)
	const size = bigSize + 9*mebibyte
	options.Disks[0].SizeBytes = size
	if err := os.Truncate(m.disk, size); err != nil {
		t.Fatal(err)
	}
	request = requestFor(serveBytes(t, image), image)
	request.InstallGeneration++
	request.RootDisk = &agentv1.DiskSelector{Grow: true}
	if report := Run(t.Context(), request, options); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	if said := tool(t, "", "sfdisk", "-V", m.disk); !strings.Contains(said, "No errors detected") {
		t.Errorf("sfdisk says: %s", said)
	}
	start := FirstBootOffset(size) / gptSector
	table := tool(t, "", "sfdisk", "-d", m.disk)
	if !strings.Contains(table, fmt.Sprintf("start=        6144, size=%12d,", start-6144)) || strings.Contains(table, "cidata") ||
		strings.Count(table, "ironherd first boot") != 1 {
		t.Errorf("the table:\n%s", table)
	}
	disk, err := os.ReadFile(m.disk)
	if err != nil {
		t.Fatal(err)
	}
	area, err := ReadFirstBoot(bytes.NewReader(disk), size)
	if err != nil || area == nil || len(area.First.GetContent().GetPartitions()) != 3 {
		t.Errorf("the first-boot area: %v, %v", area, err)
	}
}
