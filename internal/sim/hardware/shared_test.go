package hardware

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestSharedFilesAreMadeOnce: machines that are built at the same time want files that nobody has
// made yet. None of them may take away the file that another one is about to link.
func TestSharedFilesAreMadeOnce(t *testing.T) {
	t.Parallel()
	const machines, contents = 8, 400
	dir := t.TempDir()
	shared, err := NewShared(filepath.Join(dir, "shared"))
	if err != nil {
		t.Fatal(err)
	}
	var building sync.WaitGroup
	start := make(chan struct{})
	for m := range machines {
		building.Go(func() {
			<-start
			for c := range contents {
				if err := shared.link(filepath.Join(dir, fmt.Sprintf("%d-%d", m, c)), fmt.Sprint("content ", c)); err != nil {
					t.Errorf("machine %d: %v", m, err)
				}
			}
		})
	}
	close(start)
	building.Wait()
	for c := range contents {
		first, err := os.Stat(filepath.Join(dir, fmt.Sprintf("0-%d", c)))
		if err != nil {
			t.Fatal(err)
		}
		for m := range machines {
			other, err := os.Stat(filepath.Join(dir, fmt.Sprintf("%d-%d", m, c)))
			if err != nil || !os.SameFile(first, other) {
				t.Fatalf("content %d: machine %d has an inode of its own (%v)", c, m, err)
			}
		}
	}
	left, err := os.ReadDir(filepath.Join(dir, "shared"))
	if err != nil || len(left) != contents {
		t.Errorf("%d shared files (%v), want %d", len(left), err, contents)
	}
}
