package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// TestThePublicHalfIsBesideTheKey: whatever became of it, it is there after the next start.
func TestThePublicHalfIsBesideTheKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ssh_key")
	logger := slog.New(slog.DiscardHandler)
	key, err := openKey(path, logger)
	if err != nil {
		t.Fatal(err)
	}
	written := key.Public() + " ironherd\n"
	for name, test := range map[string]struct{ before, after string }{
		"not there":       {"", written},
		"half of a line":  {key.Public()[:40], written},
		"of another key":  {"ssh-ed25519 AAAA ada\n", "ssh-ed25519 AAAA ada\n"},
		"there":           {written, written},
		"another comment": {key.Public() + " ada@desk\n", key.Public() + " ada@desk\n"},
	} {
		if err := os.Remove(path + ".pub"); err != nil {
			t.Fatal(err)
		}
		if test.before != "" {
			if err := os.WriteFile(path+".pub", []byte(test.before), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		again, err := openKey(path, logger)
		if err != nil || again.Public() != key.Public() {
			t.Fatalf("%s: %v", name, err)
		}
		if content, err := os.ReadFile(path + ".pub"); err != nil || string(content) != test.after {
			t.Errorf("%s: the file has %q, %v", name, content, err)
		}
	}
	// Where it cannot be written, the key counts all the same.
	if err := os.Remove(path + ".pub"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path+".pub", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := openKey(path, logger); err != nil {
		t.Error(err)
	}
}
