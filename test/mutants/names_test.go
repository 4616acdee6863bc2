package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
)

var testFunction = regexp.MustCompile(`(?m)^func (Test\w+|Fuzz\w+)\(`)

// TestNamedTestsExist: a test that was renamed catches nothing, and is found only when somebody
// plants the fault. Of subtests only those of the conformance suite are known here.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	all, err := read("patches")
	if err != nil {
		t.Fatal(err)
	}
	conformance := bmdbtest.Names()
	for i, name := range conformance {
		conformance[i] = "TestConformance/" + name
	}
	for _, m := range all {
		for _, test := range m.tests {
			words := fields(test)
			at := slices.Index(words, "-run")
			if at < 0 {
				continue
			}
			for _, pattern := range alternatives(words[at+1]) {
				names := functions(t, filepath.Join(root, words[0]))
				if strings.HasPrefix(pattern, "TestConformance/") && !strings.HasPrefix(pattern, "TestConformance/random") {
					names = conformance
				}
				if !slices.ContainsFunc(names, func(name string) bool { return matches(t, pattern, name) }) {
					t.Errorf("%s: no test of %s is called %s", m.name, words[0], pattern)
				}
			}
		}
	}
}

// alternatives splits a pattern at each bar that is in no group.
func alternatives(pattern string) (all []string) {
	depth, from := 0, 0
	for i, c := range pattern {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '|' && depth == 0:
			all, from = append(all, pattern[from:i]), i+1
		}
	}
	return append(all, pattern[from:])
}

// matches says whether go test runs a test by the pattern, as far as the name goes.
func matches(t *testing.T, pattern, name string) bool {
	t.Helper()
	parts := strings.Split(name, "/")
	for i, part := range strings.Split(pattern, "/") {
		expression, err := regexp.Compile(part)
		if err != nil {
			t.Fatal(err)
		}
		if i < len(parts) && !expression.MatchString(parts[i]) {
			return false
		}
	}
	return true
}

// functions returns the names of the test functions in a directory.
func functions(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range testFunction.FindAllStringSubmatch(string(text), -1) {
			names = append(names, match[1])
		}
	}
	return names
}
