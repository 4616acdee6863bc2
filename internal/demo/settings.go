package demo

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider/builtin"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/sim"
	"github.com/ironherd/ironherd/internal/sim/fault"
)

// Options says what to demonstrate. Where a default is documented, the zero value means it.
type Options struct {
	// Machines in the fleet: at least 1.
	Machines int
	// Virtual is how many virtual machines under QEMU take the place of the simulated world; 0: none.
	// Machines and what else is said of a world count for nothing then.
	Virtual int
	// Dir keeps world and control plane. Default: a directory that is removed at the end.
	Dir string
	// Seed of the world: at least 1.
	Seed uint64
	// Speed is how much faster than its default the simulated hardware is. At 1 it takes at least 3 s
	// to provision and 1 s to boot.
	Speed float64
	// Faults of the world, as fault.Parse reads them. Default: none.
	Faults string
	// RealAgents is how many machines run the uploaded agent as a process of its own. Negative: 24, or
	// all machines where there are fewer.
	RealAgents int
	// PreloadAgent puts the agent on every machine beforehand, so that nothing is uploaded.
	PreloadAgent bool
	// AgentExecutable is the agent's executable. Required.
	AgentExecutable string
	// ImageSize is the size of the image in bytes, a multiple of 1 MiB. Default: 64 MiB, and 8 MiB for
	// more than 100 machines.
	ImageSize int64
	// Listen is the address of the page and the operator API. Default: any free port of 127.0.0.1.
	Listen string
	// SeenUp is how installed systems are seen to have come up. Default: their unit calls in.
	SeenUp fleet.SeenUp
	// Version of this program.
	Version string
}

// maximumAgents is how many agents run as processes by default. A small computer can run so many
// beside everything else.
const maximumAgents = 24

// smallFleet is the largest fleet that changes often enough to be watched. Beyond it the demo
// favours throughput.
const smallFleet = 100

const mebibyte = 1 << 20

func (o Options) withDefaults() Options {
	if o.Virtual > 0 {
		o.Machines, o.RealAgents = o.Virtual, 0
	}
	if o.RealAgents < 0 || o.RealAgents > o.Machines {
		o.RealAgents = min(o.Machines, maximumAgents)
	}
	if o.ImageSize == 0 {
		o.ImageSize = 64 * mebibyte
		if o.Machines > smallFleet {
			o.ImageSize = 8 * mebibyte
		}
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	return o
}

// Validate reports every fault at once. The error is of kind Invalid and names the flags.
func (o Options) Validate() error {
	o = o.withDefaults()
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fleet.Errorf(fleet.KindInvalid, format, args...))
		}
	}
	check(o.Machines >= 1 && o.Machines <= maximumMachines, "--machines must be from 1 to %d, not %d", maximumMachines, o.Machines)
	check(o.Virtual >= 0 && o.Virtual <= maximumVirtual, "--vm must be from 1 to %d, not %d", maximumVirtual, o.Virtual)
	check(o.Virtual == 0 || o.Dir == "", "--vm keeps nothing: leave --dir out")
	check(o.Virtual == 0 || o.SeenUp == fleet.SeenUp{}, "--vm installs an image whose unit calls in: leave --seen-up and --watch out")
	check(o.Seed >= 1, "--seed must be at least 1, not 0")
	check(o.Speed > 0 && o.Speed <= 1000, "--speed must be above 0 and at most 1000, not %g", o.Speed)
	check(o.ImageSize >= 4*mebibyte && o.ImageSize%mebibyte == 0, "--image-size must be whole mebibytes, at least 4")
	for _, f := range o.SeenUp.Validate() {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, "--%s %s", strings.ReplaceAll(f.Field, "_", "-"), f.Problem))
	}
	check(o.SeenUp.By != fleet.SeenByHTTP, "--seen-up must be unit or ssh, because no simulated machine answers HTTP")
	if _, err := fault.Parse(o.Faults); err != nil {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, "--faults: %w", err))
	}
	if info, err := os.Stat(o.AgentExecutable); err != nil || !info.Mode().IsRegular() {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid,
			"the agent's executable was not found at %q: build it (make build) or name it with --agent", o.AgentExecutable))
	}
	return fleet.JoinFaults(faults)
}

// maximumMachines is more than one process has files for. The world has addresses for 15 million.
const maximumMachines = 20000

// imageName is what the world's image is called, in the world and by people.
const imageName = "demo"

// worldConfig returns the configuration of the world, which keeps its files below dir.
func (o Options) worldConfig(dir string) sim.Config {
	return sim.Config{
		Dir: filepath.Join(dir, "world"), Seed: o.Seed, Machines: o.Machines, Speed: o.Speed,
		RealAgents: o.RealAgents, Agent: Agent(o.Version), Faults: o.Faults,
		Images: []sim.ImageSpec{{Name: imageName, Size: o.ImageSize}},
	}
}

// WorldAddress is what a control plane must know of a simulated world.
type WorldAddress struct {
	URL       string
	TokenFile string
	ProjectID string
	SSHPort   int
	Image     sim.Image
}

