package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/demo"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shell"
)

// demoFlags are the flags of the command that package demo does not know.
type demoFlags struct {
	until       string
	timeout     time.Duration
	imageSize   int64
	printConfig bool
	logLevel    string
	seenUp      string
	output      *format
}

func (a *app) demoCommand() *cobra.Command {
	var o demo.Options
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Bring up a simulated fleet on this machine, with the real control plane",
		Long: `Demo starts a simulated world (a provider's API, machines that answer SSH, disks, reboots), the real control plane on its embedded
database, and takes every machine from free capacity to installed. Everything is on loopback and in one process; what it keeps on
disk is removed at the end, unless --dir is given.

With --vm, the machines are virtual ones under QEMU: real kernels, of which each goes from a stock Debian to an installed one. Their consoles
are in files that are named first. They end with the demo.

Without --until, it goes on when each machine is installed or waits for a person, so that you can look around, until it is interrupted.

` + faultSyntax + ` "ironherd sim faults" lists them.`,
		Example: `  ironherd demo
  ironherd demo --machines 12 --until installed --timeout 2m
  ironherd demo --machines 2000 --until installed --preload-agent
  ironherd demo --vm 1 --until installed
  ironherd demo --faults lost-reply=5%,429=5%,500=5%,ssh-refused=5%,agent-start=5% --until installed`,
		Args: exactly,
	}
	flags := cmd.Flags()
	flags.IntVar(&o.Machines, "machines", 12, "machines in the fleet")
	flags.IntVar(&o.Virtual, "vm", 0, "virtual machines under QEMU, in the place of simulated ones: each goes from a stock Debian to an installed one (needs make vm-disk)")
	flags.StringVar(&f.until, "until", "", "\"installed\": end with exit code 0 and a summary when every machine is installed")
	flags.DurationVar(&f.timeout, "timeout", 0, "give up, with exit code 7, when --until has not come true after this long")
	flags.Float64Var(&o.Speed, "speed", 1, "how much faster the simulated hardware is; at 1 a machine takes 3 s or more to provision, 1 s or more to boot")
	flags.StringVar(&o.Dir, "dir", "", "keep world and control plane in this directory (default: a temporary one)")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the world: the same seed gives the same machines and faults")
	flags.StringVar(&f.seenUp, "seen-up", "unit", "what shows that an installed system is up: unit (it calls in) or ssh")
	flags.BoolVar(&o.SeenUp.Watch, "watch", false, "watch installed machines: their units go on calling, or with --seen-up ssh they are asked again and again")
	flags.StringVar(&o.Faults, "faults", "", "what goes wrong in the world: NAME=SHARE% or NAME=#NUMBER, separated by commas")
	flags.IntVar(&o.RealAgents, "real-agents", -1, "machines that run the uploaded agent as a process; the others run the same code in this process")
	flags.Lookup("real-agents").DefValue = "at most 24" // fewer in a large fleet
	flags.BoolVar(&o.PreloadAgent, "preload-agent", false, "machines have the agent beforehand, so that nothing is uploaded")
	flags.StringVar(&o.AgentExecutable, "agent", "", "the agent's executable (default: ironherd-agent beside this program)")
	flags.Int64Var(&f.imageSize, "image-size", 0, "size of the image in MiB (default 64; 8 for more than 100 machines)")
	flags.StringVar(&o.Listen, "listen", "", "address of the page and the operator API (default: a free port of 127.0.0.1)")
	flags.BoolVar(&f.printConfig, "print-config", false, "print the configuration of the control plane, and end; the demo chooses its ports when it starts, and DIRECTORY stands for --dir")
	flags.StringVar(&f.logLevel, "log-level", "", "log to standard error: debug, info, warn or error (default: nothing)")
	f.output = outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Version, o.ImageSize = a.env.Version, f.imageSize<<20
		o.AgentExecutable = a.agentNamed(o.AgentExecutable)
		if flags.Changed("image-size") && f.imageSize == 0 {
			return fleet.Errorf(fleet.KindInvalid, "--image-size must be at least 4, not 0")
		}
		if flags.Changed("real-agents") && o.RealAgents < 0 {
			return fleet.Errorf(fleet.KindInvalid, "--real-agents must not be negative, not %d", o.RealAgents)
		}
		if f.until != "" && f.until != "installed" {
			return fleet.Errorf(fleet.KindInvalid, "--until knows only \"installed\", not %q", f.until)
		}
		if err := virtualAlone(flags, o.Virtual); err != nil {
			return err
		}
		watch := o.SeenUp.Watch
		o.SeenUp = fleet.ParseSeenUp(f.seenUp)
		o.SeenUp.Watch = watch
		if err := o.Validate(); err != nil {
			return err
		}
		return a.untilHangup(cmd.Context(), func(ctx context.Context) error { return a.demo(ctx, o, f) })
	}
	return cmd
}

