package daemon_test

import (
	"os"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestADamagedFileIsNotInOrder: pages that are not SQLite's are found, wherever in the file they
// are, and the way out is named.
func TestADamagedFileIsNotInOrder(t *testing.T) {
	t.Parallel()
	c := settings(t)
	if err := open(t, c).Close(); err != nil {
		t.Fatal(err)
	}
	if found, err := daemon.CheckDatabase(t.Context(), c); err != nil || len(found) > 0 {
		t.Fatalf("a new database: %v, %v", found, err)
	}
	file, err := os.OpenFile(c.Database.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err == nil {
		_, err = file.WriteAt([]byte(strings.Repeat("x", 4096)), info.Size()/2/4096*4096)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = daemon.CheckDatabase(t.Context(), c)
	if fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), "is damaged") || !strings.Contains(err.Error(), "ironherd db restore FILE") {
		t.Errorf("%s: %v", fleet.KindOf(err), err)
	}
}
