package postgres_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// only is what PostgreSQL has and compatible engines lack. Nothing may be correct because of it.
var only = regexp.MustCompile(`(?i)\b(notify|pg_notify|listen|unlisten|\w*advisory\w*|ctid|unlogged|xmin|xmax|tableoid|\w*txid\w*|lock\s+table)\b`)

// forSpeed are the files that may have it, because what is in them only saves time.
var forSpeed = []string{"notifier.go"}

// texts returns what may be SQL in a file: all of it but the comments, or the string literals of
// Go.
func texts(t *testing.T, path string) []string {
	t.Helper()
	if strings.HasSuffix(path, ".sql") {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return []string{regexp.MustCompile(`--.*`).ReplaceAllString(string(content), "")}
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil {
				list = append(list, text)
			}
		}
		return true
	})
	return list
}

// TestSQLIsPortable: no statement of the BMDB needs NOTIFY, an advisory lock, a row's place or an
// unlogged table.
func TestSQLIsPortable(t *testing.T) {
	t.Parallel()
	files := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".sql") {
			return err
		}
		for _, name := range forSpeed {
			if filepath.Base(path) == name {
				return nil
			}
		}
		files++
		for _, text := range texts(t, path) {
			for _, found := range only.FindAllString(text, -1) {
				t.Errorf("%s: %q in %.80q: not every engine has it", path, found, strings.TrimSpace(text))
			}
		}
		return nil
	})
	if err != nil || files < 30 {
		t.Fatalf("%d files, %v", files, err)
	}
	for _, bad := range []string{"SELECT pg_advisory_lock(1)", "CREATE UNLOGGED TABLE x", "WHERE ctid = $1", "NOTIFY x"} {
		if !only.MatchString(bad) {
			t.Errorf("%s is not found: the test tests nothing", bad)
		}
	}
}
