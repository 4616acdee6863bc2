package fleet_test

import (
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestClip: the mark comes on top of the bytes that are left, and half a character is not left.
func TestClip(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", "four": "four", "fiver": "five…", "abcéd": "abc…", "ab\xffcde": "abc…"} {
		if got := fleet.Clip(text, 4); got != want {
			t.Errorf("%q is cut to %q, want %q", text, got, want)
		}
	}
}