// Settings returns the configuration of a control plane for a simulated world, with intervals that
// fit simulated machines. dir is absolute.
func Settings(dir, agentExecutable string, machines int, world WorldAddress) config.Config {
	c := config.Default()
	c.Dir = dir
	c.AgentAPI.Listen = "127.0.0.1:0"
	c.AgentAPI.Endpoint = "127.0.0.1:0"
	// All simulated agents call from one address.
	c.AgentAPI.MaxConnectionsPerAddress, c.AgentAPI.MaxUnadmittedPerAddress = 0, c.AgentAPI.MaxUnadmitted
	c.OperatorAPI.Listen = "127.0.0.1:0"
	c.Initializer.AgentExecutable = agentExecutable
	c.Initializer.Port = uint16(world.SSHPort) //nolint:gosec // a port
	c.Providers = []config.Provider{simulated(machines, world)}
	c.Images = []config.Image{{
		Name: imageName, URL: world.Image.URL, Digest: world.Image.Digest, Size: world.Image.Size,
		Compression: fleet.Compression(world.Image.Compression),
	}}
	shorten(&c, machines)
	c.Resolve(dir)
	return c
}

// simulated returns the world as a provider.
func simulated(machines int, world WorldAddress) config.Provider {
	p := config.NewProvider("sim", builtin.Equinix)
	p.Equinix.APIURL = world.URL
	p.Equinix.TokenFile = world.TokenFile
	p.Equinix.Project = world.ProjectID
	p.Equinix.SSHKeyLabel = "ironherd"
	p.Equinix.DevicePrefix = "herd-"
	p.Equinix.OperatingSystem = "debian_12"
	p.Provisioner.MaxMachines = machines
	p.Install = &config.Install{
		URL: world.Image.URL, Digest: world.Image.Digest, Size: world.Image.Size,
		Compression: fleet.Compression(world.Image.Compression), RootDisk: fleet.DiskSelector{Pick: fleet.PickSmallest, Grow: true},
	}
	return p
}

// shorten shortens intervals and raises rates: with real machines minutes pass between two events,
// with simulated ones a fraction of a second.
func shorten(c *config.Config, machines int) {
	p := &c.Providers[0]
	p.Equinix.Spacing = 0
	p.Equinix.InFlight = 16
	p.Equinix.PageSize = 1000
	p.Provisioner.ChunkSize = max(20, machines)
	p.Provisioner.CreateRate = fleet.Rate{Every: 20 * time.Millisecond, Burst: 1}
	p.Provisioner.CreateParallelism = 8
	p.Provisioner.SettlingTime = 20 * time.Second
	p.Provisioner.Penalty = 5 * time.Second
	p.Provisioner.Backoff = fleet.Backoff{Initial: time.Second, Exponent: 1.5, Maximum: 5 * time.Second}
	p.Updater.SettlingTime = 20 * time.Second
	p.Updater.Backoff = p.Provisioner.Backoff

	c.Policy.ProvisionInterval = 2 * time.Second
	c.Policy.UpdateInterval = time.Second
	c.Policy.UpdateSettledInterval = 30 * time.Second
	if machines > smallFleet { // both list the whole provider, so they grow with the fleet
		c.Policy.ProvisionInterval = 10*time.Second + time.Duration(machines)*time.Millisecond
		c.Policy.UpdateInterval = 3*time.Second + time.Duration(machines)*time.Millisecond
		c.Initializer.FirstSilence = 0 // that many machines keep this one too busy to answer in time
	}
	c.Policy.HeartbeatInterval = 5 * time.Second
	c.Policy.InstallRetry = fleet.Backoff{Initial: time.Second, Exponent: 1.5, Maximum: 10 * time.Second}

	c.Policy.SilentAfter = 30 * time.Second
	c.Policy.NeverSpokeAfter = 30 * time.Second
	c.Policy.RecoveryStepTimeout = 30 * time.Second
	c.Policy.BootTimeout = 2 * time.Minute
	c.Policy.SuspectFor = time.Minute
	c.Policy.OperationTimeout = 2 * time.Minute
	c.Policy.ProbeInterval, c.Policy.WatchInterval, c.Policy.UnreachableAfter = time.Second, 5*time.Second, 15*time.Second
	c.Recoverer.Backoff = fleet.Backoff{Initial: time.Second, Exponent: 1.5, Maximum: 10 * time.Second}
	c.Operations.Backoff = c.Recoverer.Backoff

	c.Loops.Initializer.Parallelism = 32
	for _, loop := range []*shepherd.Config{
		&c.Loops.Provisioner, &c.Loops.Initializer, &c.Loops.Updater, &c.Loops.Recoverer, &c.Loops.Operations,
		&c.Loops.Prober,
	} {
		loop.Poll, loop.Grace = 500*time.Millisecond, 2*time.Second
	}
	c.Loops.Initializer.ClaimRate = fleet.Rate{Every: 20 * time.Millisecond, Burst: 8}
	c.Initializer.ProviderBackoff = fleet.Backoff{Initial: time.Second}
	c.Initializer.StartBackoff = fleet.Backoff{Initial: time.Second, Exponent: 1.5, Maximum: 10 * time.Second}
	c.Initializer.IDBackoff = fleet.Backoff{Initial: 10 * time.Second}
	c.DrainTimeout = 10 * time.Second
}
