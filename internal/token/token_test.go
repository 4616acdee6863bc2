package token_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

const day = 24 * time.Hour

func create(t *testing.T, path, name string, role token.Role) string {
	t.Helper()
	text, _, err := token.Create(path, name, role, day)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestCreateFindRevoke(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "tokens.yaml")
		var log bytes.Buffer
		f, err := token.Open(path, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatalf("a file that is not there: %v", err)
		}
		ada, ci := create(t, path, "ada", token.Admin), create(t, path, "ci", token.Metrics)
		stored, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		for _, text := range []string{ada, ci} {
			if len(text) < 50 || strings.Contains(string(stored), text) || strings.Contains(string(stored), text[9:]) {
				t.Errorf("token %q, stored as\n%s", text, stored)
			}
		}
		got, ok, err := f.Find(ci)
		if err != nil || !ok || got.Name != "ci" || got.Role != token.Metrics || got.Expired(time.Now()) {
			t.Errorf("%+v, %v, %v", got, ok, err)
		}
		for _, guess := range []string{"", ci[:len(ci)-1], ci + " ", got.Hash} {
			if _, ok, err := f.Find(guess); ok || err != nil {
				t.Errorf("%q is found, %v", guess, err)
			}
		}
		if _, _, err := token.Create(path, "ci", token.Viewer, day); fleet.KindOf(err) != fleet.KindConflict {
			t.Errorf("a name that is taken: %v", err)
		}
		time.Sleep(day)
		if got, ok, _ := f.Find(ci); !ok || !got.Expired(time.Now()) {
			t.Errorf("a day later: %+v, %v", got, ok)
		}
		again := create(t, path, "ci", token.Viewer)
		if _, ok, _ := f.Find(ci); ok {
			t.Error("the token that was replaced is found")
		}
		if got, ok, _ := f.Find(again); !ok || got.Role != token.Viewer {
			t.Errorf("the token that replaced it: %+v, %v", got, ok)
		}
		if err := token.Revoke(path, "ci"); err != nil {
			t.Fatal(err)
		}
		if _, ok, _ := f.Find(again); ok {
			t.Error("a revoked token is found")
		}
		if err := token.Revoke(path, "ci"); fleet.KindOf(err) != fleet.KindNotFound {
			t.Errorf("revoked twice: %v", err)
		}
		if log.Len() > 0 {
			t.Errorf("logged: %s", &log)
		}
	})
}

func TestAFileWithAFaultLetsNobodyIn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	text := create(t, path, "ada", token.Admin)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	f, err := token.Open(path, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	change := func(old, with string) string { return strings.Replace(string(good), old, with, 1) }
	for want, content := range map[string]string{
		"is not a file of tokens":       "hello",
		"token 1 must have a name":      change("name: ada", "name: Ada Lovelace"),
		"token 1 has no role":           change("role: admin", "role: king"),
		"token 1 has no expiry":         change("expires", "# expires"),
		"token 1 must have the SHA-256": change("sha256: ", "sha256: 00"),
		"two tokens are named ada":      string(good) + strings.TrimPrefix(string(good)[strings.Index(string(good), "tokens:"):], "tokens:\n"),
		"is not a file of tokens: put":  change("role:", "rolle:"),
		path + ":8: another YAML document begins here, of which no token would count: move its tokens": string(good) + "---\ntokens: []\n",
		path + " is not a file of tokens": string(good) + "---\n[",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := f.Find(text); ok || fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, ok, err)
		}
		if _, err := token.Open(path, slog.New(slog.DiscardHandler)); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%s: opened, %v", want, err)
		}
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := f.Find(text); !ok || err != nil {
		t.Errorf("the file is whole again: %v, %v", ok, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := f.Find(text); ok || err == nil || !strings.Contains(err.Error(), "open to others") {
		t.Errorf("a file that others can read: %v, %v", ok, err)
	}
	if logged := log.String(); !strings.Contains(logged, "cannot be read") || strings.Contains(logged, text) {
		t.Errorf("the log: %s", logged)
	}
}

func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	for want, call := range map[string]func() error{
		"cannot be the name of a token": func() error { _, _, err := token.Create(path, "A b", token.Viewer, day); return err },
		`there is no role "king": use one of metrics, viewer, operator, admin`: func() error {
			_, _, err := token.Create(path, "a", "king", day)
			return err
		},
		"not for 0s": func() error { _, _, err := token.Create(path, "a", token.Viewer, 0); return err },
		"ten years":  func() error { _, _, err := token.Create(path, "a", token.Viewer, token.MaxLife+day); return err },
	} {
		if err := call(); fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a file was made all the same")
	}
}

// TestManyMakeTokensAtOnce loses none of them.
func TestManyMakeTokensAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "tokens.yaml")
	var wait sync.WaitGroup
	const makers = 16
	for i := range makers {
		wait.Go(func() {
			if _, _, err := token.Create(path, fmt.Sprint("t", i), token.Viewer, day); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if all, err := token.Read(path); err != nil || len(all) != makers {
		t.Errorf("%d tokens, %v", len(all), err)
	}
}

func TestRolesCover(t *testing.T) {
	t.Parallel()
	order := append([]token.Role{token.None}, token.Roles()...)
	for i, have := range order {
		for j, needed := range order {
			if have.Covers(needed) != (i >= j) {
				t.Errorf("%q covers %q: %v", have, needed, have.Covers(needed))
			}
		}
		if have.Covers("king") != (have == token.Admin) || token.Role("king").Covers(have) != (have == token.None) {
			t.Errorf("%q and a role that is not known", have)
		}
	}
}