// virtualAlone fails flags that say something of a simulated world where there is none.
func virtualAlone(flags *pflag.FlagSet, virtual int) error {
	if flags.Changed("vm") && virtual < 1 {
		return fleet.Errorf(fleet.KindInvalid, "--vm must be at least 1, not %d", virtual)
	}
	for _, name := range []string{"machines", "speed", "seed", "faults", "real-agents", "preload-agent", "image-size"} {
		if virtual > 0 && flags.Changed(name) {
			return fleet.Errorf(fleet.KindInvalid, "--%s is for simulated machines: leave it out with --vm", name)
		}
	}
	return nil
}

// agentNamed is the agent's executable that --agent names, from the directory of who does, and not
// from that of a configuration; where it names none, the one beside this program.
func (a *app) agentNamed(path string) string {
	if path == "" {
		return a.agentExecutable()
	}
	if absolute, err := filepath.Abs(path); err == nil {
		return absolute
	}
	return path
}

// agentExecutable is the agent's executable beside this program's; the path is returned even if
// nothing is there.
func (a *app) agentExecutable() string {
	return filepath.Join(filepath.Dir(a.env.Executable), config.AgentName)
}

func (a *app) demo(ctx context.Context, o demo.Options, f demoFlags) (err error) {
	logger, err := a.loggerAt(f.logLevel)
	if err != nil {
		return err
	}
	d, err := demo.Open(ctx, o, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if f.printConfig {
		return a.printDemoConfig(d, o.Dir != "")
	}
	err = d.Run(ctx, func(ctx context.Context) error { return a.watchDemo(ctx, d, f) })
	if f.until == "" && errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil // without --until, an interrupt is the way to end it
	}
	return err
}

// printDemoConfig prints the demo's configuration as others can use it: with a port that agents
// find, and without the name of a directory that is removed.
func (a *app) printDemoConfig(d *demo.Demo, kept bool) error {
	c := d.Config()
	if host, port, err := net.SplitHostPort(c.AgentAPI.Endpoint); err == nil && port == "0" {
		c.AgentAPI.Endpoint = net.JoinHostPort(host, "7443")
		c.AgentAPI.Listen, c.Initializer.Endpoint = c.AgentAPI.Endpoint, ""
	}
	text, err := config.Encode(c, "The control plane of a demo.")
	if err != nil {
		return err
	}
	if !kept {
		text = bytes.ReplaceAll(text, []byte(d.Dir()), []byte("DIRECTORY"))
	}
	_, err = a.env.Stdout.Write(text)
	return err
}

// watchDemo shows the demo until every machine is installed. Without --until, it does so until
// nothing moves by itself any more, and goes on until ctx ends.
func (a *app) watchDemo(ctx context.Context, d *demo.Demo, f demoFlags) error {
	at := d.Addresses()
	client := a.socketClient(strings.TrimPrefix(at.Socket, "unix://"))
	unlink, linked := a.linkSocket(strings.TrimPrefix(at.Socket, "unix://"))
	defer unlink()
	for i, path := range d.Consoles() {
		a.note("The console of vm-%d: %s", i+1, path)
	}
	a.note("The page: %s (its certificate is of the demo's own authority; any user name, the password is in %s)", at.OperatorURL, d.TokenFile())

	waiting, cancel := withTimeout(ctx, f.timeout)
	defer cancel()
	display := a.newDemoProgress(f.logLevel == "")
	wait := d.WaitInstalled
	if f.until == "" {
		wait = d.WaitSettled
	}
	summary, err := wait(waiting, client, display.show)
	display.end()
	if err != nil {
		return err
	}
	if err := a.print(*f.output, summary, func(w *screen) { summaryTable(w, summary) }); err != nil {
		return err
	}
	if f.until != "" {
		return nil
	}
	a.lookAround(d, linked, anyMachine(ctx, client))
	<-ctx.Done()
	return context.Cause(ctx)
}

