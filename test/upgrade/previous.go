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
	migrations    = "internal/bmdb/postgres/migrations"
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
	if u.migrates, err = migrates(filepath.Join(tree, migrations), filepath.Join(top, migrations)); err != nil {
		return fmt.Errorf("the previous version, %s: %w", previous, err)
	}
	u.progress("previous version: %s; its schema is today's: %t", previous, !u.migrates)
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

// migrates says whether today's schema has migrations that the previous version does not know. It
// fails unless those that it knows are the same today: a database that they made cannot be migrated
// else.
func migrates(previous, today string) (bool, error) {
	files := map[string]map[string]string{previous: {}, today: {}}
	for dir, texts := range files {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return false, err
		}
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return false, err
			}
			texts[e.Name()] = statements(string(text))
		}
	}
	for name, text := range files[previous] {
		if files[today][name] != text {
			return false, fmt.Errorf("its migration %s is another than today's, so nothing leads from its schema to today's: name a later commit in %s",
				name, previousFile)
		}
	}
	return len(files[today]) > len(files[previous]), nil
}

// statements returns a migration without comments and line breaks, which mean nothing to a
// database.
func statements(migration string) string {
	var words []string
	for line := range strings.Lines(migration) {
		if !strings.HasPrefix(line, "-- +goose") {
			line, _, _ = strings.Cut(line, "--")
		}
		words = append(words, strings.Fields(line)...)
	}
	return strings.Join(words, " ")
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
