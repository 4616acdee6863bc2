package provisioner_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestAnotherIronherdsDeviceIsNotRemoved: a device that carries a token which this database does
// not know is a machine of another control plane, or of a database that was lost.
func TestAnotherIronherdsDeviceIsNotRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		c := &crowded{FakeProvider: b.fake, devices: 1, tokens: []fleet.Token{fleet.NewToken()}}
		b.provider = c
		b.restart()
		b.pass()
		d := b.view().Discrepancies
		if len(d) != 1 || !strings.Contains(d[0].Evidence, "carries the token of an Ironherd") ||
			!strings.HasPrefix(d[0].Remedy, "neither remove nor adopt it before it is known which") {
			t.Fatalf("recorded are %+v", d)
		}
		c.tokens = nil
		b.pass()
		if d = b.view().Discrepancies; len(d) != 1 || strings.Contains(d[0].Evidence, "Ironherd") || d[0].Remedy != d[0].Kind.Remedy(source, d[0].ProviderID) {
			t.Errorf("recorded are %+v", d)
		}
	})
}
