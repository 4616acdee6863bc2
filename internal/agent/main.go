package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/firstboot"
	"github.com/ironherd/ironherd/internal/agent/inventory"
	"github.com/ironherd/ironherd/internal/agent/pid1"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

// Exit codes of Main. Those below 8 are the operator's CLI's, too. exitSuperseded is of leave
// alone, and goes with the takeover generation that the host has seen, on standard output.
const (
	exitDone       = 0
	exitFailed     = 1
	exitUsage      = 2
	exitConflict   = 5
	exitSuperseded = 8
)

const usage = `Usage: ironherd-agent COMMAND

  takeover             take this machine over: reads a TakeoverInit message on standard input, writes a TakeoverResponse
                       message to standard output, and leaves the agent running (control planes do this over SSH)
  run                  be the agent that the last takeover has put in charge
  leave --machine ID [--generation N] --directory DIR...
                       stop the agent of that machine and remove its files, its executables in DIR included (control planes do
                       this over SSH when a host is given back, or an install is called off); not after a newer takeover than N
  firstboot            finish an install: run by a unit of the installed system, it takes first-boot data over and tells the control plane
                       that the system is up
  inventory [-o FORM]  print what this machine is made of; FORM is text (default) or json
  version              print the version
`

// Env is the machine that Main works on, and what it is given and gives back.
type Env struct {
	// Root is put before every path that the agent touches (/sys, /proc, /dev, /run, /var). Empty
	// means "/".
	Root string
	// Version is what `version`, takeover responses and heartbeats say.
	Version string

	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Reboot restarts the machine; it returns when the restart is under way. Nil: the kernel's own
	// way, below Root.
	Reboot func(ctx context.Context) error
	// Detach lets run go on after Main has returned, until run returns or the context that it is given
	// ends. It must not wait for run. Nil: run becomes a process of its own, this executable's `run`,
	// which must find the same Root.
	Detach func(run func(ctx context.Context))
	// kexec takes the machine over into memory. Nil: by the machine's own kernel, where this is real.
	kexec intoMemory
	// Logger is where the long-lived part logs. Nil: a file of bounded size,
	// /var/log/ironherd-agent.log below Root.
	Logger *slog.Logger
}

// intoMemory is told after a takeover whether its response was written.
type intoMemory interface {
	takeover.Kexec
	answered(written bool)
}

// options are those of Run in this environment.
func (e Env) options() Options {
	if e.Logger == nil {
		e.Logger = newLogger(e.Root)
	}
	options := Options{Root: e.Root, Version: e.Version, Logger: e.Logger, Reboot: e.Reboot}
	if e.real() {
		options.jumpForInstall = (&hostKexec{env: e}).jumpForInstall
	}
	return options
}

// real says whether this is the machine itself, and nobody's simulation.
func (e Env) real() bool { return filepath.Clean(e.Root) == "/" && e.Detach == nil && e.Reboot == nil }

// Main is the program `ironherd-agent`: args are its arguments without the program's name, the
// result is its exit code. Everything that it touches comes from env, so that a simulator can run
// many agents in one process.
func Main(ctx context.Context, args []string, env Env) int {
	if env.Root == "" {
		env.Root = "/"
	}
	if inMemory(env) {
		return beFirst(ctx, env)
	}
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	form, readyFd, machine, generation := "text", 0, "", 0
	var waits jumper
	var directories []string
	var options map[string]func(value string) error
	switch command {
	case "inventory":
		options = map[string]func(string) error{"o": text(&form)}
	case "run":
		options = map[string]func(string) error{"ready-fd": number(&readyFd)} // of startProcess alone
	case "leave":
		options = map[string]func(string) error{
			"machine": text(&machine), "generation": number(&generation),
			"directory": func(name string) error {
				// In / and the like it would remove what is not the agent's.
				if !path.IsAbs(name) || path.Clean(name) == "/" {
					return errors.New("it must be an absolute path, and not the root")
				}
				directories = append(directories, name)
				return nil
			},
		}
	case "jump": // of hostKexec alone
		options = map[string]func(string) error{"ready-fd": number(&waits.ready), "answer-fd": number(&waits.answer), "after": number(&waits.after)}
	case "takeover", "firstboot", "version":
	case "help", "-h", "--help":
		_, _ = io.WriteString(env.Stdout, usage)
		return exitDone
	default:
		return usageError(env, fmt.Sprintf("there is no command %q", command))
	}
	if err := parse(command, args, options); err != nil {
		return usageError(env, err.Error())
	}
	switch command {
	case "inventory":
		return printInventory(env, form)
	case "run":
		return run(ctx, env, readyFd)
	case "jump":
		return jump(ctx, env, waits)
	case "takeover":
		return takeOver(ctx, env)
	case "leave":
		return leave(ctx, env, machine, int64(generation), directories)
	case "firstboot":
		return firstBoot(ctx, env)
	}
	_, _ = fmt.Fprintln(env.Stdout, env.Version)
	return exitDone
}

