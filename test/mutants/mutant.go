package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// mutant is one planted fault.
type mutant struct {
	name  string // of its file, without the extension
	rule  string
	fault string
	// tests are arguments of `go test`: the package first.
	tests []string
	// files that it changes, from the root, and how.
	files map[string][]hunk
}

// The verdicts.
const (
	caughtIt = "caught"
	survived = "SURVIVED"
	noBuild  = "DOES NOT BUILD"
	noApply  = "DOES NOT APPLY"
	noRun    = "COULD NOT RUN"
)

// outcome of one test with a fault planted.
type outcome struct {
	test, verdict, output string
	took                  time.Duration
}

// read returns the faults in a directory, in the order of their names.
func read(dir string) ([]mutant, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("there are no patches in %s", dir)
	}
	slices.Sort(paths)
	all := make([]mutant, len(paths))
	for i, path := range paths {
		text, err := os.ReadFile(path)
		if err == nil {
			all[i], err = parse(strings.TrimSuffix(filepath.Base(path), ".patch"), text)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
		}
	}
	return all, nil
}

func parse(name string, text []byte) (mutant, error) {
	m := mutant{name: name}
	header, diff, found := strings.Cut(string(text), "\n--- ")
	if !found {
		return m, errors.New("it has no diff")
	}
	for line := range strings.Lines(header) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		switch {
		case key == "Rule":
			m.rule = value
		case key == "Fault":
			m.fault = value
		case key == "Test":
			m.tests = append(m.tests, value)
		case ok || key != "":
			return m, fmt.Errorf("the header has a line %q; it may have Rule, Fault and Test", line)
		}
	}
	var err error
	if m.files, err = hunks("--- " + diff); err != nil {
		return m, err
	}
	if m.rule == "" || m.fault == "" || len(m.tests) == 0 {
		return m, errors.New("it must have Rule, Fault and Test")
	}
	return m, nil
}

// apply makes the changed files below dir and returns the overlay that puts them in the place of
// those below root.
func (m mutant) apply(root, dir string) (overlay string, err error) {
	if root, err = filepath.Abs(root); err != nil {
		return "", err
	}
	replace := make(map[string]string)
	for file, list := range m.files {
		original, changed := filepath.Join(root, file), filepath.Join(dir, "tree", file)
		text, err := os.ReadFile(original)
		if err != nil {
			return "", err
		}
		planted, err := plant(string(text), list)
		if err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		err = os.MkdirAll(filepath.Dir(changed), 0o700)
		if err == nil {
			err = os.WriteFile(changed, []byte(planted), 0o600)
		}
		if err != nil {
			return "", err
		}
		replace[original] = changed
	}
	body, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, body, 0o600)
}

// run runs every test of the fault with the fault planted.
func (m mutant) run(ctx context.Context, root, dir string) []outcome {
	overlay, err := m.apply(root, dir)
	if err != nil {
		return []outcome{{test: m.tests[0], verdict: noApply, output: err.Error()}}
	}
	outcomes := make([]outcome, len(m.tests))
	for i, test := range m.tests {
		outcomes[i] = try(ctx, root, overlay, test)
	}
	return outcomes
}

// try runs one test. It has caught the fault when it failed; a crash or a timeout of the test is a
// failure, too.
func try(ctx context.Context, root, overlay, test string) outcome {
	began := time.Now()
	pkg, args, _ := strings.Cut(test, " ")
	command := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-timeout=2m", "-overlay", overlay, pkg}, fields(args)...)...)
	command.Dir = root
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := command.CombinedOutput()
	o := outcome{test: test, output: string(out), took: time.Since(began)}
	switch text := o.output; {
	case err == nil && strings.Contains(text, "no tests to run"):
		o.verdict = noRun
	case err == nil:
		o.verdict = survived
	case strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]"):
		o.verdict = noBuild
	case strings.Contains(text, "--- FAIL") || strings.Contains(text, "panic: "):
		o.verdict = caughtIt
	default:
		o.verdict = noRun
	}
	return o
}

// fields splits arguments at blanks, but for those within single quotes, which are left out.
func fields(s string) []string {
	var list []string
	word, quoted, begun := "", false, false
	for _, r := range s {
		switch {
		case r == '\'':
			quoted, begun = !quoted, true
		case r == ' ' && !quoted:
			if begun {
				list = append(list, word)
			}
			word, begun = "", false
		default:
			word, begun = word+string(r), true
		}
	}
	if begun {
		list = append(list, word)
	}
	return list
}
