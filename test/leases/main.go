// Command leases tortures the leases of the BMDB with real processes: workers claim machines, act
// on them and commit, on one database, while the driver kills them (SIGKILL) and stops them past
// their lease (SIGSTOP, SIGCONT) at random moments.
//
// Each worker appends what it does to one log that all of them share: the order of its lines is the
// order of what happened outside of the database. Log and history are then held to each other:
//
//   - no epoch of a machine belongs to two, and history has one row for each, with its start and
//     its end, and leaves none out;
//   - what was acknowledged is in history, whatever died afterwards;
//   - no effect was begun by a holder whose machine had been taken by the next one, but for the one
//     that a process is bound to make that looks at its lease in time, and is stopped between that
//     look and the effect (rule 7 of docs/invariants.md);
//   - no commit of a holder that was stopped past its lease is accepted;
//   - each machine that a dead or stopped process held is claimed again within the lease and two
//     seconds.
//
// `leases torture` is the driver and prints its report as a row of a table; `leases work` is one
// worker, started by the driver.
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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "leases: %v\n", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("say `leases torture` or `leases work`")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	switch args[0] {
	case "work":
		w := worker{}
		flags.StringVar(&w.url, "database", "", "sqlite:FILE or postgres://…")
		flags.StringVar(&w.log, "log", "", "the log that all workers append to")
		flags.StringVar(&w.name, "name", "w", "name of the worker")
		flags.DurationVar(&w.lease, "lease", 2*time.Second, "interval of the session")
		flags.BoolVar(&w.stubborn, "stubborn", false, "commit even when the lease is known to be lost")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return w.run(ctx)
	case "torture":
		t := torture{told: func(line string) { fmt.Fprintln(os.Stderr, line) }}
		engine := flags.String("engine", "postgres", "postgres or sqlite")
		flags.IntVar(&t.kills, "kills", 200, "how often to kill")
		flags.IntVar(&t.stops, "stops", 100, "how often to stop")
		flags.Uint64Var(&t.seed, "seed", uint64(time.Now().UnixNano()), "decides the moments")
		flags.DurationVar(&t.lease, "lease", 2*time.Second, "interval of the sessions")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		r, err := t.on(ctx, *engine)
		if err != nil {
			return fmt.Errorf("%w (seed %d)", err, t.seed)
		}
		fmt.Println(head + "\n" + r.row(*engine, t))
		return nil
	}
	return fmt.Errorf("there is no command %q", args[0])
}
