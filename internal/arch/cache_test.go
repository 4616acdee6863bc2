package arch_test

import (
	"go/ast"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// runsGo says whether a file runs the go command.
func runsGo(s source) (runs bool) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(f.Sel.Name, "Command") {
				runs = runs || slices.ContainsFunc(call.Args, func(arg ast.Expr) bool {
					word, ok := arg.(*ast.BasicLit)
					return ok && word.Value == `"go"`
				})
			}
		}
		return true
	})
	return runs
}

// TestMakeRunsAnewWhatRunsGo: the cache of test results does not see what the go command reads, so
// a test that builds a program would be `ok (cached)` after a change of that program.
func TestMakeRunsAnewWhatRunsGo(t *testing.T) {
	t.Parallel()
	command := exec.CommandContext(t.Context(), "make", "-n", "test-unraced", "test-vm")
	command.Dir = root
	command.Env = append(os.Environ(), "MAKEFLAGS=") // those of the make that runs the tests
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	anew := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, " -count=1 ") {
			for word := range strings.FieldsSeq(line) {
				anew[strings.TrimPrefix(word, "./")] = true
			}
		}
	}
	for _, s := range sources(t) {
		if s.test && runsGo(s) && !anew[s.pkg] {
			t.Errorf("%s runs the go command, and make takes the result of %s from the cache", s.path, s.pkg)
		}
	}
}
