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
	timedOut = "caught by its timeout"
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
// those below root. Its path is absolute: commands use it in any directory.
func (m mutant) apply(root, dir string) (overlay string, err error) {
	if root, err = filepath.Abs(root); err != nil {
		return "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
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

// limit is how long a test may take with a fault planted. Some faults show in nothing else.
const limit = 5 * time.Minute

// try runs one test. It has caught the fault when it failed; a crash or a timeout of the test is a
// failure, too. A timeout has a verdict of its own: on a busy machine it proves little.
func try(ctx context.Context, root, overlay, test string) outcome {
	began := time.Now()
	pkg, args, _ := strings.Cut(test, " ")
	command := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-timeout=" + limit.String(), pkg}, fields(args)...)...)
	command.Dir, command.Env = root, planting(os.Environ(), overlay)
	// The program of a test is a child of `go test`, and has children of its own: all of them end.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	out, err := command.CombinedOutput()
	o := outcome{test: test, output: string(out), took: time.Since(began)}
	switch text := o.output; {
	case err == nil && strings.Contains(text, "no tests to run"):
		o.verdict = noRun
	case err == nil:
		o.verdict = survived
	case strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]"):
		o.verdict = noBuild
	case strings.Contains(text, "panic: test timed out"):
		o.verdict = timedOut
	case strings.Contains(text, "--- FAIL") || strings.Contains(text, "panic: "):
		o.verdict = caughtIt
	default:
		o.verdict = noRun
	}
	return o
}

// fields splits arguments at blanks, as a shell does: what is within single quotes is taken as it
// is, and belongs to the argument that it touches.
func fields(s string) []string {
	var list []string
	var argument strings.Builder
	begun, quoted := false, false
	for _, r := range s {
		switch {
		case r == '\'':
			begun, quoted = true, !quoted
		case r == ' ' && !quoted:
			if begun {
				list = append(list, argument.String())
				argument.Reset()
			}
			begun = false
		default:
			begun = true
			argument.WriteRune(r)
		}
	}
	if begun {
		list = append(list, argument.String())
	}
	return list
}

// planting is an environment in which every go command lays the overlay over the source: `go test`
// as much as `go build`, with which a test makes the programs that it runs. A test that builds
// without GOFLAGS does not see the fault.
func planting(environment []string, overlay string) []string {
	flags := ""
	for _, entry := range environment {
		if value, found := strings.CutPrefix(entry, "GOFLAGS="); found {
			flags = value + " "
		}
	}
	return append(slices.Clone(environment), "GOFLAGS="+flags+"'-overlay="+overlay+"'")
}
