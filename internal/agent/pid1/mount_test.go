package pid1

import "testing"

// Parameters on the kernel's command line reach the modules that they are for.
func TestParametersOfModules(t *testing.T) {
	t.Parallel()
	const line = "console=ttyS0,115200n8 libata.force=1.5Gbps libata.noacpi nvme-core.io_timeout=255 nvme_core.max_retries=3 nvme=libata.x rdinit=/init\n"
	for path, want := range map[string]string{
		"/lib/modules/libata.ko":    "force=1.5Gbps noacpi",
		"/lib/modules/nvme_core.ko": "io_timeout=255 max_retries=3",
		"/lib/modules/nvme.ko":      "",
		"/lib/modules/bonding.ko":   "max_bonds=0",
	} {
		if got := parametersOf(path, line); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
