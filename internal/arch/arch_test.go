package arch_test

import (
	"go/ast"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// row returns the row of the import table that a package falls under: its own, else the one whose
// pattern matches it.
func row(rows map[string][]string, pkg string) (allowed []string, found bool) {
	if allowed, found = rows[pkg]; found {
		return allowed, true
	}
	for pattern, allowed := range rows {
		if matches(pattern, pkg) {
			return allowed, true
		}
	}
	return nil, false
}

func TestImportTable(t *testing.T) {
	t.Parallel()
	rows := table(t, "package", "may import")
	used := map[string]bool{}
	for _, s := range sources(t) {
		if strings.HasPrefix(s.pkg, "test/") || s.pkg == "test" {
			continue // end-to-end programs start the real thing
		}
		allowed, found := row(rows, s.pkg)
		if !found {
			t.Errorf("%s: package %s has no row in ARCHITECTURE.md", s.path, s.pkg)
			continue
		}
		for pattern := range rows {
			used[pattern] = used[pattern] || matches(pattern, s.pkg)
		}
		if s.test {
			continue
		}
		for _, p := range s.imports() {
			ours, ok := strings.CutPrefix(p, module)
			if ok && !anyMatches(allowed, ours) {
				t.Errorf("%s imports %s: ARCHITECTURE.md allows %s only %v", s.path, ours, s.pkg, allowed)
			}
		}
	}
	for pattern := range rows {
		if !used[pattern] {
			t.Errorf("ARCHITECTURE.md has a row for %s, but there is no such package", pattern)
		}
	}
}

func TestHeavyLibrariesAreAtHome(t *testing.T) {
	t.Parallel()
	homes := table(t, "library", "home")
	for _, s := range sources(t) {
		if s.test || strings.HasPrefix(s.pkg, "test/") {
			continue
		}
		for _, p := range s.imports() {
			for library, home := range homes {
				if (p == library || strings.HasPrefix(p, library+"/")) && !anyMatches(home, s.pkg) {
					t.Errorf("%s imports %s, whose home is %v", s.path, p, home)
				}
			}
		}
	}
}

func TestBinariesDoNotLink(t *testing.T) {
	t.Parallel()
	for binary, forbidden := range table(t, "binary", "must not link") {
		list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", "grpcnotrace,nethttpomithttp2", "./"+binary)
		list.Dir = filepath.Join(root)
		out, err := list.Output()
		if err != nil {
			t.Fatalf("%s: %v", strings.Join(list.Args, " "), err)
		}
		for dep := range strings.FieldsSeq(string(out)) {
			dep = strings.TrimPrefix(dep, module)
			for _, f := range forbidden {
				// its driver interfaces come with UUIDs
				if dep == f || strings.HasPrefix(dep, f+"/") && f != "database/sql" {
					t.Errorf("%s links %s", binary, dep)
				}
			}
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	t.Parallel()
	commented := map[string]bool{}
	for _, s := range sources(t) {
		if s.test && !commented[s.pkg] {
			commented[s.pkg] = commented[s.pkg] || s.file.Doc.Text() != ""
			continue
		}
		commented[s.pkg] = commented[s.pkg] || s.generated || len(s.file.Doc.Text()) > 40
	}
	for pkg, ok := range commented {
		if !ok {
			t.Errorf("package %s has no package comment", pkg)
		}
	}
}

// forbidden calls, outside main packages: each takes a decision from those who own it.
var forbidden = map[string][]string{
	"os":      {"Exit", "Getenv", "LookupEnv"},
	"log":     {"*"},
	"time":    {"Sleep"},
	"context": {"Background", "TODO"},
	"slog":    {"Default", "SetDefault"},
}

func TestForbiddenCalls(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if s.name == "main" || s.generated {
			continue
		}
		bubble := slices.Contains(s.imports(), "testing/synctest")
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := sel.X.(*ast.Ident)
			if !ok || pkg.Obj != nil { // an identifier that is declared in the file is no package
				return true
			}
			names := forbidden[pkg.Name]
			if !slices.Contains(names, sel.Sel.Name) && !slices.Contains(names, "*") {
				return true
			}
			// Tests may do all of it but guess at time; in a bubble, sleeping is exact.
			if s.test && (pkg.Name != "time" || bubble) {
				return true
			}
			t.Errorf("%s: %s.%s belongs to main packages", s.set.Position(n.Pos()), pkg.Name, sel.Sel.Name)
			return true
		})
	}
}

// TestSourceSize keeps files and functions readable. A file that tells one story may be longer: it
// is named here.
func TestSourceSize(t *testing.T) {
	t.Parallel()
	const maxFile, maxFunction = 500, 80
	for _, s := range sources(t) {
		if s.generated {
			continue
		}
		if lines := s.set.Position(s.file.End()).Line; lines > maxFile {
			t.Errorf("%s has %d lines, more than %d", s.path, lines, maxFile)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if lines := s.set.Position(f.End()).Line - s.set.Position(f.Pos()).Line; lines > maxFunction && !s.test {
				t.Errorf("%s: %s has %d lines, more than %d", s.path, f.Name.Name, lines, maxFunction)
			}
		}
	}
}
