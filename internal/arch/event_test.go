package arch_test

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// writers are the functions that take an event of history, with the place of that argument.
var writers = map[string]int{"RecordHistory": 0, "RecordMachineHistory": 1}

// TestEventsAreConstants holds what ships to the events that internal/fleet lists. A literal would
// compile, and the page and the CLI would have no word for it.
func TestEventsAreConstants(t *testing.T) {
	t.Parallel()
	calls := 0
	for _, s := range sources(t) {
		if s.test || s.generated || strings.HasPrefix(s.pkg, "internal/bmdb/bmdbtest") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			selector, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			place, ok := writers[selector.Sel.Name]
			if !ok || place >= len(call.Args) {
				return true
			}
			calls++
			if literal, ok := call.Args[place].(*ast.BasicLit); ok && literal.Kind == token.STRING {
				t.Errorf("%s: the event %s is no constant: add it to internal/fleet/event.go", s.set.Position(literal.Pos()), literal.Value)
			}
			return true
		})
	}
	if calls < 2 {
		t.Errorf("only %d calls of %v were found", calls, writers)
	}
}

// TestEveryEventIsWritten: whoever shows history has words for every event, so an event that nobody
// writes any more goes from the list.
func TestEveryEventIsWritten(t *testing.T) {
	t.Parallel()
	written := map[string]bool{}
	var declared []string
	for _, s := range sources(t) {
		if s.path == "internal/fleet/event.go" {
			ast.Inspect(s.file, func(n ast.Node) bool {
				if spec, ok := n.(*ast.ValueSpec); ok {
					declared = append(declared, spec.Names[0].Name)
				}
				return true
			})
		}
		shipped := !s.test && !strings.HasPrefix(s.pkg, "internal/bmdb/bmdbtest")
		if !shipped || !strings.HasPrefix(s.pkg, "internal/bmdb") && !strings.HasPrefix(s.pkg, "internal/shepherd/") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if selector, ok := n.(*ast.SelectorExpr); ok {
				written[selector.Sel.Name] = true
			}
			return true
		})
	}
	if len(declared) < 10 {
		t.Fatalf("only %d events were found in internal/fleet/event.go", len(declared))
	}
	for _, name := range declared {
		if !written[name] {
			t.Errorf("nobody writes fleet.%s: write it, or remove it", name)
		}
	}
}
