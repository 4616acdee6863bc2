package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironherd/ironherd/test/process"
)

// ironherd is the path of the program that was built for the tests; the agent is beside it, and the
// reconciler is a program of its own.
var ironherd, reconcilerProgram string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ironherd-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if ironherd, err = process.Build(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	reconcilerProgram = filepath.Join(dir, "ironherd-reconciler")
	build := exec.Command("go", "build", "-trimpath", "-o", reconcilerProgram, "github.com/ironherd/ironherd/cmd/ironherd-reconciler")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the reconciler: %v: %s\n", err, out)
		return 1
	}
	return m.Run()
}

// bounded returns a context that ends with the test, or after ten times d, which is plenty on a
// machine that is not busy, but before all tests are ended.
func bounded(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	end := time.Now().Add(10 * d)
	if last, ok := t.Deadline(); ok && last.Add(-time.Minute).Before(end) {
		end = last.Add(-time.Minute)
	}
	ctx, cancel := context.WithDeadline(t.Context(), end)
	t.Cleanup(cancel)
	return ctx
}

// stop stops a herd. It does so even if the test's own context has ended.
func stop(t *testing.T, herd *process.Herd) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	return herd.Stop(ctx)
}

// shortDir is a directory whose path leaves room for the name of a Unix socket in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ih-") //nolint:usetesting // whose paths are long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