// linkSocket leaves a link to the demo's socket where every command looks for one. Without the
// link, commands need --server.
func (a *app) linkSocket(socket string) (unlink func(), linked bool) {
	nothing := func() {}
	dir := config.UserDir(a.env.Environ)
	if dir == "" || os.MkdirAll(dir, 0o700) != nil {
		return nothing, false
	}
	link := filepath.Join(dir, demoSocket)
	if info, err := os.Lstat(link); err == nil && info.Mode()&os.ModeSymlink == 0 {
		return nothing, false // no link of ours
	}
	if _, err := os.Stat(link); err == nil && !leftByDemo(link) {
		return nothing, false // what the demo there has printed is for that one
	}
	_ = os.Remove(link) // that of a demo that was killed
	if os.Symlink(socket, link) != nil {
		return nothing, false
	}
	return func() {
		if target, err := os.Readlink(link); err == nil && target == socket {
			_ = os.Remove(link) // a link that stays leads nowhere
		}
	}, true
}

// typedIn returns what is typed in a directory to run a program: a path that is relative where the
// program is below it, and never a bare name, which a shell looks for elsewhere.
func typedIn(directory, program string) string {
	relative, err := filepath.Rel(directory, program)
	switch {
	case err != nil, strings.HasPrefix(relative, ".."):
		return program
	case !strings.ContainsRune(relative, filepath.Separator):
		return "." + string(filepath.Separator) + relative
	}
	return relative
}

// lookAround prints commands to look around with.
func (a *app) lookAround(d *demo.Demo, linked bool, machine string) {
	program := a.env.Executable
	if wd, err := os.Getwd(); err == nil {
		program = typedIn(wd, program)
	}
	server := ""
	if !linked {
		server = " --server " + shell.Word(d.Addresses().Socket)
	}
	a.note("")
	a.note("Look around (from another terminal), and end it all with Ctrl-C:")
	a.note("")
	for _, line := range []string{
		"status", "machine list", "machine show " + machine, "machine explain " + machine, "machine history " + machine, "provider list", "session list",
	} {
		a.note("  %s%s %s", shell.Word(program), server, line)
	}
	a.note("  echo \"oauth2-bearer = $(cat %s)\" | curl -s --cacert %s -K - %s/metrics",
		shell.Word(d.TokenFile()), shell.Word(d.CAFile()), d.Addresses().OperatorURL)
	a.note("")
}

// anyMachine returns the name of a machine to look at.
func anyMachine(ctx context.Context, client fleetClient) string {
	list, err := client.ListMachines(ctx, &fleetv1.ListMachinesRequest{PageSize: 1})
	if err != nil || len(list.GetMachines()) == 0 {
		return "NAME"
	}
	return machineName(list.GetMachines()[0])
}

func summaryTable(w *screen, s demo.Summary) {
	w.line("%d of %d machines installed in %.1f s (%.0f a minute)", s.Installed, s.Machines, s.Seconds, s.PerMinute)
	w.line("")
	rows := make([][]string, len(s.Phases))
	for i, p := range s.Phases {
		rows[i] = []string{p.Phase, fmt.Sprint(p.Count), seconds(p.P50), seconds(p.P95), seconds(p.P99), seconds(p.Max)}
	}
	w.table([]string{"PHASE", "MACHINES", "P50", "P95", "P99", "MAX"}, rows)
	w.line("")
	if s.World != nil {
		worldTable(w, *s.World)
	}
	if s.World == nil {
		w.pairs([2]string{"Peak memory", bytesOf(s.Memory.Here) + " in this process (the control plane)"})
		return
	}
	w.pairs([2]string{"Peak memory", peakMemory(s.Memory)})
	for _, f := range s.World.Faults {
		w.line("Fault %s: %d of %d (%.1f %%)", f.Fault, f.Fired, f.Opportunities, 100*float64(f.Fired)/float64(max(1, f.Opportunities)))
	}
}

func worldTable(w *screen, o demo.WorldSummary) {
	w.pairs(
		[2]string{"At the provider", fmt.Sprintf("%s, %d of them duplicates", plural(o.Devices, "device"), o.DuplicateDevices)},
		[2]string{"On the disks", fmt.Sprintf("%d installed systems came up after their disk was read back and had the right digest; %d did not; %d machines were installed twice",
			o.InstallsVerified, o.InstallsRejected, o.InstalledMoreThanOnce)},
		[2]string{"Agents", fmt.Sprintf("started %s, uploaded %s (%s)", times(o.AgentStarts), times(o.Uploads), bytesOf(o.UploadBytes))},
	)
}

func times(n int64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func peakMemory(m demo.Memory) string {
	text := bytesOf(m.Here) + " in this process (control plane, world, agents in it)"
	if m.Agents > 0 {
		text += ", " + bytesOf(m.Agents) + " in processes of agents"
	}
	return text
}

func seconds(s float64) string { return fmt.Sprintf("%.1f s", s) }
