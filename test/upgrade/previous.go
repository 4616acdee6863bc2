package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs of one version.
type programs struct{ ironherd, worker string }

// The packages that are built, from the root of a tree.
const (
	previousFile  = "test/upgrade/PREVIOUS"
	workerPackage = "test/upgrade/worker"
)

// build builds the programs of both versions. It must be called from within the module.
func (u *upgrade) build(ctx context.Context, previous string) error {
	top, err := output(ctx, "", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return fmt.Errorf("the previous version is in the history of the repository, and this is none: %w", err)
	}
	if previous == "" {
		if previous, err = nameOfPrevious(top); err != nil {
			return err
		}
	}
	tree := filepath.Join(u.dir, "tree")
	if err := u.checkOut(ctx, top, previous, tree); err != nil {
		return err
	}
	u.progress("previous version: %s", previous)
	if u.before, err = buildPrograms(ctx, tree, filepath.Join(u.dir, "previous")); err != nil {
		return fmt.Errorf("the previous version: %w", err)
	}
	if u.after, err = buildPrograms(ctx, top, filepath.Join(u.dir, "new")); err != nil {
		return err
	}
	return os.RemoveAll(tree)
}

// nameOfPrevious is the one line of the file that is no comment.
func nameOfPrevious(top string) (string, error) {
	text, err := os.ReadFile(filepath.Join(top, previousFile))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return line, nil
		}
	}
	return "", fmt.Errorf("%s names no commit", previousFile)
}

// checkOut puts the files of a commit into a directory: not as a worktree, which a killed program
// would leave registered.
func (u *upgrade) checkOut(ctx context.Context, top, commit, tree string) error {
	if _, err := output(ctx, top, "git", "rev-parse", "--verify", "--quiet", commit+"^{commit}"); err != nil {
		return fmt.Errorf("the previous version, %s, is not in this clone: fetch the whole history (git fetch --unshallow --tags)", commit)
	}
	archive := tree + ".tar"
	if err := os.Mkdir(tree, 0o700); err != nil {
		return err
	}
	if _, err := output(ctx, top, "git", "archive", "--format=tar", "--output="+archive, commit); err != nil {
		return err
	}
	if _, err := output(ctx, tree, "tar", "--extract", "--file="+archive); err != nil {
		return err
	}
	if u.patch != "" {
		path, err := filepath.Abs(u.patch)
		if err != nil {
			return err
		}
		if _, err := output(ctx, tree, "patch", "--strip=1", "--input="+path); err != nil {
			return err
		}
	}
	worker := filepath.Join(tree, workerPackage)
	// a version from before there was one
	if _, err := os.Stat(worker); errors.Is(err, os.ErrNotExist) {
		return errors.Join(os.CopyFS(worker, os.DirFS(filepath.Join(top, workerPackage))), os.Remove(archive))
	}
	return os.Remove(archive)
}

// buildPrograms builds a tree's programs; the agent is beside ironherd.
func buildPrograms(ctx context.Context, tree, to string) (programs, error) {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version=test", "-o", to+"/",
		"./cmd/ironherd", "./cmd/ironherd-agent", "./"+workerPackage)
	build.Dir, build.Env = tree, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if err := os.Mkdir(to, 0o700); err != nil {
		return programs{}, err
	}
	if out, err := build.CombinedOutput(); err != nil {
		return programs{}, fmt.Errorf("build: %w: %s", err, out)
	}
	return programs{filepath.Join(to, "ironherd"), filepath.Join(to, "worker")}, nil
}

// output runs a program and returns what it said.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, name, args...)
	var failure bytes.Buffer
	command.Dir, command.Stderr = dir, &failure
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(failure.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}
