package token_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

// TestAnEmptyFileHasNoTokens: a copy that was cut short, or a file that somebody made to fill it,
// takes tokens.
func TestAnEmptyFileHasNoTokens(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "\n", "# nobody yet\n", "---\n", "tokens:\n"} {
		path := filepath.Join(t.TempDir(), "tokens.yaml")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		tokens, err := token.Open(path, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Errorf("%q: %v", content, err)
			continue
		}
		ada := create(t, path, "ada", token.Admin)
		if _, ok, err := tokens.Find(ada); !ok || err != nil {
			t.Errorf("%q: the token that was made is found: %t, %v", content, ok, err)
		}
	}
}

// TestADamagedFile is left as it is by every command, and told from one that cannot be read. The
// sentence does not lead to a command that is refused with it again.
func TestADamagedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	create(t, path, "ada", token.Admin)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"hello", string(whole[:len(whole)-10]), string(whole) + "---\n{}\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := token.Create(path, "bob", token.Viewer, day)
		if fleet.KindOf(err) != fleet.KindInvalid || !token.Damaged(err) {
			t.Errorf("%q: %v", content, err)
		}
		if strings.Contains(err.Error(), "hello") {
			t.Errorf("the content is shown: %v", err)
		}
		if strings.Contains(err.Error(), "token create") && !strings.Contains(err.Error(), "move it away and make tokens anew") {
			t.Errorf("%q: the sentence leads to itself: %v", content, err)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != content {
			t.Errorf("%q was changed to %q, %v", content, now, err)
		}
	}
	if err := os.Rename(path, path+".damaged"); err != nil {
		t.Fatal(err)
	}
	create(t, path, "bob", token.Viewer)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := token.Read(path); err == nil || token.Damaged(err) {
		t.Errorf("open to others: %v", err)
	}
}