// usageError says what was wrong with the arguments.
func usageError(env Env, problem string) int {
	_, _ = fmt.Fprintf(env.Stderr, "ironherd-agent: %s\n\n%s", problem, usage)
	return exitUsage
}

// leave gives the machine up.
func leave(ctx context.Context, env Env, machine string, generation int64, directories []string) int {
	if machine == "" || len(directories) == 0 {
		return usageError(env, "leave needs --machine and --directory")
	}
	err := takeover.Leave(ctx, env.Root, machine, generation, directories...)
	if err == nil {
		return exitDone
	}
	_, _ = fmt.Fprintf(env.Stderr, "ironherd-agent: %s\n", err)
	if errors.Is(err, takeover.ErrOtherMachine) {
		return exitConflict
	}
	if seen, ok := errors.AsType[*takeover.SeenError](err); ok {
		_, _ = fmt.Fprint(env.Stdout, seen.Generation)
		return exitSuperseded
	}
	return exitFailed
}

// takeOver answers on standard output whatever happens.
func takeOver(ctx context.Context, env Env) int {
	options := takeover.Options{
		Root: env.Root, Version: env.Version,
		Start:     func(ctx context.Context) error { return startProcess(ctx, env, nil, "run") },
		LastWords: func() *agentv1.LastWords { return pid1.ReadLastWords(env.Root) },
	}
	if env.Detach != nil {
		options.Start = func(ctx context.Context) error { return startInside(ctx, env) }
	}
	kexec := env.kexec
	if kexec == nil && env.real() {
		kexec = &hostKexec{env: env}
	}
	options.Kexec = kexec
	response := takeover.Run(ctx, env.Stdin, options)
	data, err := proto.Marshal(response)
	if err == nil {
		_, err = env.Stdout.Write(data)
	}
	if kexec != nil {
		kexec.answered(err == nil)
	}
	if failure := response.GetFailure(); failure != nil {
		_, _ = fmt.Fprintf(env.Stderr, "ironherd-agent: %s\n", failure.GetMessage())
		return exitFailed
	}
	if err != nil { // the agent runs; the next takeover replaces it
		_, _ = fmt.Fprintf(env.Stderr, "ironherd-agent: write the response: %s\n", err)
		return exitFailed
	}
	return exitDone
}

// run is the agent in a process of its own.
func run(ctx context.Context, env Env, readyFd int) int {
	options := env.options()
	reported := readyFd == 0
	options.Ready = func() error {
		if reported {
			return nil
		}
		reported = true // even if it fails: the descriptor is closed
		return reportReady(readyFd, readyWord)
	}
	err := Run(ctx, options)
	if err == nil {
		return exitDone
	}
	if !reported {
		_ = reportReady(readyFd, err.Error())
	}
	options.Logger.Error("the agent ends", slog.Any("err", err))
	_, _ = fmt.Fprintf(env.Stderr, "ironherd-agent: %s\n", err)
	if errors.Is(err, takeover.ErrAgentRunning) {
		return exitConflict
	}
	return exitFailed
}

// firstBoot is what an installed system runs once. It logs to standard error, which its unit takes
// to the journal.
func firstBoot(ctx context.Context, env Env) int {
	logger := env.Logger
	if logger == nil {
		logger = slog.New(slog.NewTextHandler(env.Stderr, nil))
	}
	err := firstboot.Run(ctx, firstboot.Options{Root: env.Root, Version: env.Version, Logger: logger, Reload: firstboot.ReloadSSH})
	if err != nil {
		_, _ = fmt.Fprintf(env.Stderr, "ironherd-agent: %s\n", err)
		return exitFailed
	}
	return exitDone
}

// printInventory prints the hardware report.
func printInventory(env Env, form string) int {
	report := inventory.Collect(env.Root)
	var text []byte
	switch form {
	case "json":
		data, err := protojson.MarshalOptions{Multiline: true, UseProtoNames: true}.Marshal(report)
		if err != nil {
			_, _ = fmt.Fprintf(env.Stderr, "ironherd-agent: encode the report: %s\n", err)
			return exitFailed
		}
		text = append(data, '\n')
	case "text":
		text = inventory.Text(report)
	default:
		return usageError(env, fmt.Sprintf("there is no output form %q", form))
	}
	if _, err := env.Stdout.Write(text); err != nil {
		return exitFailed
	}
	return exitDone
}
