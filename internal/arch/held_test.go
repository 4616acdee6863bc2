package arch_test

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

//go:generate go test -count=1 -run ^TestInvariantsAreCurrent$ . -update

var update = flag.Bool("update", false, "fill the lists of docs/invariants.md instead of comparing them")

// The lists of a section stand between these two lines.
const (
	listBegin = "<!-- held by -->\n"
	listEnd   = "<!-- end -->\n"
)

// TestInvariantsAreCurrent: below each rule and invariant the page lists the tests that cite it and
// the faults that are planted against it, and there is at least one of them.
func TestInvariantsAreCurrent(t *testing.T) {
	t.Parallel()
	defined := definedNumbers(t)
	tests, faults := make(map[number][]string), make(map[number][]string)
	for _, f := range texts(t) {
		switch {
		case f.extension() == ".patch":
			for n, item := range plantedFault(f) {
				faults[n] = append(faults[n], item)
			}
		case f.extension() == ".go" && isTest(f.path):
			cited, err := citingTests(f)
			if err != nil {
				t.Fatalf("%s: %v", f.path, err)
			}
			for n, items := range cited {
				tests[n] = append(tests[n], items...)
			}
		}
	}
	page, err := os.ReadFile(filepath.Join(root, invariantsPage))
	if err != nil {
		t.Fatal(err)
	}
	filled := string(page)
	for n, section := range defined {
		if len(tests[n])+len(faults[n]) == 0 {
			t.Errorf("no test cites %s and no fault is planted against it: nothing shows that it holds", n)
		}
		filled = strings.Replace(filled, section, fill(section, tests[n], faults[n]), 1)
	}
	switch {
	case filled == string(page):
	case *update:
		if err := os.WriteFile(filepath.Join(root, invariantsPage), []byte(filled), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the lists of %s are not what the tests and patches say; run `make generate`", invariantsPage)
	}
}

// fill replaces the list of a section. It is folded: the rules are to be read one after the other.
func fill(section string, tests, faults []string) string {
	before, rest, found := strings.Cut(section, listBegin)
	_, after, ended := strings.Cut(rest, listEnd)
	if !found || !ended {
		return section
	}
	tests, faults = sorted(tests), sorted(faults)
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s<details><summary>Held by (tests that cite it: %d, planted faults: %d)</summary>\n",
		before, listBegin, len(tests), len(faults))
	for _, items := range [][]string{tests, faults} {
		if len(items) > 0 {
			b.WriteString("\n- " + strings.Join(items, "\n- ") + "\n")
		}
	}
	return b.String() + "\n</details>\n" + listEnd + after
}

// sorted returns the items in order, each once.
func sorted(items []string) []string { return slices.Compact(slices.Sorted(slices.Values(items))) }

// plantedFault returns the item of a fault for each number that its header names: what the fault
// is, and the tests that catch it.
func plantedFault(f text) map[number]string {
	header, _, _ := strings.Cut(f.body, "\n--- ")
	var fault string
	var tests []string
	for line := range strings.Lines(header) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "Fault":
			fault = value
		case "Test":
			pkg, name := catchingTest(value)
			tests = append(tests, "`"+strings.TrimSpace(pkg+" "+name)+"`")
		}
	}
	items := make(map[number]string)
	name := strings.TrimSuffix(path.Base(f.path), ".patch")
	for _, c := range citations(header) {
		items[c.number] = fmt.Sprintf("[%s](../%s): %s. Caught by %s", name, f.path, fault, strings.Join(tests, ", "))
	}
	return items
}

// runs finds the tests that arguments of `go test` select.
var runs = regexp.MustCompile(`-run '?([^' ]+)`)

// catchingTest returns the package of the line "Test:" of a fault, and the tests of it that are
// run; "" when all are.
func catchingTest(line string) (pkg, name string) {
	pkg, _, _ = strings.Cut(strings.TrimPrefix(line, "./"), " ")
	if m := runs.FindStringSubmatch(line); m != nil {
		name = m[1]
	}
	return pkg, name
}

