package bmdb

import (
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestVerbs: each verb says what it does, when it is possible, and does it.
func TestVerbs(t *testing.T) {
	t.Parallel()
	for _, name := range fleet.Verbs() {
		v, known := verbs[name]
		if !known || v.does == nil || v.apply == nil || v.possible == nil && name != fleet.VerbForget {
			t.Errorf("%s is not in the table of verbs, or not as a whole", name)
		}
	}
	if len(verbs) != len(fleet.Verbs()) {
		t.Errorf("%d verbs are in the table, of %d", len(verbs), len(fleet.Verbs()))
	}
}
