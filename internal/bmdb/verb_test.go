package bmdb

import (
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestVerbs: each verb that package verb knows is done.
func TestVerbs(t *testing.T) {
	t.Parallel()
	for _, name := range fleet.Verbs() {
		if acts[name] == nil {
			t.Errorf("%s is not in the table of acts", name)
		}
	}
	if len(acts) != len(fleet.Verbs()) {
		t.Errorf("%d verbs are in the table, of %d", len(acts), len(fleet.Verbs()))
	}
}
