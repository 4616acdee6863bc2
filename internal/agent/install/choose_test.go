package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	disks := []*agentv1.BlockDevice{
		{Name: "sdd", Serial: "D", SizeBytes: 500 * mebibyte, Wwn: "0xAB"},
		{Name: "sdc", Serial: "C", SizeBytes: 500 * mebibyte},
		{Name: "sdb", Serial: "B", SizeBytes: 100 * mebibyte},
		{Name: "sda", Serial: "A", SizeBytes: 2 * mebibyte},
		{Name: "sde", Serial: "E", SizeBytes: 900 * mebibyte, Removable: true},
		{Name: "sdf", Serial: "F", SizeBytes: 900 * mebibyte, ReadOnly: true},
		{Name: "sdg", Serial: "G", SizeBytes: 900 * mebibyte},
		{Name: "sdh", OtherPaths: []string{"sdq", "sdg"}, Serial: "H", SizeBytes: 900 * mebibyte},
		{Name: "../x", Serial: "X", SizeBytes: 900 * mebibyte},
	}
	inUse := func(name string) string {
		if name == "sdg" {
			return "is mounted at /"
		}
		return ""
	}
	tests := []struct {
		name     string
		selector *agentv1.DiskSelector
		need     int64
		want     string
		err      string
	}{
		{"smallest", &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_SMALLEST}, 1, "sdb", ""},
		{"smallest that holds the image", &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_SMALLEST}, 99 * mebibyte, "sdc", ""},
		{"largest, first by name", &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_LARGEST}, 1, "sdc", ""},
		{"minimum", &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_SMALLEST, MinSize: 101 * mebibyte}, 1, "sdc", ""},
		{"serial", &agentv1.DiskSelector{Serial: "D"}, 1, "sdd", ""},
		{"WWN in either case", &agentv1.DiskSelector{Wwn: "0xab"}, 1, "sdd", ""},
		{"serial and other WWN", &agentv1.DiskSelector{Serial: "C", Wwn: "0xab"}, 1, "", "no disk fits"},
		{"ambiguous", nil, 1, "", "3 disks match (sdb, sdc, sdd)"},
		{"mounted", &agentv1.DiskSelector{Serial: "G"}, 1, "", "sdg is mounted at /"},
		{"mounted by another path", &agentv1.DiskSelector{Serial: "H"}, 1, "", "sdh is mounted at / (as sdg)"},
		{"removable", &agentv1.DiskSelector{Serial: "E"}, 1, "", "sde is removable"},
		{"read-only", &agentv1.DiskSelector{Serial: "F"}, 1, "", "sdf is read-only"},
		{"too small", &agentv1.DiskSelector{Serial: "A"}, 1, "", "sda is too small"},
		{"bad name", &agentv1.DiskSelector{Serial: "X"}, 1, "", "name that makes no sense"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := choose(disks, test.selector, test.need, inUse)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, %v", got, err)
				}
				return
			}
			if err != nil || got.GetName() != test.want {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	if _, err := choose(nil, nil, 1, inUse); err == nil {
		t.Error("a disk out of nothing")
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, content := range map[string]string{
		"proc/self/mountinfo":                  "22 1 8:2 / / rw,relatime - ext4 /dev/sda2 rw\n",
		"proc/swaps":                           "Filename\tType\tSize\n/dev/sdb1 partition 1 0 -2\n",
		"sys/class/block/sda/dev":              "8:0\n",
		"sys/class/block/sda/sda2/dev":         "8:2\n",
		"sys/class/block/sda/sda2/partition":   "2\n",
		"sys/class/block/sdb/dev":              "8:16\n",
		"sys/class/block/sdb/sdb1/dev":         "8:17\n",
		"sys/class/block/sdb/sdb1/partition":   "1\n",
		"sys/class/block/sdc/dev":              "8:32\n",
		"sys/class/block/sdc/holders/dm-0/dev": "254:0\n",
		"sys/class/block/sdd/dev":              "8:48\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	usage := readUsage(root)
	for disk, want := range map[string]string{"sda": "is mounted at /", "sdb": "is used as swap", "sdc": "is held by dm-0", "sdd": ""} {
		if got := usage.of(disk); got != want {
			t.Errorf("%s %q, want %q", disk, got, want)
		}
	}
}

func FuzzUsage(f *testing.F) {
	f.Add([]byte("22 1 8:2 / / rw - ext4 /dev/sda2 rw\n"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		parseMounts(data)
		parseSwaps(data)
		parseContentRange(string(data))
	})
}
