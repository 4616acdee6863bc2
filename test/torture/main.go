// Command torture kills the control plane (and the world) at random moments while it brings a fleet
// up, again and again, and then counts what is there. `make torture N=20` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ironherd/ironherd/test/process"
)

func main() {
	kills := flag.Int("n", 20, "how often to kill")
	both := flag.Bool("both", false, "kill the world, too")
	machines := flag.Int("machines", 250, "machines in the fleet: enough that there is work to be interrupted until the last kill")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "decides the moments")
	pause := flag.Duration("pause", 4*time.Second, "longest time from a start to the kill")
	timeout := flag.Duration("timeout", 15*time.Minute, "give up after this long")
	faults := flag.String("faults", "", "what goes wrong in the world besides")
	keep := flag.Bool("keep", false, "keep the directory")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	err := run(ctx, *machines, *faults, *keep, process.Torture{
		Kills: *kills, Both: *both, Seed: *seed, Pause: *pause,
		Progress: func(line string) { fmt.Fprintln(os.Stderr, line) },
	})
	cancel()
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "torture: %v\n(seed %d)\n", err, *seed)
		os.Exit(1)
	}
	fmt.Printf("killed %d times (seed %d): %d machines, each installed exactly once, one device each and none besides\n", *kills, *seed, *machines)
}

func run(ctx context.Context, machines int, faults string, keep bool, torture process.Torture) (err error) {
	dir, err := os.MkdirTemp("", "ironherd-torture-")
	if err != nil {
		return err
	}
	if keep {
		fmt.Fprintln(os.Stderr, "everything is in", dir)
	} else {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	ironherd, err := process.Build(ctx, dir)
	if err != nil {
		return err
	}
	herd := &process.Herd{Ironherd: ironherd, Dir: dir, Machines: machines}
	if faults != "" {
		herd.WorldArgs = []string{"--faults", faults}
	}
	return torture.Run(ctx, herd)
}
