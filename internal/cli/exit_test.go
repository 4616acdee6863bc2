package cli

import (
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

func TestEveryKindHasAnExitCode(t *testing.T) {
	t.Parallel()
	for _, kind := range fleet.Kinds() {
		code, ok := exitCodes[kind]
		if !ok || code == exitDone {
			t.Errorf("%s has exit code %d (%v)", kind, code, ok)
		}
	}
	if len(exitCodes) != len(fleet.Kinds()) {
		t.Error("there is an exit code for a kind that does not exist")
	}
}
