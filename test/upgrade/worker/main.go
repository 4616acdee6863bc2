// Command worker is one process of a version of Ironherd at work on a database, reduced to what it
// does there: it claims machines, writes facts about them, ends its work in every way, hears their
// agents, and is an operator now and then.
//
// It is built from the tree of the previous version and from today's, and uses only what both have.
// Everything that it sees goes into one log that all workers append to, a line each, whose order is
// the order of what happened outside of the database:
//
//	microseconds pid version event process machine epoch detail
//
// The events are claim, act (an effect outside of the database), done, lost, left (given up before
// the commit), unsure, and error, whose detail is the kind of an error that it met and went on
// from, what it was doing, and the error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
)

// worker is one process.
type worker struct {
	url, log, version string
	lease             time.Duration
	machines          []fleet.MachineID

	db    *bmdb.DB
	lines *os.File
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "worker: %v\n", err)
		os.Exit(1)
	}
}

// command is `worker make`, which makes a database with two pools of machines, or `worker work`.
func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("say `worker make` or `worker work`")
	}
	w := worker{}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.StringVar(&w.url, "database", "", "postgres://…")
	flags.StringVar(&w.log, "log", "", "the log that all workers append to")
	flags.StringVar(&w.version, "version", "", "what to call this version in the log")
	flags.DurationVar(&w.lease, "lease", 2*time.Second, "lease of the sessions")
	machines := flags.String("machines", "", "their IDs: the first half is always due for an agent, the second has agents that fall silent")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	for id := range strings.SplitSeq(*machines, ",") {
		w.machines = append(w.machines, fleet.MachineID(id))
	}
	switch args[0] {
	case "make":
		return w.make(ctx)
	case "work":
		return w.run(ctx)
	}
	return fmt.Errorf("there is no command %q", args[0])
}

// starting and silent are the providers of the two pools: that of machines whose agents are always
// about to be started, and that of those whose agents fall silent.
const (
	starting = fleet.ProviderName("starting")
	silent   = fleet.ProviderName("silent")
)

// make migrates an empty database and makes the machines. Silence is a matter of a moment here.
func (w *worker) make(ctx context.Context) (err error) {
	engine, err := postgres.Open(ctx, w.url, postgres.Options{Lease: w.lease})
	if err != nil {
		return err
	}
	if err := engine.Migrate(ctx); err != nil {
		return errors.Join(err, engine.Close())
	}
	db, err := bmdb.Open(ctx, engine, bmdb.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	p := fleet.DefaultPolicy()
	p.HeartbeatInterval, p.SilentAfter, p.NeverSpokeAfter = 100*time.Millisecond, 300*time.Millisecond, 50*time.Millisecond
	if _, err := db.SetPolicy(ctx, p); err != nil {
		return err
	}
	half := len(w.machines) / 2
	if err := bmdbtest.Stock(ctx, db, starting, w.machines[:half], nil); err != nil {
		return err
	}
	return bmdbtest.Stock(ctx, db, silent, w.machines[half:], nil)
}

func (w *worker) run(ctx context.Context) (err error) {
	if w.lines, err = os.OpenFile(w.log, os.O_WRONLY|os.O_APPEND, 0); err != nil {
		return err
	}
	engine, err := postgres.Open(ctx, w.url, postgres.Options{Lease: w.lease})
	if err != nil {
		return err
	}
	if w.db, err = bmdb.Open(ctx, engine, bmdb.Options{}); err != nil {
		return err
	}
	// Nothing is recovered on machines that nothing can restart.
	if err := w.db.SetLevers(ctx, silent, []fleet.Lever{fleet.LeverReboot}); err != nil {
		return errors.Join(err, w.db.Close())
	}
	var others sync.WaitGroup
	others.Go(func() { w.keep(ctx) })
	others.Go(func() { w.hear(ctx) })
	others.Go(func() { w.operate(ctx) })
	for ctx.Err() == nil {
		if err := w.live(ctx); err != nil && ctx.Err() == nil && fleet.KindOf(err) != fleet.KindLeaseLost {
			w.failed(ctx, "session", err)
		}
	}
	others.Wait()
	return w.db.Close()
}

// failed notes an error that the worker goes on from. Nobody waits for what was cut off by the end.
func (w *worker) failed(ctx context.Context, doing string, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	w.write("error", nil, fmt.Sprintf("%s %s: %s", strings.ReplaceAll(fleet.KindOf(err).String(), " ", "-"), doing, strings.ReplaceAll(err.Error(), "\n", "; ")))
}

// write appends one line, in one piece. What is about no work is about nil.
func (w *worker) write(event string, work *bmdb.Work, detail string) {
	about := "- - 0"
	if work != nil {
		about = fmt.Sprintf("%s %s %d", work.Process, work.Subject.Machine, work.Epoch)
	}
	line := fmt.Sprintf("%d %d %s %s %s %s\n", time.Now().UnixMicro(), os.Getpid(), w.version, event, about, detail)
	if _, err := w.lines.WriteString(line); err != nil {
		panic(err) // without its log the test is worth nothing
	}
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
