package inventory

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// A drive that keeps whoever asks it costs a report its limit once, and its own health.
func TestDriveHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 11 * time.Second
		var drives drives
		release := make(chan struct{})
		asked := make(map[string]int)
		counted := make(chan string, 100)
		ask := func(disk *agentv1.BlockDevice) error {
			counted <- disk.GetName()
			switch disk.GetName() {
			case "sdb":
				<-release
			case "sdc":
				return errors.New("it says no")
			case "sdd":
				panic("index out of range")
			}
			disk.Health = &agentv1.Health{Passed: true}
			return nil
		}
		look := func(wait time.Duration, healthy, warnings []string) {
			t.Helper()
			list := []*agentv1.BlockDevice{{Name: "sda"}, {Name: "sdb"}, {Name: "sdc"}, {Name: "sdd"}, {Name: "sde"}}
			began := time.Now()
			got := drives.ask(list, []int{0, 1, 2, 3}, limit, question{"health", ask})
			slices.Sort(got)
			if took := time.Since(began); took != wait {
				t.Errorf("the drives were waited for %s, not %s", took, wait)
			}
			if !slices.Equal(got, warnings) {
				t.Errorf("warnings: %q", got)
			}
			var told []string
			for _, disk := range list {
				if disk.GetHealth().GetPassed() {
					told = append(told, disk.GetName())
				}
			}
			if !slices.Equal(told, healthy) {
				t.Errorf("the health is known of %v, not of %v", told, healthy)
			}
			for len(counted) > 0 {
				asked[<-counted]++
			}
		}
		others := []string{"the health of sdc cannot be read: it says no", "the health of sdd cannot be read: a fault in the agent: index out of range"}
		with := func(first string) []string {
			return append([]string{"the health of sdb cannot be read: " + first}, others...)
		}
		look(limit, []string{"sda"}, with("the drive did not answer within 11s"))
		look(0, []string{"sda"}, with("the drive has not answered an earlier question"))
		close(release)
		synctest.Wait()
		look(0, []string{"sda", "sdb"}, others)
		if asked["sda"] != 3 || asked["sdb"] != 2 || asked["sde"] != 0 {
			t.Errorf("the drives were asked so often: %v", asked)
		}
	})
}

// TestDisksAreListedInTheTimeThatTheyHave: a drive that is silent is listed with the others.
func TestDisksAreListedInTheTimeThatTheyHave(t *testing.T) {
	t.Parallel()
	files := map[string]string{"sys/class/block/nvme0n1/size": "2000\n", "sys/class/block/nvme0n1/device/model": "M\n"}
	for path, text := range diskAt("pci0000:00/ata1/host0/target0:0:0/0:0:0:0", "sda", map[string]string{"vendor": "ATA\n", "model": "Samsung SSD 860 \n"}) {
		files[path] = text
	}
	root := tree(t, files)
	synctest.Test(t, func(t *testing.T) {
		release, begun := make(chan struct{}), time.Now()
		defer close(release)
		list := (&probe{root: root, live: true}).completeDisks(new(drives), time.Second, func(*agentv1.BlockDevice) error { <-release; return nil })
		if took := time.Since(begun); len(list) != 2 || took != time.Second {
			t.Errorf("%d disks after %s", len(list), took)
		}
	})
}
