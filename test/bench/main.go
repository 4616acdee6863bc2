package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	sections []string
	sizes    []int
	claimers []int
	// machines of the fleet that cycles run on, where the section has no sizes of its own.
	machines int
	batch    int
	rounds   int
	duration time.Duration
	history  int
	// check is the largest fleet that the database's own check is run on.
	check    int
	snapshot time.Duration
	pace     int
	wakes    int
	profile  bool
	// cpuprofile is a file for Go's profile of this process.
	cpuprofile string
}

// section is one part of the table.
type section struct {
	name string
	run  func(ctx context.Context, b *bench) error
}

func sections() []section {
	return []section{
		{"cycle", cycles},
		{"raw", rawCycles},
		{"claimers", claimers},
		{"idle", idle},
		{"scale", scale},
		{"wake", wakes},
		{"snapshot", snapshots},
		{"sqlite", sqliteCycles},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	o, err := parse(args, progress)
	if err != nil {
		return err
	}
	b := &bench{options: o, table: &table{}, progress: progress, began: time.Now()}
	defer b.close()
	if o.cpuprofile != "" {
		file, err := os.Create(o.cpuprofile)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	for _, s := range sections() {
		if !slices.Contains(o.sections, s.name) {
			continue
		}
		b.say("%s", s.name)
		if err := s.run(ctx, b); err != nil { // what was measured so far is not lost
			return errors.Join(fmt.Errorf("%s: %w", s.name, err), b.print(context.WithoutCancel(ctx), out))
		}
	}
	return b.print(ctx, out)
}

func parse(args []string, progress io.Writer) (o options, err error) {
	var names []string
	for _, s := range sections() {
		names = append(names, s.name)
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(progress)
	chosen := f.String("sections", strings.Join(names, " "), "what to measure")
	sizes := f.String("sizes", "1000,100000,1000000", "sizes of fleets")
	many := f.String("claimers", "1,4,16,64", "numbers of concurrent claimers")
	f.IntVar(&o.machines, "machines", 10_000, "machines of the fleet that lease cycles run on")
	f.IntVar(&o.batch, "batch", 100, "works per claim")
	f.IntVar(&o.rounds, "rounds", 5, "rounds of each side")
	f.DurationVar(&o.duration, "duration", 8*time.Second, "how long a round takes")
	f.IntVar(&o.history, "history", 10_000_000, "rows of history in the largest fleet; smaller ones have them in proportion")
	f.IntVar(&o.check, "check", 10_000, "largest fleet that the database's own check is run on")
	f.DurationVar(&o.snapshot, "snapshot", 5*time.Minute, "how long a snapshot stays open")
	f.IntVar(&o.pace, "pace", 800, "cycles per second while it is open")
	f.IntVar(&o.wakes, "wakes", 200, "how often something becomes due to be started")
	f.BoolVar(&o.profile, "profile", false, "say on stderr which statements cost most")
	f.StringVar(&o.cpuprofile, "cpuprofile", "", "write Go's processor profile of this process there")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.sections = fields(*chosen)
	for _, s := range o.sections {
		if !slices.Contains(names, s) {
			return o, fmt.Errorf("there is no section %q: there are %s", s, strings.Join(names, ", "))
		}
	}
	if o.sizes, err = numbers(*sizes); err != nil {
		return o, fmt.Errorf("-sizes: %w", err)
	}
	if o.claimers, err = numbers(*many); err != nil {
		return o, fmt.Errorf("-claimers: %w", err)
	}
	if o.rounds < 1 || o.batch < 1 || o.machines < 2*o.batch {
		return o, fmt.Errorf("there must be at least one round, one work per claim, and machines for two batches")
	}
	return o, nil
}

func fields(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

func numbers(s string) (list []int, err error) {
	for _, f := range fields(s) {
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a number of things", f)
		}
		list = append(list, n)
	}
	return list, nil
}
