package demo

import (
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/sim"
	"github.com/ironherd/ironherd/internal/sim/fault"
)

// Summary is the result of a demo.
type Summary struct {
	Machines  int `yaml:"machines"`
	Installed int `yaml:"installed"`
	// Seconds since the demo was opened, and machines installed per minute of them.
	Seconds   float64 `yaml:"seconds"`
	PerMinute float64 `yaml:"perMinute"`
	Phases    []Phase `yaml:"phases"`
	// World is nil where the machines are not simulated.
	World  *WorldSummary `yaml:"world,omitempty"`
	Memory Memory        `yaml:"memory"`
}

// Phase is how long one phase took, in seconds, over all machines that passed it.
type Phase struct {
	Phase string  `yaml:"phase"`
	Count int64   `yaml:"count"`
	P50   float64 `yaml:"p50"`
	P95   float64 `yaml:"p95"`
	P99   float64 `yaml:"p99"`
	Max   float64 `yaml:"max"`
}

// WorldSummary is what the world counted.
type WorldSummary struct {
	Devices               int           `yaml:"devices"`
	DuplicateDevices      int           `yaml:"duplicateDevices"`
	InstallsVerified      int           `yaml:"installsVerified"`
	InstallsRejected      int           `yaml:"installsRejected"`
	InstalledMoreThanOnce int           `yaml:"installedMoreThanOnce"`
	AgentStarts           int64         `yaml:"agentStarts"`
	Uploads               int64         `yaml:"uploads"`
	UploadBytes           int64         `yaml:"uploadBytes"`
	Faults                []fault.Count `yaml:"faults"`
}

// summarize puts together what the control plane answered and what the world counted.
func (d *Demo) summarize(answer *fleetv1.GetSummaryResponse, took time.Duration, memory Memory) Summary {
	s := Summary{
		Machines: d.options.Machines, Installed: int(count(answer, fleet.StateInstalled)),
		Seconds: took.Seconds(), Memory: memory,
	}
	if d.world != nil {
		world := worldSummary(d.world.Status())
		s.World = &world
	}
	if took > 0 {
		s.PerMinute = float64(s.Installed) / took.Minutes()
	}
	for _, p := range answer.GetPhases() {
		s.Phases = append(s.Phases, Phase{
			Phase: p.GetPhase(), Count: p.GetCount(),
			P50: p.GetP50().AsDuration().Seconds(), P95: p.GetP95().AsDuration().Seconds(),
			P99: p.GetP99().AsDuration().Seconds(), Max: p.GetMax().AsDuration().Seconds(),
		})
	}
	return s
}

func worldSummary(s sim.Status) WorldSummary {
	w := WorldSummary{
		Devices: s.Devices, DuplicateDevices: s.DuplicateDevices,
		InstallsVerified: s.InstallsVerified, InstallsRejected: s.InstallsRejected, InstalledMoreThanOnce: s.InstalledMoreThanOnce,
		AgentStarts: s.AgentStarts, Uploads: s.Uploads, UploadBytes: s.UploadBytes,
	}
	for _, f := range s.Faults {
		if f.Opportunities > 0 || f.Fired > 0 {
			w.Faults = append(w.Faults, f)
		}
	}
	return w
}

func count(answer *fleetv1.GetSummaryResponse, state fleet.State) int64 {
	for _, s := range answer.GetStates() {
		if s.GetState() == string(state) {
			return s.GetMachines()
		}
	}
	return 0
}
