package arch_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// invariantsPage defines the rules and invariants that everything else cites.
const invariantsPage = "docs/invariants.md"

// invariantsTest is this file, and heldTest the one beside it: what they cite are examples.
const (
	invariantsTest = "internal/arch/invariants_test.go"
	heldTest       = "internal/arch/held_test.go"
)

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
		if !slices.Contains(extensions, f.extension()) || f.path == invariantsTest || f.path == heldTest {
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

// definedNumbers reads the page. Each number has its reason there, and where it is kept.
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
		_, kept, _ := strings.Cut(section, "\n**Kept in:** ")
		kept, _, _ = strings.Cut(kept, listBegin)
		for _, name := range quoted(kept) {
			if _, err := os.Stat(filepath.Join(root, name)); err != nil && strings.HasPrefix(name, "internal/") {
				t.Errorf("%s: %s is kept in %s, which is not there", invariantsPage, n, name)
			}
		}
	}
	return defined
}
