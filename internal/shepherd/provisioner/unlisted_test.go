package provisioner_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// incomplete is a provider whose list lacks some of its machines.
type incomplete struct {
	*shepherdtest.FakeProvider
	lacks []fleet.ProviderID
}

func (i *incomplete) List(ctx context.Context) ([]provider.Entry, error) {
	all, err := i.FakeProvider.List(ctx)
	return slices.DeleteFunc(all, func(e provider.Entry) bool { return slices.Contains(i.lacks, e.ID) }), err
}

// TestAListThatLacksMachinesIsTold: no discrepancy shows a list that lacks up to half of what is
// there, because each machine is there when it is asked for. The result of the pass tells it.
func TestAListThatLacksMachinesIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := settled(t, 6)
		devices := b.fake.Devices()
		list := &incomplete{FakeProvider: b.fake}
		b.provider = list
		b.restart()
		for _, test := range []struct {
			lacks, gone int
			want        string
		}{
			{0, 0, "6 used, 0 free"},
			{2, 0, "4 used, 0 free, 2 not in its list, and there when asked for by ID"},
			{2, 1, "4 used, 0 free, 2 not in its list, of which 1 are there when asked for by ID, creation is stopped: 1 discrepancy"},
		} {
			list.lacks = nil
			for _, d := range devices[:test.lacks] {
				list.lacks = append(list.lacks, d.ID)
			}
			b.lose(devices[:test.gone])
			if b.pass(); strings.TrimSpace(b.result()) != test.want {
				t.Errorf("the list lacks %d machines, and %d are gone: %q, want %q", test.lacks, test.gone, b.result(), test.want)
			}
		}
	})
}
