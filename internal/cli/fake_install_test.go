package cli_test

import (
	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

// installing plays an install that comes forward with each look.
func (f *fakeFleet) installing() *fleetv1.GetMachineResponse {
	m := machine()
	m.InstallGeneration = 2
	r := &fleetv1.GetMachineResponse{Machine: m}
	switch f.looks {
	case 1:
		m.State, m.Reason = "installing", "handed to the agent with its next heartbeat"
	case 2:
		m.State = "installing"
		r.InstallProgress = &agentv1.InstallProgress{Phase: agentv1.InstallProgress_PHASE_WRITING, BytesDone: 32 << 20, BytesTotal: 64 << 20}
		r.InstallProgress.WaitingFor = "http://images.example/os: connection refused"
	default:
		r.InstalledGeneration = 2
	}
	return r
}

// kept is a machine whose reinstall was called off. What was installed before is back.
func kept() *fleetv1.GetMachineResponse {
	m := machine()
	m.State, m.InstallGeneration = "installed", 2
	return &fleetv1.GetMachineResponse{Machine: m, InstalledGeneration: 1, Decisions: []*fleetv1.Decision{
		{Process: "install", Verdict: "not-wanted", Reason: "called off by ada: the wrong image"},
	}}
}

// loses returns what a look at a machine fails with: what was set to be lost comes first.
func (f *fakeFleet) loses(machine string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.lost) == 0 {
		return failing(machine)
	}
	err := f.lost[0]
	f.lost = f.lost[1:]
	return err
}
