package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

func TestCPUProfile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "profile")
	if _, err := startProfile(filepath.Join(path, "x")); fleet.KindOf(err) != fleet.KindInvalid {
		t.Errorf("a profile in a directory that is not there: %v", err)
	}
	stop, err := startProfile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if file, err := os.ReadFile(path); err != nil || len(file) == 0 {
		t.Errorf("the profile has %d bytes: %v", len(file), err)
	}
}
