// Command prepare builds the disk that the virtual machines of tests start from, if that has not
// been done; `make vm-disk` runs it. Where virtual machines cannot be tested it says why. That is a
// failure for a CI alone.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/test/machine"
	"github.com/ironherd/ironherd/test/process"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := prepare(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		os.Exit(1)
	}
}

func prepare(ctx context.Context) (err error) {
	if missing := machine.Missing(); missing != "" {
		if os.Getenv("CI") != "" {
			return errors.New("virtual machines need " + missing)
		}
		fmt.Fprintf(os.Stderr, "No virtual machine is tested: that needs %s\n", missing)
		return nil
	}
	dir, err := os.MkdirTemp("", "ironherd-machine-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if _, err := process.Build(ctx, dir); err != nil {
		return err
	}
	_, err = machine.Prepare(ctx, filepath.Join(dir, config.AgentName), func(line string) { fmt.Fprintln(os.Stderr, line) })
	return err
}
