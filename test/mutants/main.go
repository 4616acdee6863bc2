// Command mutants shows that tests can fail: it plants each fault of patches/ in the source, two at
// a time, and demands that the tests which the patch names catch it. `make mutants` runs it;
// README.md lists which test catches which fault.
//
// A patch is a unified diff below a header of lines "Key: value": Rule (whose breach it is), Fault
// (in one clause) and one or more Test (package, then arguments of `go test`), each of which must
// fail. The tree is not touched: the changed files are laid over it. The exit code is 1 when a
// fault survives, does not build, or a patch does not apply any more.
package main

//go:generate sh -c "go run . -root ../.. -page > README.md"

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "mutants: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	only := flag.String("only", "", "plant only the faults whose file names match this expression")
	tests := flag.String("tests", "", "run only the tests that match this expression")
	jobs := flag.Int("jobs", 2, "how many faults to plant at a time")
	page := flag.Bool("page", false, "print README.md and plant nothing")
	root := flag.String("root", ".", "root of the module")
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	matchTest, err := regexp.Compile(*tests)
	if err != nil {
		return fmt.Errorf("-tests: %w", err)
	}
	all, err := read(filepath.Join(*root, "test/mutants/patches"))
	if err != nil {
		return err
	}
	if *page {
		_, err := os.Stdout.WriteString(document(all))
		return err
	}
	return plantAll(ctx, *root, choose(all, match, matchTest), max(*jobs, 1))
}

// choose returns the faults whose names match, each with the tests that match.
func choose(all []mutant, name, test *regexp.Regexp) (chosen []mutant) {
	for _, m := range all {
		m.tests = slices.DeleteFunc(m.tests, func(t string) bool { return !test.MatchString(t) })
		if name.MatchString(m.name) && len(m.tests) > 0 {
			chosen = append(chosen, m)
		}
	}
	return chosen
}

// plantAll plants the faults, so many at a time, and prints a table.
func plantAll(ctx context.Context, root string, all []mutant, jobs int) error {
	dir, err := os.MkdirTemp("", "ironherd-mutants-")
	if err != nil {
		return err
	}
	fmt.Println("| fault | rule | test | outcome | took |\n|---|---|---|---|---|")
	var mu sync.Mutex
	var escaped []string
	group := new(errgroup.Group)
	group.SetLimit(jobs)
	for _, m := range all {
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			outcomes := m.run(ctx, root, filepath.Join(dir, m.name))
			mu.Lock()
			defer mu.Unlock()
			if !m.tell(outcomes) {
				escaped = append(escaped, m.name)
			}
			return nil
		})
	}
	err = errors.Join(group.Wait(), os.RemoveAll(dir))
	switch {
	case ctx.Err() != nil:
		err = errors.Join(err, context.Cause(ctx))
	case len(escaped) > 0:
		err = errors.Join(err, fmt.Errorf("%d of %d faults were not caught: %s", len(escaped), len(all), strings.Join(escaped, ", ")))
	case len(all) == 0:
		err = errors.Join(err, errors.New("no fault matches"))
	default:
		fmt.Printf("\nall %d faults were caught\n", len(all))
	}
	return err
}

// tell prints what became of a fault, and reports whether every test has caught it.
func (m mutant) tell(outcomes []outcome) (caught bool) {
	caught = true
	for _, o := range outcomes {
		fmt.Printf("| %s | %s | `%s` | %s | %s |\n", m.fault, m.rule, o.test, o.verdict, o.took.Round(100*time.Millisecond))
		if o.verdict != caughtIt && o.verdict != timedOut {
			caught = false
			fmt.Fprintf(os.Stderr, "%s: %s\n%s\n", m.name, o.verdict, o.output)
		}
	}
	return caught
}
