package provisioner_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/static"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// unread is a list whose file may hang or be broken when it is asked for one host.
type unread struct {
	*static.Provider
	hangs, broken bool
	asked         int
}

func (u *unread) Get(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	u.asked++
	switch {
	case u.broken:
		return provider.Entry{}, fleet.Errorf(fleet.KindInvalid, "the file is no list")
	case !u.hangs:
		return u.Provider.Get(ctx, id)
	}
	select {
	case <-ctx.Done():
		return provider.Entry{}, fleet.ContextError(ctx)
	case <-time.After(time.Minute):
		return provider.Entry{}, fleet.Errorf(fleet.KindTimeout, "the file did not answer")
	}
}

// TestAnotherListThatHangs, or cannot be read, costs a pass one question, however many addresses
// the two lists share. Meanwhile a host that may be one of the other list is left alone, and no
// machine is told to be two.
func TestAnotherListThatHangs(t *testing.T) {
	t.Parallel()
	t.Run("it hangs", func(t *testing.T) {
		t.Parallel()
		anotherListThatFails(t, func(u *unread, fails bool) { u.hangs = fails })
	})
	t.Run("it cannot be read", func(t *testing.T) {
		t.Parallel()
		anotherListThatFails(t, func(u *unread, fails bool) { u.broken = fails })
	})
}

func anotherListThatFails(t *testing.T, set func(u *unread, fails bool)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, db: shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})}
		hosts := func(prefix, jump string, n int) (lines []string) {
			for i := 1; i <= n; i++ {
				lines = append(lines, fmt.Sprintf("{id: %s%d, address: 10.0.0.%d, jump: {address: %s, %s}}", prefix, i, i, jump, jumpKey))
			}
			return lines
		}
		left, right := b.listed("left", hosts("l", "192.0.2.1", 3)...), b.listed("right", hosts("r", "192.0.2.2", 4)...)
		listed, is := right.Provider.(*static.Provider)
		if !is {
			t.Fatalf("the list is a %T", right.Provider)
		}
		other := &unread{Provider: listed}
		right.Provider = other
		b.manage(2, left, right)

		left = b.listed("left", hosts("l", "192.0.2.1", 4)...)
		set(other, true)
		b.manage(0, left, right)
		for range 4 { // two of each
			other.asked = 0
			outcome, took := b.passTook()
			if _, failed := outcome.(shepherd.Fail); failed || took > 40*time.Second || other.asked > 1 {
				t.Errorf("a pass took %s, asked the other list for %d hosts, and ended with %s", took, other.asked, text(outcome))
			}
		}
		machines, found := b.machinesOf("left")
		if machines != "l1 l2 l3" || len(found) != 1 || found[0].ProviderID != "l4" || found[0].Kind != fleet.DiscrepancyDuplicateMachine {
			t.Errorf("while it fails: machines %q, discrepancies %+v", machines, found)
		}
		set(other, false)
		b.manage(2, left, right)
		if machines, found := b.machinesOf("left"); machines != "l1 l2 l3 l4" || len(found) != 0 {
			t.Errorf("when it fails no more: machines %q, discrepancies %+v", machines, found)
		}
	})
}

// TestTwoMachinesOfOneHostStayToldWhileAListHangs: what an earlier pass found is not taken back
// without an answer, and nothing is taken in meanwhile.
func TestTwoMachinesOfOneHostStayToldWhileAListHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, db: shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})}
		hanging := func(hosts ...string) (provisioner.Source, *unread) {
			right := b.listed("right", hosts...)
			listed, is := right.Provider.(*static.Provider)
			if !is {
				t.Fatalf("the list is a %T", right.Provider)
			}
			other := &unread{Provider: listed}
			right.Provider = other
			return right, other
		}
		const l1, l2 = "{id: l1, address: 10.0.0.1}", "{id: l2, address: 10.0.0.2}"
		left := b.listed("left", l1, l2)
		right, _ := hanging("{id: r1, address: 10.0.1.1}", "{id: r2, address: 10.0.1.2}")
		b.manage(2, left, right)
		right, other := hanging("{id: r1, address: 10.0.0.1}", "{id: r2, address: 10.0.0.2}")
		b.manage(2, left, right)
		_, before := b.machinesOf("left")
		if len(before) != 2 {
			t.Fatalf("discrepancies %+v", before)
		}

		other.hangs = true
		left = b.listed("left", l1, l2, "{id: l9, address: 10.0.0.9}")
		b.manage(2, left, right)
		if machines, found := b.machinesOf("left"); machines != "l1 l2" || !slices.Equal(found, before) {
			t.Errorf("while the other list hangs: machines %q, discrepancies %+v, want %+v", machines, found, before)
		}
		right, _ = hanging("{id: r1, address: 10.0.1.1}", "{id: r2, address: 10.0.1.2}")
		b.manage(2, left, right)
		if machines, found := b.machinesOf("left"); machines != "l1 l2 l9" || len(found) != 0 {
			t.Errorf("put right: machines %q, discrepancies %+v", machines, found)
		}
	})
}
