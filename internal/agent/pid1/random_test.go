package pid1

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"unsafe"
)

// TestSeed adds to this kernel's randomness, where it may.
func TestSeed(t *testing.T) {
	t.Parallel()
	seed := NewSeed()
	if len(seed) != seedBytes || bytes.Equal(seed, NewSeed()) {
		t.Errorf("seed: %x", seed)
	}
	info := poolInfo(seed)
	header := (*struct{ bits, bytes int32 })(unsafe.Pointer(&info[0]))
	if header.bits != 512 || header.bytes != 64 || !bytes.Equal(info[8:], seed) {
		t.Errorf("what the kernel gets: %x", info)
	}
	path := filepath.Join(t.TempDir(), "seed")
	if err := os.WriteFile(path, seed, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := AddSeed(path); err != nil && !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the seed is still there")
	}
	if err := AddSeed(path); err == nil {
		t.Error("a seed was added twice")
	}
}
