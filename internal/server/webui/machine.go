package webui

import (
	"context"
	"slices"
	"strings"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/webui/live"
)

// historyLimit is how many of the newest entries of a history are shown.
const historyLimit = 200

// machineView is one machine, by any of its names.
type machineView struct{ ref string }

func (v machineView) Key() string  { return "machine/" + v.ref }
func (v machineView) Name() string { return v.ref }
func (machineView) tab() string    { return "machines" }

func (v machineView) unknown() problem {
	return problem{
		Title: "No machine is known as “" + v.ref + "”",
		Text:  "A machine can be named by:",
		Hints: []string{
			"its ID, or at least the first 8 characters of it that no other machine has",
			"its host name",
			"its provider and the provider's ID for it, as in metal/6d3a2f61",
		},
	}
}

// machinePage is what the view shows.
type machinePage struct {
	*fleetv1.GetMachineResponse
	summary string
	next    *fleetv1.NextStep
	history []*fleetv1.HistoryEntry // newest first
}

func (v machineView) load(ctx context.Context, s *source) (*live.Content, error) {
	var p machinePage
	err := live.Parallel(ctx,
		func(ctx context.Context) (err error) {
			p.GetMachineResponse, err = s.client.GetMachine(ctx, &fleetv1.GetMachineRequest{Machine: v.ref})
			return err
		},
		func(ctx context.Context) error {
			response, err := s.client.ExplainMachine(ctx, &fleetv1.ExplainMachineRequest{Machine: v.ref})
			p.summary, p.next = response.GetSummary(), response.GetNext()
			return err
		},
		func(ctx context.Context) error {
			response, err := s.client.ListHistory(ctx, &fleetv1.ListHistoryRequest{Machine: v.ref, Limit: historyLimit})
			p.history = slices.Clone(response.GetEntries())
			slices.Reverse(p.history)
			return err
		},
	)
	if err != nil {
		return nil, err
	}
	m := p.GetMachine()
	return &live.Content{Title: machineName(m) + " " + m.GetState(), Fragments: []*live.Fragment{
		live.Section("machine", "card machine", machineBody(p)),
		live.Section("decisions", "card", decisionsBody(p.GetDecisions())),
		live.Section("facts", "card half", factsBody(p.GetFacts())),
		live.Section("commands", "card half", commandsBody(p)),
		live.Section("history", "card", historyBody(p.history)),
		live.Section("hardware", "card", hardwareBody(p.GetHardware())),
	}}, nil
}

// machineName returns the host name, else the ID.
func machineName(m *fleetv1.Machine) string {
	if m.GetHostname() != "" {
		return m.GetHostname()
	}
	return m.GetId()
}

// backsOff says whether a process of the machine is in backoff.
func (p machinePage) backsOff() bool {
	return slices.ContainsFunc(p.GetDecisions(), func(d *fleetv1.Decision) bool { return d.GetBackoffCause() != "" })
}

// installCommand puts an operating system on the machine; "" for one that is not ours any more.
// What is installed already, or was written and has not come up yet, is overwritten only when that
// is asked for. So is a system that no install of ours has put there: the one that a first install
// finds, one that was marked as installed, and the provider's own after a reinstall by recovery.
func (p machinePage) installCommand() string {
	m := p.GetMachine()
	command := "ironherd machine install " + m.GetId() + " --image URL --digest sha256:DIGEST"
	fact := func(name string) bool {
		return slices.ContainsFunc(p.GetFacts(), func(f *fleetv1.Fact) bool { return f.GetName() == name })
	}
	switch state := fleet.State(m.GetState()); {
	case state == fleet.StateMissing || state == fleet.StateReleasing:
		return ""
	case state == fleet.StateRefused && !strings.HasPrefix(p.next.GetCommand(), "ironherd machine install "):
		return "" // its agent is too old
	case state == fleet.StateRefused:
		return strings.Replace(p.next.GetCommand(), "--image IMAGE", "--image URL --digest sha256:DIGEST", 1)
	case fact("marked installed") || fact("erased"):
		return command + " --reinstall --erase --reason WHY"
	case fact("installed") || fact("on disk"):
		return command + " --reinstall --reason WHY"
	}
	return command + " --erase --wait"
}

// installSteps are the phases of an install, in order.
var installSteps = []struct {
	phase agentv1.InstallProgress_Phase
	name  string
}{
	{agentv1.InstallProgress_PHASE_PREPARING, "preparing"},
	{agentv1.InstallProgress_PHASE_WRITING, "writing"},
	{agentv1.InstallProgress_PHASE_VERIFYING, "verifying"},
	{agentv1.InstallProgress_PHASE_FINISHING, "finishing"},
}

func stepClass(step, current agentv1.InstallProgress_Phase) string {
	switch {
	case step < current:
		return "done"
	case step == current:
		return "now"
	}
	return "next"
}

// percent is how much of an install is written; negative when that cannot be said.
func percent(p *agentv1.InstallProgress) float64 {
	if p.GetBytesTotal() <= 0 || p.GetBytesDone() < 0 {
		return -1
	}
	return min(100, 100*float64(p.GetBytesDone())/float64(p.GetBytesTotal()))
}

// sincePrevious returns the time from one fact to the next; empty where it is nothing worth
// telling.
func sincePrevious(facts []*fleetv1.Fact, i int) string {
	if i == 0 || !known(facts[i].GetAt()) || !known(facts[i-1].GetAt()) {
		return ""
	}
	d := facts[i].GetAt().AsTime().Sub(facts[i-1].GetAt().AsTime())
	if d < 100*time.Millisecond {
		return ""
	}
	return "+" + exactDuration(d)
}
