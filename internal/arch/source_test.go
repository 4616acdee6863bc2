package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/ironherd/ironherd/"
)

// source is one Go file of the module.
type source struct {
	path      string // slash-separated, from the module's root
	pkg       string // directory of path
	name      string // package name
	test      bool
	generated bool
	file      *ast.File
	set       *token.FileSet
}

// sources returns every Go file that belongs to the main module.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := parseSources()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("only %d Go files were found below %s", len(all), root)
	}
	return all
}

// parseSources parses them once for all tests.
var parseSources = sync.OnceValues(func() (all []source, err error) {
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := filepath.ToSlash(strings.TrimPrefix(name, root+string(filepath.Separator)))
		if d.IsDir() {
			_, nested := os.Stat(filepath.Join(name, "go.mod"))
			if name != root && (nested == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, source{
			path: rel, pkg: path.Dir(rel), name: file.Name.Name, test: strings.HasSuffix(rel, "_test.go"),
			generated: ast.IsGenerated(file), file: file, set: set,
		})
		return nil
	})
	return all, err
})

// imports returns the import paths of a file.
func (s source) imports() []string {
	var paths []string
	for _, spec := range s.file.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

// table returns the body rows of the markdown table in ARCHITECTURE.md whose header starts with the
// two given cells; each row is the list of names in backquotes of its first and second cell.
func table(t *testing.T, first, second string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows, inside := map[string][]string{}, false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch {
		case !strings.HasPrefix(line, "|"):
			inside = false
		case strings.TrimSpace(cells[0]) == first && strings.TrimSpace(cells[1]) == second:
			inside = true
		case inside && !strings.HasPrefix(line, "|---"):
			names := quoted(cells[0])
			if len(names) != 1 {
				t.Fatalf("ARCHITECTURE.md: a row must name one %s: %s", first, line)
			}
			rows[names[0]] = quoted(cells[1])
		}
	}
	if len(rows) == 0 {
		t.Fatalf("ARCHITECTURE.md has no table | %s | %s |", first, second)
	}
	return rows
}

func quoted(cell string) []string {
	var names []string
	for i, part := range strings.Split(cell, "`") {
		if i%2 == 1 {
			names = append(names, part)
		}
	}
	return names
}

// matches reports whether a package is named by a pattern of the table: itself, or with * for one
// element.
func matches(pattern, pkg string) bool {
	ok, err := path.Match(pattern, pkg)
	return err == nil && ok
}

func anyMatches(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, pkg) })
}
