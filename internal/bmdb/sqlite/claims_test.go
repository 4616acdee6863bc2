package sqlite_test

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestCrowdIsForgotten: who met others looks farther and takes any run of rows; who meets nobody any more takes those longest due, also
// when it takes one at a time.
func TestCrowdIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, err := bmdb.Open(t.Context(), open(t, filepath.Join(t.TempDir(), "bmdb")), bmdb.Options{Jitter: func() float64 { return 0.99 }})
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, db)
		machine := func() fleet.MachineID {
			t.Helper()
			id := fleet.NewMachineID()
			// A provider of its own, whose first pass is due at once.
			if err := bmdbtest.Stock(t.Context(), db, fleet.ProviderName("p-"+id), []fleet.MachineID{id}, nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			return id
		}
		c := &crowd{T: t, db: db}
		held := machine()
		holder := c.start("holder")
		if got := c.claim(holder, 1)[0].Subject.Machine; got != held {
			t.Fatalf("claimed %s, want %s", got, held)
		}
		time.Sleep(6 * time.Second)
		if err := holder.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // the row of what is held comes up
		ids := []fleet.MachineID{machine(), machine()}
		if got := c.claim(c.start("a"), 1)[0].Subject.Machine; got != ids[1] {
			t.Fatalf("in a crowd %s was claimed, want %s", got, ids[1])
		}
		machine()
		if got := c.claim(c.start("b"), 1)[0].Subject.Machine; got != ids[0] {
			t.Fatalf("with the crowd gone %s was claimed, want %s, which is due for longest", got, ids[0])
		}
	})
}
