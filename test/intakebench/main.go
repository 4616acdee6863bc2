// Command intakebench measures what it costs to take a fleet in: from free capacity at a simulated
// provider until every machine reports its hardware, or until every one is installed. `make
// bench-intake` prints the table.
//
// The simulated world, with all agents in it, and the control plane are processes of their own, so
// each one's processor time is its own. The machines have the agent beforehand: what an upload
// costs depends on the link. Creation is not paced, because pacing would be what is measured.
//
// A world keeps files open for each machine. A fleet that needs more of them than a process may
// have is spread over several worlds, each a provider of its own to the one control plane.
//
// Machines a minute count from the control plane's start to the last machine; on a host with few
// cores the world takes most of them. On ext4, wait six minutes between two runs: see bench.run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ironherd/ironherd/test/process"
)

func main() {
	ironherd := flag.String("ironherd", "bin/ironherd", "the program to measure, with the agent beside it")
	sizes := flag.String("sizes", "1350,13500", "sizes of the fleets, separated by commas")
	untils := flag.String("until", "available,installed", "what each fleet is brought to, separated by commas")
	worlds := flag.Int("worlds", 0, "how many worlds each fleet is spread over (default: as few as the limit of open files allows)")
	limit := flag.Duration("limit", 30*time.Minute, "the most that one fleet may take")
	profile := flag.String("profile", "", "directory for what takes the control plane's processor time: <machines>-<until>.pprof")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := bench{ironherd: *ironherd, profile: *profile, worlds: *worlds, limit: *limit}.run(ctx, *sizes, *untils)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "intakebench:", err)
		os.Exit(1)
	}
}

// bench is what all fleets have in common.
type bench struct {
	ironherd, profile string
	// worlds is how many each fleet is spread over; 0: as few as are needed.
	worlds int
	limit  time.Duration
	dir    string
}

func (b bench) run(ctx context.Context, sizes, untils string) (err error) {
	if b.dir, err = os.MkdirTemp("", "ih-intake-"); err != nil { // short: it holds sockets
		return err
	}
	// Not after each fleet: ext4 is slow to make files for minutes after many were removed, and a
	// world has more than a hundred for each machine.
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer func() { err = errors.Join(err, table.Flush()) }() // what was measured before a failure, too
	_, _ = fmt.Fprintln(table, "MACHINES\tWORLDS\tUNTIL\tTOOK\tMACHINES A MINUTE\tCONTROL PLANE: CPU EACH\tPEAK MEMORY EACH\tPEAK\tWORLDS AND AGENTS: CPU EACH")
	for size := range strings.SplitSeq(sizes, ",") {
		machines, err := strconv.Atoi(strings.TrimSpace(size))
		if err != nil || machines < 1 {
			return fmt.Errorf("-sizes: %q is no number of machines", size)
		}
		worlds := b.worlds
		if worlds == 0 {
			if worlds, err = fewestWorlds(machines); err != nil {
				return err
			}
		}
		for until := range strings.SplitSeq(untils, ",") {
			bounded, cancel := context.WithTimeout(ctx, b.limit)
			f, err := b.measure(bounded, machines, worlds, until)
			cancel()
			if err != nil {
				return fmt.Errorf("%d machines until %s: %w", machines, until, err)
			}
			n := float64(machines)
			_, _ = fmt.Fprintf(table, "%d\t%d\t%s\t%.1f s\t%.0f\t%.1f ms\t%.0f KiB\t%d MiB\t%.1f ms\n", machines, worlds, until, f.took.Seconds(), n/f.took.Minutes(),
				f.plane.CPU.Seconds()*1000/n, float64(f.plane.Peak)/1024/n, f.plane.Peak>>20, f.worlds.Seconds()*1000/n)
		}
	}
	return nil
}

// figures are those of one fleet.
type figures struct {
	took  time.Duration
	plane process.Usage
	// worlds is the processor time of all worlds, agents included.
	worlds time.Duration
}

func (b bench) measure(ctx context.Context, machines, worlds int, until string) (f figures, err error) {
	s := site{ironherd: b.ironherd}
	if s.dir, err = os.MkdirTemp(b.dir, ""); err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.stop(context.WithoutCancel(ctx))) }()
	if err := s.start(ctx, machines, worlds); err != nil {
		return f, err
	}
	if err := s.configure(machines, until == "installed"); err != nil {
		return f, err
	}
	idle, err := s.usage()
	if err != nil {
		return f, err
	}
	herd := s.herds[0]
	if b.profile != "" {
		herd.PlaneArgs = []string{"--cpu-profile", filepath.Join(b.profile, fmt.Sprintf("%d-%s.pprof", machines, until))}
	}
	began := time.Now()
	if err := herd.StartPlane(ctx); err != nil {
		return f, err
	}
	if err := herd.AwaitState(ctx, until, machines, func(line string) { fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(began).Seconds(), line) }); err != nil {
		return f, err
	}
	f.took = time.Since(began)
	if f.plane, err = herd.Plane().Usage(); err != nil {
		return f, err
	}
	f.worlds, err = s.usage()
	f.worlds -= idle
	return f, err
}
