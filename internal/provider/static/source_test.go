package static

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOneListHasOneSource, however it is written.
func TestOneListHasOneSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	list, link := filepath.Join(dir, "hosts.yaml"), filepath.Join(dir, "link.yaml")
	if err := os.WriteFile(list, []byte(fiveHosts), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(list, link); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		a, b Config
		same bool
	}{
		{Config{Path: list}, Config{Path: link}, true},
		{Config{Path: list}, Config{Path: filepath.Join(dir, "other.yaml")}, false},
		{Config{Path: dir + "/x/../none"}, Config{Path: dir + "/none"}, true},
		{Config{URL: "https://lists.example"}, Config{URL: "https://Lists.Example:443/#rack"}, true},
		{Config{URL: "http://localhost:80/a"}, Config{URL: "http://localhost/a"}, true},
		{Config{URL: "http://localhost:443/a"}, Config{URL: "http://localhost/a"}, false},
		{Config{URL: "https://lists.example/a?rack=1"}, Config{URL: "https://lists.example/a?rack=2"}, false},
		{Config{URL: "https://lists.example/a"}, Config{URL: "https://lists.example/A"}, false},
	} {
		key, a := test.a.Source()
		if _, b := test.b.Source(); (a == b) != test.same || (key == "path") != (test.a.Path != "") || a == "" {
			t.Errorf("%+v is %s %q, %+v is %q", test.a, key, a, test.b, b)
		}
	}
	if key, source := (Config{}).Source(); key != "" || source != "" {
		t.Errorf("no list is %q, %q", key, source)
	}
}
