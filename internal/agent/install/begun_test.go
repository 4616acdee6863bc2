package install

import (
	"os"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// TestRecordOfAnotherInstall: what other installs have left in the slots does not hide that this
// one has begun. Such an install may be another machine's, whose disk it was, or one that the
// control plane does not know of any more.
func TestRecordOfAnotherInstall(t *testing.T) {
	t.Parallel()
	record := func(machine string, generation int64, attempt int32) *agentv1.BegunInstall {
		return &agentv1.BegunInstall{MachineId: machine, InstallGeneration: generation, Attempt: attempt}
	}
	for name, test := range map[string]struct {
		left  begunRecords
		stays bool // one of those that were there
	}{
		"none":                                 {begunRecords{}, false},
		"another machine's first":              {begunRecords{record("other", 9, 1), nil}, false},
		"another machine's second":             {begunRecords{nil, record("other", 9, 1)}, false},
		"other machines'":                      {begunRecords{record("other", 9, 1), record("another", 10, 1)}, false},
		"another machine's older one":          {begunRecords{nil, record("other", 1, 1)}, false},
		"one before a restore":                 {begunRecords{record("m", 9, 1), nil}, false},
		"a later attempt before a restore":     {begunRecords{record("m", 3, 9), nil}, false},
		"an earlier attempt":                   {begunRecords{nil, record("m", 3, 1)}, true},
		"an earlier one beside a stranger's":   {begunRecords{record("other", 9, 1), record("m", 3, 1)}, true},
		"an older one, after which it was cut": {begunRecords{record("m", 2, 1), record("m", 1, 1)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, options := bigMachine(t)
			if err := os.WriteFile(m.disk, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			target, err := openDisk(m.root, "sda", bigSize)
			if err != nil {
				t.Fatal(err)
			}
			defer target.close()
			area := FirstBootOffset(bigSize)
			for i, begun := range test.left {
				if begun == nil {
					continue
				}
				data, err := encodeArea(begunMagic, begun)
				if err == nil {
					err = target.write(data, area+begunSlots[i])
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			head := partitioned(t)[:mebibyte]
			request := &agentv1.InstallRequest{InstallGeneration: 3, Attempt: 2, BootToken: &agentv1.BootToken{MachineId: "m"}}
			if err := target.begin(request, changes{head: head}); err != nil {
				t.Fatal(err)
			}
			if err := target.write(head[:512], 0); err != nil { // then the power is cut
				t.Fatal(err)
			}
			if found, why, err := foreign(target.file, bigSize, "m", 0); len(found) > 0 || err != nil {
				t.Errorf("what it has left is taken for a stranger: %q%s, %v", found, why, err)
			}
			if generation := readMark(m.root, options.Disks[0]).generation("m"); generation != 3 {
				t.Errorf("the disk counts as one of install generation %d", generation)
			}
			now, err := readBegun(target.file, bigSize)
			if err != nil {
				t.Fatal(err)
			}
			if both := now[0] != nil && now[1] != nil; both != test.stays {
				t.Errorf("records: %v", now)
			}
		})
	}
}
