package arch_test

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// text is one file of the repository that people read.
type text struct {
	path string // slash-separated, from the module's root
	body string
}

// extension returns what follows the last dot of the file's name, with the dot.
func (f text) extension() string { return path.Ext(f.path) }

// line returns the number of the line that holds the byte at an offset.
func (f text) line(offset int) int { return 1 + strings.Count(f.body[:offset], "\n") }

// texts returns every file of the repository that is text, those of nested modules included.
func texts(t *testing.T) []text {
	t.Helper()
	all, err := readTexts()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 100 {
		t.Fatalf("only %d files were found below %s", len(all), root)
	}
	return all
}

// readTexts reads them once for all tests. Hidden directories and what `make build` leaves behind
// are no part of the repository.
var readTexts = sync.OnceValues(func() (all []text, err error) {
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || d.Name() == ".git" { // a file in a worktree, else a directory
			return nil
		}
		body, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if bytes.IndexByte(body, 0) >= 0 || !utf8.Valid(body) {
			return nil
		}
		rel := filepath.ToSlash(strings.TrimPrefix(name, root+string(filepath.Separator)))
		all = append(all, text{path: rel, body: string(body)})
		return nil
	})
	return all, err
})

// outside finds words that send a reader to a page which the repository does not have. The words
// are split here, because the test reads this file, too.
var outside = regexp.MustCompile(`(?i)\bthe(\s|//|--|#)+` + `design\b|\bDESIGN\.` + `md\b|\bwhat must ` + `be shown\b`)

// TestNothingLeansOnAPageOutside: a reader has this repository and nothing else. What a sentence
// relies on is told here: rules and invariants in docs/invariants.md, decisions in docs/adr.
func TestNothingLeansOnAPageOutside(t *testing.T) {
	t.Parallel()
	for _, f := range texts(t) {
		for _, at := range outside.FindAllStringIndex(f.body, -1) {
			t.Errorf("%s:%d: %q is not in this repository: say here what the reader needs, or cite docs/invariants.md",
				f.path, f.line(at[0]), f.body[at[0]:at[1]])
		}
	}
}

func TestOutsideIsFound(t *testing.T) {
	t.Parallel()
	article, noun := "the ", "design"
	for line, want := range map[string]bool{
		"see " + article + noun + "'s section 3":   true,
		"rule 7 of the\n//     " + noun + ");":     true,
		strings.ToUpper(noun) + ".md":              true,
		"a " + noun + " that scales":               false,
		article + noun + "ation of the resource":   false,
		"they share one shape by " + noun + " and": false,
	} {
		if got := outside.MatchString(line); got != want {
			t.Errorf("%q: found %t, want %t", line, got, want)
		}
	}
}

// link finds the target of a Markdown link.
var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinksLeadSomewhere: a link between pages, or from a page to the source, names what is there.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, f := range texts(t) {
		if f.extension() != ".md" || slices.Contains(strings.Split(f.path, "/"), "testdata") {
			continue
		}
		for _, m := range link.FindAllStringSubmatchIndex(f.body, -1) {
			target, _, _ := strings.Cut(f.body[m[2]:m[3]], "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			checked++
			if _, err := os.Stat(filepath.Join(root, path.Dir(f.path), target)); err != nil {
				t.Errorf("%s:%d: the link to %s leads nowhere", f.path, f.line(m[2]), target)
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d links were found", checked)
	}
}
