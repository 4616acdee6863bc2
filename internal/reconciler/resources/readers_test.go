package resources

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/resources/manifest"
)

// TestReadersInPhase: where the manifests take longer to read than anybody waits, passes and who
// declares them each have what they have begun to read the time before, whichever comes first.
func TestReadersInPhase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(after("one")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, passFirst := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			a, err := offline(Options{Manifests: dir, Settled: -1, BuiltIn: nothing}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			slowly := func(path string) ([]byte, error) {
				time.Sleep(manifest.Limit + 2*time.Second)
				return os.ReadFile(path)
			}
			a.directory.LoadBy(slowly)
			readers := []func() bool{
				func() bool { return a.want(t.Context()).whole },
				func() bool { return a.Source(t.Context()).Whole() },
			}
			if !passFirst {
				readers[0], readers[1] = readers[1], readers[0]
			}
			for n := range 5 {
				for who, read := range readers {
					if !read() && n > 0 {
						t.Errorf("pass first %t, round %d: reader %d is told of a fault", passFirst, n, who)
					}
					time.Sleep(time.Second)
				}
				time.Sleep(DefaultAbsence)
			}
		})
	}
}
