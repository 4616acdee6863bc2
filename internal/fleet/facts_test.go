package fleet_test

import (
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestDiskSerial: a report says it as the disk does, or not at all.
func TestDiskSerial(t *testing.T) {
	t.Parallel()
	for disk, want := range map[string]string{
		"":                                     "",
		fleet.DiskUnknown:                      "",
		"/dev/sda":                             "",
		fleet.DiskWithSerial("/dev/sda", "S1"): "S1",
		fleet.DiskWithSerial("/dev/sda", "S (serial 1)"): "S (serial 1)",
		fleet.DiskWithSerial("/dev/sda", "S…"):           "",
		fleet.DiskWithSerial("/dev/sda", "S\uFFFD"):      "",
	} {
		if got := (fleet.InstallReport{Disk: disk}).DiskSerial(); got != want {
			t.Errorf("%q: %q, want %q", disk, got, want)
		}
	}
}
