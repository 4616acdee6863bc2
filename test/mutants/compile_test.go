package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// listed is what `go list` says of a package.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	ImportMap               map[string]string
}

// list returns the packages that faults are planted in, and all that they import, each with the
// file that has what it exports.
func list(t *testing.T, dirs []string) (byDir, byPath map[string]listed) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", append([]string{
		"list", "-trimpath", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,ImportMap",
	}, dirs...)...)
	command.Dir, command.Stderr = root, t.Output()
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	byDir, byPath = map[string]listed{}, map[string]listed{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return byDir, byPath
		} else if err != nil {
			t.Fatal(err)
		}
		byDir[p.Dir], byPath[p.ImportPath] = p, p
	}
}

// TestPatchesCompile: a fault that does not compile shows nothing, and is found only when somebody
// plants it.
func TestPatchesCompile(t *testing.T) {
	t.Parallel()
	all, err := read("patches")
	if err != nil {
		t.Fatal(err)
	}
	absolute, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	planted := map[string]map[string]map[string]string{} // text by directory, fault and name
	for _, m := range all {
		for file, list := range m.files {
			if path.Ext(file) != ".go" {
				continue
			}
			text, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				t.Fatal(err)
			}
			changed, err := plant(string(text), list)
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(absolute, path.Dir(file))
			if planted[dir] == nil {
				planted[dir] = map[string]map[string]string{}
			}
			if planted[dir][m.name] == nil {
				planted[dir][m.name] = map[string]string{}
			}
			planted[dir][m.name][filepath.Base(file)] = changed
		}
	}
	byDir, byPath := list(t, slices.Sorted(maps.Keys(planted)))
	for dir, faults := range planted {
		t.Run(strings.TrimPrefix(dir, absolute+"/"), func(t *testing.T) {
			t.Parallel()
			p, err := parsePackage(byDir[dir], byPath)
			if err != nil {
				t.Fatal(err)
			}
			for name, changed := range faults {
				if err := p.check(changed); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// parsed is a package, and what it imports as far as somebody has asked for it.
type parsed struct {
	listed
	set     *token.FileSet
	files   map[string]*ast.File
	imports types.Importer
}

// parsePackage reads a package as it is.
func parsePackage(p listed, byPath map[string]listed) (parsed, error) {
	if len(p.GoFiles) == 0 {
		return parsed{}, fmt.Errorf("there is no package in %s", p.Dir)
	}
	lookup := func(imported string) (io.ReadCloser, error) {
		if mapped, ok := p.ImportMap[imported]; ok {
			imported = mapped
		}
		if byPath[imported].Export == "" {
			return nil, fmt.Errorf("nothing is known of %s", imported)
		}
		return os.Open(byPath[imported].Export)
	}
	set := token.NewFileSet()
	whole := parsed{p, set, map[string]*ast.File{}, importer.ForCompiler(set, "gc", lookup)}
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return parsed{}, err
		}
		whole.files[name] = file
	}
	return whole, nil
}

// check checks the types of the package in which files have another text.
func (p parsed) check(changed map[string]string) error {
	files := maps.Clone(p.files)
	for name, text := range changed {
		file, err := parser.ParseFile(p.set, filepath.Join(p.Dir, name), text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files[name] = file
	}
	config := types.Config{Importer: p.imports, Sizes: types.SizesFor("gc", runtime.GOARCH)}
	_, err := config.Check(p.ImportPath, p.set, slices.Collect(maps.Values(files)), nil)
	return err
}
