package machine

import (
	"strings"
	"sync"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/vm"
)

// building lets one distribution at a time be put together.
var building sync.Mutex

// Other systems than this host's are taken over as they come, too. What the preflight found is
// printed.
func TestOtherDistributions(t *testing.T) {
	onDemand(t)
	t.Parallel()
	for _, d := range distributions {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			ctx := bounded(t, limit)
			building.Lock()
			system, err := d.get(ctx, built.base, func(line string) { t.Log(line) })
			building.Unlock()
			check(t, err)
			port := freePort(t)
			c := stock(t, vm.BIOS, port)
			c.Disks[0].Path = overlay(t, c.Dir, system.disk)
			c.Kernel = &vm.Kernel{Image: system.kernel, Initrd: system.initrd, CommandLine: "root=/dev/vda rw console=ttyS0 panic=5"}
			m := boot(t, c)
			p := manage(t, initializer.TakeoverKexec, port, m, nil)
			awaitCarried(t, ctx, p, m)
			_, kernel, _ := strings.Cut(m.Console(), "Linux version ")
			kernel, _, _ = strings.Cut(kernel, " ")
			t.Logf("%s, kernel %s: taken over", d.name, kernel)
			for _, entry := range history(t, ctx, p) {
				if entry.GetEvent() == string(fleet.EventTakeoverWarning) {
					t.Logf("warning: %s", entry.GetDetail())
				}
			}
		})
	}
}
