package resources_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// TestCutOffManifests: what is left of a file that could not be written is not applied, and no
// object of it is deleted. One that has nothing but a comment wants nothing.
func TestCutOffManifests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	whole := configMap("one", "1") + strings.Replace(configMap("fixed", "long"), "\ndata:", "\nimmutable: true\ndata:", 1)
	w.write("a.yaml", whole)
	w.write("b.yaml", configMap("two", "1")+configMap("three", "1"))
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	uid := w.get(configMaps, "default", "fixed").GetUID()
	for text, says := range map[string]string{
		"": "it is empty", whole[:strings.Index(whole, "{key: \"long")]: "in the middle of a line",
	} {
		if err := os.WriteFile(filepath.Join(w.manifests, "a.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		w.patch(configMaps, "default", "one", `{"data":{"key":"edited"}}`)
		r := a.until("that the edit is taken back", func(_ reconciler.Report, _ error) bool {
			return fmt.Sprint(w.get(configMaps, "default", "one").Object["data"]) == "map[key:1]"
		})
		if r.Pruned+r.Recreated != 0 || r.Objects != 4 || !strings.Contains(fmt.Sprint(r.Failures), says) {
			t.Errorf("%q: %+v", text, r)
		}
	}
	if w.get(configMaps, "default", "fixed").GetUID() != uid {
		t.Error("what cannot be changed was created again")
	}
	w.write("a.yaml", "# nothing\n")
	if r := a.done(); r.Pruned != 2 {
		t.Errorf("a comment alone: %+v", r)
	}
}
