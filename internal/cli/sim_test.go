package cli_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/cli"
)

// world runs a simulated world until it is ready, and returns what it has said.
func world(t *testing.T, dir string, args ...string) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	out := &untilSaid{text: "Control plane", said: stop}
	code := cli.Main(ctx, append([]string{"sim", "--machines", "1", "--dir", dir}, args...), cli.Env{
		Stdin: strings.NewReader(""), Stdout: out, Stderr: out, Executable: filepath.Join(dir, "ironherd"),
	})
	if code != 0 {
		t.Fatalf("got %d: %s", code, &out.all)
	}
	return out.all.String()
}

// TestAWorldKeepsItsConfiguration: sim writes the configuration anew until somebody changes it.
func TestAWorldKeepsItsConfiguration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "ironherd.yaml")
	read := func(path string) []byte {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	world(t, dir, "--image-size", "4")
	first := read(file)
	if said := world(t, dir, "--image-size", "8"); strings.Contains(said, "changed") || bytes.Equal(read(file), first) {
		t.Errorf("one that nobody changed is not written anew: %s", said)
	}
	changed := bytes.Replace(read(file), []byte("max_machines: 1\n"), []byte("max_machines: 7\n"), 1)
	if err := os.WriteFile(file, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	said := world(t, dir, "--image-size", "4")
	want := file + " is not as it was written last, and stays as it is. Remove it to have it written anew, as " + file + ".dist is.\n"
	if !strings.HasPrefix(said, want) || !bytes.Equal(read(file), changed) || !bytes.Equal(read(file+".dist"), first) {
		t.Errorf("one that somebody changed: %s\n%s", said, read(file))
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if said := world(t, dir, "--image-size", "4"); strings.Contains(said, "changed") || !bytes.Equal(read(file), first) {
		t.Errorf("one that is gone: %s\n%s", said, read(file))
	}
}
