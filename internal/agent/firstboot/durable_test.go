package firstboot

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestWhatIsWrittenSurvivesAPowerCut: a file is on stable storage before it has its name, and its
// name is when the call returns.
func TestWhatIsWrittenSurvivesAPowerCut(t *testing.T) { //nolint:paralleltest // it watches the calls of all of this process
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	wantSyncs(t, path, func() error { return writeFile(path, []byte("x"), 0o600) })
}

// wantSyncs wants a file to be synced while target is not there yet, and then the directory of
// target.
func wantSyncs(t *testing.T, target string, write func() error) {
	t.Helper()
	was := syncFile
	defer func() { syncFile = was }()
	var steps []string
	syncFile = func(f *os.File) error {
		_, err := os.Stat(target)
		switch {
		case f.Name() == filepath.Dir(target):
			steps = append(steps, fmt.Sprintf("directory, which has it: %t", err == nil))
		case filepath.Dir(f.Name()) == filepath.Dir(target):
			steps = append(steps, fmt.Sprintf("file, before it has its name: %t", err != nil))
		}
		return was(f)
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	if want := []string{"file, before it has its name: true", "directory, which has it: true"}; !slices.Equal(steps, want) {
		t.Errorf("%s: synced %q, want %q", target, steps, want)
	}
}
