package arch_test

import (
	"go/ast"
	"slices"
	"strconv"
	"testing"
)

// skipsElsewhere are the files that may skip without a look at CI, and why nothing hides there.
var skipsElsewhere = map[string]string{
	"internal/provider/providertest/suite.go":      "what a kind of provider does not have is a field of its harness",
	"internal/provider/providertest/capability.go": "a capability that a kind of provider does not have",
	"internal/bmdb/bmdbtest/model/model_test.go":   "a step of a random walk that does not apply",
}

// switches are variables that may decide on a skip in place of CI, each in one file: what it holds
// is a make target of its own.
var switches = map[string]string{
	"internal/image/boot_test.go": "IRONHERD_TEST_VM", // make test-vm
	"test/machine/rig_test.go":    "IRONHERD_TEST_VM", // make test-vm
}

// TestNothingIsSkippedInCI: a test that lacks a component must fail there. So whoever skips looks
// at CI in the same condition.
func TestNothingIsSkippedInCI(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if s.generated || skipsElsewhere[s.path] != "" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if branch, ok := n.(*ast.IfStmt); ok && (asksFor(branch.Cond, "CI") || asksFor(branch.Cond, switches[s.path])) {
				return false
			}
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, method.Sel.Name) {
				t.Errorf("%s: skips without a look at CI: fail when os.Getenv(%q) is set", s.set.Position(n.Pos()), "CI")
			}
			return true
		})
	}
}

// asksFor says whether a condition reads the variable.
func asksFor(condition ast.Expr, variable string) (asks bool) {
	ast.Inspect(condition, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && variable != "" && literal.Value == strconv.Quote(variable) {
			asks = true
		}
		return !asks
	})
	return asks
}
