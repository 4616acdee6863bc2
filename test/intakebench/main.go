// Command intakebench measures what it costs to take a fleet in: from free capacity at a simulated
// provider until every machine reports its hardware, or until every one is installed. `make
// bench-intake` prints the table.
//
// The simulated world, with all agents in it, and the control plane are processes of their own, so
// each one's processor time is its own. The machines have the agent beforehand: what an upload
// costs depends on the link. Creation is not paced, because pacing would be what is measured.
// Machines a minute count from the control plane's start to the last machine; on a host with few
// cores the world takes most of them.
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

	"go.yaml.in/yaml/v3"

	"github.com/ironherd/ironherd/test/process"
)

func main() {
	ironherd := flag.String("ironherd", "bin/ironherd", "the program to measure, with the agent beside it")
	sizes := flag.String("sizes", "1350,13500", "sizes of the fleets, separated by commas")
	untils := flag.String("until", "available,installed", "what each fleet is brought to, separated by commas")
	limit := flag.Duration("limit", 30*time.Minute, "the most that one fleet may take")
	profile := flag.String("profile", "", "directory for what takes the control plane's processor time: <machines>-<until>.pprof")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *ironherd, *sizes, *untils, *profile, *limit)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "intakebench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, ironherd, sizes, untils, profile string, limit time.Duration) (err error) {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer func() { err = errors.Join(err, table.Flush()) }() // what was measured before a failure, too
	_, _ = fmt.Fprintln(table, "MACHINES\tUNTIL\tTOOK\tMACHINES A MINUTE\tCONTROL PLANE: CPU EACH\tPEAK MEMORY EACH\tPEAK\tWORLD AND AGENTS: CPU EACH")
	for size := range strings.SplitSeq(sizes, ",") {
		machines, err := strconv.Atoi(strings.TrimSpace(size))
		if err != nil || machines < 1 {
			return fmt.Errorf("-sizes: %q is no number of machines", size)
		}
		for until := range strings.SplitSeq(untils, ",") {
			bounded, cancel := context.WithTimeout(ctx, limit)
			f, err := measure(bounded, ironherd, profile, machines, until)
			cancel()
			if err != nil {
				return fmt.Errorf("%d machines until %s: %w", machines, until, err)
			}
			n := float64(machines)
			_, _ = fmt.Fprintf(table, "%d\t%s\t%.1f s\t%.0f\t%.1f ms\t%.0f KiB\t%d MiB\t%.1f ms\n", machines, until, f.took.Seconds(), n/f.took.Minutes(),
				f.plane.CPU.Seconds()*1000/n, float64(f.plane.Peak)/1024/n, f.plane.Peak>>20, f.world.CPU.Seconds()*1000/n)
		}
	}
	return nil
}

// figures are those of one fleet.
type figures struct {
	took         time.Duration
	plane, world process.Usage
}

func measure(ctx context.Context, ironherd, profile string, machines int, until string) (f figures, err error) {
	dir, err := os.MkdirTemp("", "ih-intake-") // short: it holds a socket
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	herd := &process.Herd{Ironherd: ironherd, Dir: dir, Machines: machines, WorldArgs: []string{"--real-agents", "0", "--preload-agent"}}
	if profile != "" {
		herd.PlaneArgs = []string{"--cpu-profile", filepath.Join(profile, fmt.Sprintf("%d-%s.pprof", machines, until))}
	}
	if err := herd.StartWorld(ctx); err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, herd.Stop(context.WithoutCancel(ctx))) }()
	if err := configure(herd.Config(), until == "installed"); err != nil {
		return f, err
	}
	idle, err := herd.World().Usage()
	if err != nil {
		return f, err
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
	f.world, err = herd.World().Usage()
	f.world.CPU -= idle.CPU
	return f, err
}

// configure takes the pace of creation out of a control plane's configuration, and the install
// where it is not wanted.
func configure(file string, install bool) error {
	text, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return err
	}
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	providers, _ := config["providers"].([]any)
	if len(providers) != 1 {
		return fmt.Errorf("%s has %d providers, want 1", file, len(providers))
	}
	provider, _ := providers[0].(map[string]any)
	provisioner, _ := provider["provisioner"].(map[string]any)
	loops, _ := config["loops"].(map[string]any)
	initializer, _ := loops["initializer"].(map[string]any)
	if provisioner == nil || initializer == nil {
		return fmt.Errorf("%s lacks providers[0].provisioner or loops.initializer", file)
	}
	provisioner["create_rate"], initializer["claim_rate"] = "1ms,100", "1ms,100"
	if !install {
		delete(provider, "install")
	}
	if text, err = yaml.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}
