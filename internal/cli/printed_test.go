package cli_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/cli"
)

// wordsOf returns what a shell takes for the words of a command.
func wordsOf(t *testing.T, command string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\n' `+command).Output()
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// TestPrintedCommandsAreOfWords: what demo and sim print can be pasted, wherever they are.
func TestPrintedCommandsAreOfWords(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "two words")
	program, kept := filepath.Join(dir, "ironherd"), filepath.Join(dir, "demo")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ironherd-agent"), []byte("an agent"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, said, _ := strings.Cut(world(t, filepath.Join(dir, "world"), "--image-size", "4", "--tls"), "Control plane:")
	got := strings.Join(wordsOf(t, strings.TrimSpace(said)), "|")
	if want := "SSL_CERT_FILE=" + dir + "/world/ca.pem|ironherd|serve|--config|" + dir + "/world/ironherd.yaml"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}

	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	out := &untilSaid{text: "/metrics", said: stop}
	code := cli.Main(ctx, []string{"demo", "--machines", "1", "--real-agents", "0", "--speed", "100", "--image-size", "4", "--dir", kept}, cli.Env{
		Stdin: strings.NewReader(""), Stdout: out, Stderr: out, Executable: program,
	})
	_, said, found := strings.Cut(out.all.String(), "end it all with Ctrl-C:\n\n")
	if code != 0 || !found {
		t.Fatalf("got %d: %s", code, &out.all)
	}
	for line := range strings.Lines(strings.TrimSpace(said)) {
		if strings.Contains(line, "| curl ") {
			if want := "$(cat '" + kept + "/viewer.token')"; !strings.Contains(line, want) || !strings.Contains(line, "--cacert '"+kept+"/") {
				t.Errorf("%s: no %s", line, want)
			}
			continue
		}
		if words := wordsOf(t, strings.TrimSpace(line)); words[0] != program || words[1] != "--server" || !strings.HasPrefix(words[2], "unix://"+kept) {
			t.Errorf("%s: %q", line, words)
		}
	}
}
