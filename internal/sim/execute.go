package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/ironherd/ironherd/internal/sim/fault"
	"github.com/ironherd/ironherd/internal/sim/sshhost"
)

// execute runs an executable file on the machine for a client.
func (h *host) execute(ctx context.Context, p *period, program sshhost.Program) sshhost.Status {
	if len(program.Args) > 0 && program.Args[0] == "takeover" {
		h.world.stats.agentStarts.Add(1)
		if shot, ok := h.world.faults.Fire(fault.AgentStart); ok {
			return failToStart(program, shot.Number)
		}
	}
	if h.real {
		return h.executeProcess(ctx, p, program)
	}
	return h.executeHere(ctx, p, program)
}

// failToStart plays an agent that does not start: it alternates between an error and garbage.
func failToStart(program sshhost.Program, number int) sshhost.Status {
	if number%2 == 1 {
		_, _ = io.WriteString(program.Stderr, "ironherd-agent: cannot allocate memory (simulated)\n")
		return sshhost.Status{Code: 1}
	}
	_, _ = io.WriteString(program.Stdout, "\x00\xffSegmentation fault (simulated)\n")
	return sshhost.Status{}
}

// executeHere calls the agent in this process.
func (h *host) executeHere(power context.Context, p *period, program sshhost.Program) sshhost.Status {
	if h.world.cfg.Agent == nil {
		_, _ = fmt.Fprintf(program.Stderr, "sh: 1: %s: Exec format error\n", program.Path)
		return sshhost.Status{Code: 126}
	}
	ctx, kill := context.WithCancel(power)
	defer kill()
	ended := make(chan int, 1)
	p.tasks.Go(func() {
		ended <- h.world.cfg.Agent(ctx, h.root, program.Args, program.Stdin, program.Stdout, program.Stderr, h.agentHost(power, p, program.Path))
	})
	for signal := ""; ; {
		select {
		case code := <-ended:
			if power.Err() != nil {
				signal = "KILL"
			}
			return sshhost.Status{Code: code, Signal: signal}
		case name := <-program.Signals:
			if name == "TERM" || name == "KILL" || name == "INT" || name == "HUP" {
				signal = name
				kill()
			}
		}
	}
}

// agentHost is the machine as an agent in this process sees it.
type agentHost struct {
	host   *host
	period *period
	// detach runs something under the context of the machine's power.
	detach func(run func(ctx context.Context))
}

func (h *host) agentHost(power context.Context, p *period, path string) *agentHost {
	return &agentHost{h, p, func(run func(ctx context.Context)) {
		if h.agentBegins(p, path) != nil {
			return // the machine is going down: nothing runs on it any more
		}
		p.tasks.Go(func() {
			defer h.agentEnds(p)
			run(power)
		})
	}}
}

// Reboot restarts the machine.
func (a *agentHost) Reboot(context.Context) error { return a.host.resetIn(a.period) }

// Detach lets run go on.
func (a *agentHost) Detach(run func(ctx context.Context)) { a.detach(run) }

// agentBegins notes that the long-lived part of an agent is about to run.
func (h *host) agentBegins(p *period, path string) error {
	err := h.update(p, func(r *hostRecord) { r.Agent = path }, func() { h.agents++ })
	if err != nil && !errors.Is(err, errOver) {
		h.world.cfg.Logger.Error("agent was not recorded", slog.String("machine", h.snapshot().Hostname), slog.Any("err", err))
	}
	return err
}

// agentEnds records that an agent has ended by itself. An agent that ended with its machine or with
// the world stays in the record, so that it can be resumed.
func (h *host) agentEnds(p *period) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.period != p || p.isOver() {
		return
	}
	if h.agents--; h.agents > 0 {
		return
	}
	next := h.record
	next.Agent = ""
	if err := h.world.record("host/"+next.Device, next); err != nil {
		h.world.cfg.Logger.Error("end of an agent was not recorded", slog.String("machine", next.Hostname), slog.Any("err", err))
		return
	}
	h.record = next
}

// resumeAgent restarts an agent that ran when the world stopped.
func (h *host) resumeAgent(ctx context.Context, p *period, path string, logger *slog.Logger) {
	if h.real {
		h.resumeProcess(ctx, p, path, logger)
		return
	}
	if h.world.cfg.Agent == nil {
		logger.Warn("agent is not resumed: there is none to run in this process")
		return
	}
	if h.agentBegins(p, path) != nil {
		return
	}
	p.tasks.Go(func() {
		defer h.agentEnds(p)
		var stderr strings.Builder
		code := h.world.cfg.Agent(ctx, h.root, []string{"run"}, strings.NewReader(""), io.Discard, &stderr, h.agentHost(ctx, p, path))
		if code != 0 && ctx.Err() == nil {
			logger.Warn("resumed agent failed", slog.Int("code", code), slog.String("stderr", stderr.String()))
		}
	})
}
