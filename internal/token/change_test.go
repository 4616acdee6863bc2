package token_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

func namesIn(t *testing.T, path string) string {
	t.Helper()
	all, err := token.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(all))
	for i, one := range all {
		names[i] = one.Name
	}
	return strings.Join(names, " ")
}

// TestExpiredTokensGo when there is no room left, and not before: a clock that is ahead for a while
// would take tokens that count.
func TestExpiredTokensGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "tokens.yaml")
		create(t, path, "old", token.Viewer)
		time.Sleep(400 * day)
		create(t, path, "expired", token.Viewer)
		time.Sleep(31*day - time.Second)
		if got := namesIn(t, path); got != "old expired" {
			t.Errorf("with room left: %s", got)
		}
		fill(t, path)
		create(t, path, "new", token.Viewer)
		got := namesIn(t, path)
		if !strings.Contains(got, "expired") || !strings.Contains(got, "new") || strings.Contains(got, "old") {
			t.Errorf("without room: %.100s", got)
		}
	})
}

// fill leaves no room for another token in a file.
func fill(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	full := bytes.NewBuffer(content)
	for i := 0; full.Len() < 1<<20-300; i++ {
		_, _ = fmt.Fprintf(full, "    - name: job-%07d\n      role: viewer\n      created: 1999-01-01T00:00:00Z\n      expires: %s\n      sha256: a%063d\n",
			i, time.Now().Add(day).UTC().Format(time.RFC3339), i)
	}
	if err := os.WriteFile(path, full.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestFullFile: what is written can be read, however many tokens there are.
func TestFullFile(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	ada := create(t, path, "ada", token.Admin)
	fill(t, path)
	tokens, err := token.Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for ; err == nil && made < 3; made++ {
		_, _, err = token.Create(path, fmt.Sprint("more-", made), token.Viewer, day)
		if _, ok, findErr := tokens.Find(ada); !ok {
			t.Fatalf("after %d more, no token counts: %v", made, findErr)
		}
	}
	if fleet.KindOf(err) != fleet.KindConflict || !strings.Contains(err.Error(), path+" has no room for this: it may have 1048576 bytes at most") {
		t.Errorf("after %d more: %v", made, err)
	}
	if err := token.Revoke(path, "job-0000007"); err != nil {
		t.Fatal(err)
	}
	create(t, path, "more", token.Viewer)
	if info, err := os.Stat(path); err != nil || info.Size() > most {
		t.Errorf("%d bytes, %v", info.Size(), err)
	}
}

// TestLinkedFile: a change by way of a link reaches whoever reads the file that it leads to.
func TestLinkedFile(t *testing.T) {
	t.Parallel()
	shared, link := filepath.Join(t.TempDir(), "shared.yaml"), filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.Symlink(shared, link); err != nil {
		t.Fatal(err)
	}
	ada := create(t, link, "ada", token.Admin)
	tokens, err := token.Open(shared, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := tokens.Find(ada); !ok || err != nil {
		t.Errorf("made by way of the link: %v, %v", ok, err)
	}
	if err := token.Revoke(link, "ada"); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := tokens.Find(ada); ok || err != nil {
		t.Errorf("revoked by way of the link: %v, %v", ok, err)
	}
	if target, err := os.Readlink(link); err != nil || target != shared {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	if os.Getuid() != 0 {
		return
	}
	before := create(t, shared, "bob", token.Admin)
	if err := os.Lchown(link, 4242, 4242); err != nil {
		t.Fatal(err)
	}
	if err := token.Revoke(link, "bob"); fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), "is a symbolic link") {
		t.Errorf("a link of a stranger's: %v", err)
	}
	if _, ok, err := tokens.Find(before); !ok || err != nil {
		t.Errorf("the file that it leads to: %v, %v", ok, err)
	}
}
