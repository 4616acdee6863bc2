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
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

//go:generate go test -count=1 -run ^TestInvariantsAreCurrent$ . -update

var update = flag.Bool("update", false, "fill the lists of docs/invariants.md instead of comparing them")

// invariantsPage defines the rules and invariants that everything else cites.
const invariantsPage = "docs/invariants.md"

// number is what is cited: "3" is rule 3, "I4" is invariant 4.
type number string

func (n number) String() string {
	if strings.HasPrefix(string(n), "I") {
		return "invariant " + string(n)
	}
	return "rule " + string(n)
}

// heading finds the definition of a number.
var heading = regexp.MustCompile(`(?m)^### (?:Rule (\d+)|(I\d+)): (.+)$`)

// definitions returns the numbers that a page defines, each with the part of the page that tells
// it.
func definitions(page string) (map[number]string, error) {
	defined := make(map[number]string)
	found := heading.FindAllStringSubmatchIndex(page, -1)
	for i, m := range found {
		end := len(page)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		section := page[m[0]:end]
		groups := heading.FindStringSubmatch(section)
		n := number(groups[1] + groups[2])
		if _, twice := defined[n]; twice {
			return nil, fmt.Errorf("it defines %s twice", n)
		}
		defined[n] = section
	}
	return defined, nil
}

// citation is a number that a file names, and where.
type citation struct {
	number number
	offset int
}

var (
	citedRules     = regexp.MustCompile(`\b[Rr]ules?:?(?:\s|//|--|#)+(\d+)\b((?:(?:,|,?(?:\s|//|--|#)+and|–)(?:\s|//|--|#)*I?\d+\b)*)`)
	citedInvariant = regexp.MustCompile(`\bI\d+\b`)
	digits         = regexp.MustCompile(`I?\d+`)
)

// citations finds the rules and invariants that a text names: "rule 3", "rules 1 and 3", "I4", and
// the header "Rule: 3, I1" of a planted fault. A comment may break the line in between.
func citations(body string) (all []citation) {
	for _, m := range citedRules.FindAllStringSubmatchIndex(body, -1) {
		for _, d := range digits.FindAllStringIndex(body[m[2]:m[1]], -1) {
			if n := number(body[m[2]+d[0] : m[2]+d[1]]); n[0] != 'I' {
				all = append(all, citation{n, m[0]})
			}
		}
	}
	for _, m := range citedInvariant.FindAllStringIndex(body, -1) {
		all = append(all, citation{number(body[m[0]:m[1]]), m[0]})
	}
	return all
}

func TestCitationsAreFound(t *testing.T) {
	t.Parallel()
	for body, want := range map[string][]number{
		"it holds the lane (rule 3), by I4":   {"3", "I4"},
		"rules 1 and 3: see I10":              {"1", "3", "I10"},
		"Rules 1, 2 and 5":                    {"1", "2", "5"},
		"as rule\n\t// 6 says":                {"6"},
		"rules 1\n-- and 3":                   {"1", "3"},
		"Rule: 3, I1\nFault: f\nTest: ./x":    {"3", "I1"},
		`Finding{"I4", e.Subject}`:            {"I4"},
		"two rules carry everything, 3 times": nil,
		"HI3 I3x AI4 BLOB":                    nil,
	} {
		var got []number
		for _, c := range citations(body) {
			got = append(got, c.number)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q cites %v, want %v", body, got, want)
		}
	}
}

// TestCitedNumbersAreDefined: whoever meets "rule 7" or "I4" finds it told in docs/invariants.md.
func TestCitedNumbersAreDefined(t *testing.T) {
	t.Parallel()
	defined := definedNumbers(t)
	extensions := []string{".go", ".sql", ".proto", ".md", ".patch"}
	cited := 0
	for _, f := range texts(t) {
		if !slices.Contains(extensions, f.extension()) || f.path == "internal/arch/invariants_test.go" {
			continue
		}
		for _, c := range citations(f.body) {
			cited++
			if _, ok := defined[c.number]; !ok {
				t.Errorf("%s:%d: %s is not defined in %s", f.path, f.line(c.offset), c.number, invariantsPage)
			}
		}
	}
	if cited < 100 {
		t.Errorf("only %d citations were found", cited)
	}
}

func definedNumbers(t *testing.T) map[number]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, invariantsPage))
	if err != nil {
		t.Fatal(err)
	}
	defined, err := definitions(string(page))
	if err != nil {
		t.Fatalf("%s: %v", invariantsPage, err)
	}
	for n, section := range defined {
		for _, part := range []string{"\n**Prevents:** ", "\n**Kept in:** ", "\n" + listBegin, "\n" + listEnd} {
			if !strings.Contains(section, part) {
				t.Errorf("%s: %s has no %q", invariantsPage, n, strings.TrimSpace(part))
			}
		}
	}
	return defined
}

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

// fill replaces the list of a section.
func fill(section string, tests, faults []string) string {
	before, rest, found := strings.Cut(section, listBegin)
	_, after, ended := strings.Cut(rest, listEnd)
	if !found || !ended {
		return section
	}
	var b strings.Builder
	b.WriteString(before + listBegin)
	if len(tests) > 0 {
		b.WriteString("Held by the tests\n\n")
		for _, item := range sorted(tests) {
			b.WriteString("- " + item + "\n")
		}
	}
	if len(faults) > 0 {
		if len(tests) > 0 {
			b.WriteString("\n")
		}
		b.WriteString("Planted faults\n\n")
		for _, item := range sorted(faults) {
			b.WriteString("- " + item + "\n")
		}
	}
	return b.String() + listEnd + after
}

// sorted returns the items in order, each once.
func sorted(items []string) []string { return slices.Compact(slices.Sorted(slices.Values(items))) }

// plantedFault returns the item of a fault for each number that its header names.
func plantedFault(f text) map[number]string {
	items := make(map[number]string)
	header, _, _ := strings.Cut(f.body, "\n--- ")
	_, fault, _ := strings.Cut(header, "\nFault: ")
	fault, _, _ = strings.Cut(fault, "\n")
	name := strings.TrimSuffix(filepath.Base(f.path), ".patch")
	for _, c := range citations(header) {
		items[c.number] = fmt.Sprintf("[%s](../%s): %s", name, f.path, fault)
	}
	return items
}

// isTest says whether a Go file holds tests: a test's file, a suite, or an end-to-end program.
func isTest(path string) bool {
	return strings.HasSuffix(path, "_test.go") && path != "internal/arch/invariants_test.go" ||
		strings.HasSuffix(path, "_tests.go") || strings.HasPrefix(path, "test/")
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
