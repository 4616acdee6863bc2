package command

import (
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/reconciler"
)

// TestDeletionsAreShown: status and plan name what finalizers hold, each on one line. Status tells
// of what will not be deleted, too, and of nodes that are not set alike.
func TestDeletionsAreShown(t *testing.T) {
	t.Parallel()
	held := []reconciler.Deletion{
		{Object: "Secret default/old", Finalizers: []string{"example.com/vault", "x\x1b[31m"}, Since: time.Unix(1800000000, 0)},
		{Object: "ConfigMap default/old", Finalizers: []string{"y"}, Since: time.Unix(1800000000, 0)},
	}
	const first, second = "Secret default/old: its deletion began at 2027-01-15T08:00:00Z, and its finalizers hold it: example.com/vault, x [31m\n",
		"ConfigMap default/old: its deletion began at 2027-01-15T08:00:00Z, and its finalizers hold it: y\n"
	var text strings.Builder
	statusTable(&text, reconciler.Overview{NoLeader: "x", Deletions: &reconciler.Deletions{Count: 5, Objects: held}})
	if want := "\nbeing deleted:  " + first + "                " + second + "                and 3 more\n"; !strings.Contains(text.String(), want) {
		t.Errorf("status says\n%s\nwant\n%s", text.String(), want)
	}
	text.Reset()
	statusTable(&text, reconciler.Overview{NoLeader: "x", Deletions: &reconciler.Deletions{Unrecorded: 3}})
	if want := "\ninventory:  wanted objects that bear the mark of their creation by the reconciler, and that the inventory does not have as they are: 3; "; !strings.Contains(text.String(), want) ||
		strings.Contains(text.String(), "being deleted") {
		t.Errorf("status says\n%s\nwant\n%s", text.String(), want)
	}
	text.Reset()
	statusTable(&text, reconciler.Overview{NoLeader: "x", Differ: "n1 and n2"})
	if want := "\nsettings:  n1 and n2 keep different objects, though their reconcilers are of one release: compare built_in, "; !strings.Contains(text.String(), want) {
		t.Errorf("status says\n%s\nwant\n%s", text.String(), want)
	}
	text.Reset()
	(&app{}).diffText(&text, reconciler.Diff{Objects: 1, Deleting: held}, false)
	if want := "being deleted: " + first + "being deleted: " + second + "0 objects would change; 1 are wanted\n"; text.String() != want {
		t.Errorf("plan says\n%s\nwant\n%s", text.String(), want)
	}
}
