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
		"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,ImportMap",
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
	dirs := map[string]bool{}
	for _, m := range all {
		for file := range m.files {
			if path.Ext(file) == ".go" {
				dirs["./"+path.Dir(file)] = true
			}
		}
	}
	var of []string
	for dir := range dirs {
		of = append(of, dir)
	}
	byDir, byPath := list(t, of)
	absolute, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			planted := map[string][]string{} // by directory
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
				planted[dir] = append(planted[dir], filepath.Base(file), changed)
			}
			for dir, files := range planted {
				if err := compile(byDir[dir], byPath, files); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// compile checks the types of a package in which files have another text: name, text, name, text.
func compile(p listed, byPath map[string]listed, planted []string) error {
	if len(p.GoFiles) == 0 {
		return fmt.Errorf("there is no package in %s", p.Dir)
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		var text any
		if i := slices.Index(planted, name); i >= 0 {
			text = planted[i+1]
		}
		file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file)
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
	config := types.Config{Importer: importer.ForCompiler(set, "gc", lookup), Sizes: types.SizesFor("gc", runtime.GOARCH)}
	_, err := config.Check(p.ImportPath, set, files, nil)
	return err
}