// TestFaultsNameTestsThatExist: a fault whose test was renamed would be caught by nothing, and only
// `make mutants` would tell.
func TestFaultsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	functions := make(map[string][]string) // by package
	all := texts(t)
	for _, f := range all {
		if !strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		for _, m := range testFunction.FindAllStringSubmatch(f.body, -1) {
			functions[path.Dir(f.path)] = append(functions[path.Dir(f.path)], m[1])
		}
	}
	for _, f := range all {
		if f.extension() != ".patch" {
			continue
		}
		header, _, _ := strings.Cut(f.body, "\n--- ")
		for line := range strings.Lines(header) {
			value, ok := strings.CutPrefix(strings.TrimSpace(line), "Test: ")
			if !ok {
				continue
			}
			pkg, name := catchingTest(value)
			name, _, _ = strings.Cut(name, "/")
			pattern, err := regexp.Compile(name)
			if err != nil || !slices.ContainsFunc(functions[pkg], pattern.MatchString) {
				t.Errorf("%s: package %s has no test %q", f.path, pkg, name)
			}
		}
	}
}

// testFunction finds the tests of a file. TestMain is none.
var testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(\w+ \*testing\.T\)`)

// isTest says whether a Go file holds tests: a test's file, a suite, or an end-to-end program.
func isTest(name string) bool {
	return strings.HasSuffix(name, "_test.go") && name != invariantsTest && name != heldTest ||
		strings.HasSuffix(name, "_tests.go") || strings.HasPrefix(name, "test/")
}

// citingTests returns the items of the tests of a file whose comments cite a number: a function, or
// a case of a table, which is known by the name that it begins with.
func citingTests(f text) (map[number][]string, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, f.path, f.body, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	items := make(map[number][]string)
	for _, group := range file.Comments {
		for _, c := range citations(group.Text()) {
			name := citingTest(set, file, group)
			items[c.number] = append(items[c.number], fmt.Sprintf("[%s](../%s): %s", f.path, f.path, name))
		}
	}
	return items, nil
}

// citingTest names the test that a comment belongs to: the innermost named case around it or on its
// line, or right after it, else its function, else its package.
func citingTest(set *token.FileSet, file *ast.File, comment *ast.CommentGroup) string {
	line := func(p token.Pos) int { return set.PositionFor(p, false).Line }
	name := "the package"
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Doc == comment || n.Pos() <= comment.Pos() && comment.End() <= n.End() {
				name = "`" + n.Name.Name + "`"
			}
		case *ast.CompositeLit:
			after := line(n.Pos()) - line(comment.End())
			if (n.Pos() <= comment.Pos() && comment.End() <= n.End() || after == 1) && len(n.Elts) > 1 {
				if literal, ok := n.Elts[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
					if text, err := strconv.Unquote(literal.Value); err == nil {
						name = "“" + text + "”"
					}
				}
			}
		}
		return true
	})
	return name
}

func TestCitingTestsAreFound(t *testing.T) {
	t.Parallel()
	const body = `// Package x_test holds it to rule 6.
package x_test

// TestA is I5: it grows.
func TestA() {
	_ = 1 // rule 9
}

var cases = []test{
	{"on its line", func() { // rule 3
	}},
	// rules 1 and 4
	{"below it", func() {
		_ = 1 // I1
	}},
	{"uncited", func() {}},
}
`
	got, err := citingTests(text{path: "x_test.go", body: body})
	if err != nil {
		t.Fatal(err)
	}
	want := map[number]string{
		"6": "the package", "I5": "`TestA`", "9": "`TestA`", "3": "“on its line”",
		"1": "“below it”", "4": "“below it”", "I1": "“below it”",
	}
	for _, n := range slices.SortedFunc(maps.Keys(want), cmp.Compare) {
		if item := "[x_test.go](../x_test.go): " + want[n]; !slices.Equal(got[n], []string{item}) {
			t.Errorf("%s: %q, want %q", n, got[n], item)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%v, want %v", got, want)
	}
}
