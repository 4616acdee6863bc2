package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/fleet"
)

// View is the state of a demo at one time.
type View struct {
	Elapsed  time.Duration
	Machines int
	// States counts the machines in each state, in the order of fleet.States. Machines that the
	// control plane has not begun to create are in none.
	States []StateCount
	// Rows are the machines themselves; empty for fleets of more than 200.
	Rows []*fleetv1.Machine
	// BackingOff counts machines that wait after a failure.
	BackingOff int64
	// KeptOut counts the capacity that is not used until somebody says so, such as that of machines
	// that were given back.
	KeptOut int64
}

// StateCount is how many machines are in a state.
type StateCount struct {
	State    fleet.State
	Machines int64
}

// Installed returns how many machines are installed.
func (v View) Installed() int64 {
	for _, s := range v.States {
		if s.State == fleet.StateInstalled {
			return s.Machines
		}
	}
	return 0
}

// Settled reports whether nothing moves by itself any more: each machine is installed, or waits for
// a person, and so does capacity that has none.
func (v View) Settled() bool {
	settled := v.KeptOut
	for _, s := range v.States {
		if s.State.Moving() || s.State == fleet.StateSilent { // what is silent is recovered
			return false
		}
		settled += s.Machines
	}
	return settled >= int64(v.Machines)
}

func (v View) allInstalled() bool { return v.Installed() >= int64(v.Machines) }

// maximumRows is how many machines are shown one by one.
const maximumRows = 200

// WaitInstalled calls show again and again until every machine is installed, and returns the
// result. It asks through the operators' API, like any client.
func (d *Demo) WaitInstalled(ctx context.Context, client fleetv1connect.FleetServiceClient, show func(View)) (Summary, error) {
	return d.wait(ctx, client, show, View.allInstalled)
}

// WaitSettled does the same until nothing moves by itself any more.
func (d *Demo) WaitSettled(ctx context.Context, client fleetv1connect.FleetServiceClient, show func(View)) (Summary, error) {
	return d.wait(ctx, client, show, View.Settled)
}

func (d *Demo) wait(ctx context.Context, client fleetv1connect.FleetServiceClient, show func(View), over func(View) bool) (Summary, error) {
	interval := 200 * time.Millisecond
	if d.options.Machines > smallFleet {
		interval = time.Second
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var memory Memory
	var last View
	answered := time.Now()
	for {
		view, err := d.look(ctx, client)
		if err == nil {
			last, answered = view, time.Now()
			memory.Agents = max(memory.Agents, d.agentsMemory())
			show(view)
		}
		if err == nil && last.Machines > 0 && over(last) {
			took := time.Since(d.begun)
			memory.Here = peak()
			var answer *fleetv1.GetSummaryResponse
			if answer, err = client.GetSummary(ctx, &fleetv1.GetSummaryRequest{Phases: true}); err == nil {
				return d.summarize(answer, took, memory), nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return Summary{}, waitEnded(ctx, last)
		case err != nil && (!passes(err) || time.Since(answered) > unanswered):
			return Summary{}, fmt.Errorf("ask the control plane: %w", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return Summary{}, waitEnded(ctx, last)
		}
	}
}

// unanswered is for how long the control plane may leave questions without an answer. A loaded host
// makes it slow, and it starts parts that fail again.
const unanswered = 5 * time.Minute

// passes reports whether a question that failed so may be answered when it is asked again.
func passes(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeResourceExhausted:
		return true
	}
	switch fleet.KindOf(err) {
	case fleet.KindTemporary, fleet.KindTimeout, fleet.KindThrottled:
		return true
	}
	return false
}

func waitEnded(ctx context.Context, last View) error {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return fleet.Errorf(fleet.KindTimeout, "only %d of %d machines were installed within %s",
			last.Installed(), last.Machines, last.Elapsed.Round(time.Second))
	}
	return context.Cause(ctx)
}

// agentsMemory returns the memory of the machines' processes; 0 without looking where none run.
func (d *Demo) agentsMemory() int64 {
	if d.options.RealAgents == 0 {
		return 0
	}
	return agentsMemory(d.dir)
}

func (d *Demo) look(ctx context.Context, client fleetv1connect.FleetServiceClient) (View, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	view := View{Machines: d.options.Machines, Elapsed: time.Since(d.begun)}
	summary, err := client.GetSummary(ctx, &fleetv1.GetSummaryRequest{})
	if err != nil {
		return view, err
	}
	for _, state := range fleet.States() {
		if n := count(summary, state); n > 0 {
			view.States = append(view.States, StateCount{State: state, Machines: n})
		}
	}
	if summary.GetMachines() < int64(view.Machines) {
		if view.KeptOut, err = d.keptOut(ctx, client); err != nil {
			return view, err
		}
	}
	for _, p := range summary.GetProcesses() {
		view.BackingOff += p.GetBackingOff()
	}
	if d.options.Machines <= maximumRows {
		list, err := client.ListMachines(ctx, &fleetv1.ListMachinesRequest{PageSize: 1000})
		if err != nil {
			return view, err
		}
		view.Rows = list.GetMachines()
	}
	return view, nil
}

// keptOut counts the capacity that is not used until somebody says so.
func (d *Demo) keptOut(ctx context.Context, client fleetv1connect.FleetServiceClient) (n int64, err error) {
	answer, err := client.ListProviders(ctx, &fleetv1.ListProvidersRequest{KeptOutOf: d.config.Providers[0].Name})
	for _, p := range answer.GetProviders() {
		for _, k := range p.GetKeptOut() {
			if k.GetUntil() == nil {
				n++
			}
		}
	}
	return n, err
}
