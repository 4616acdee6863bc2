package sim

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path"
	"time"

	"github.com/ironherd/ironherd/internal/sim/equinixapi"
	"github.com/ironherd/ironherd/internal/sim/fault"
	"github.com/ironherd/ironherd/internal/sim/image"
)

// Config describes a world. The zero value of a field means its default.
type Config struct {
	// Dir keeps the world: its journal, its machines' file systems and disks, its images. Required.
	// One world per directory at a time.
	Dir string
	// Seed decides whatever is random but IDs and the token, which are the world's own. Worlds whose
	// seeds are next to each other have different addresses, up to 64,768 machines, so that they can
	// share an SSH port. A directory keeps the seed that it was made with; 0 takes it as it is.
	Seed uint64
	// Machines is the number of hardware reservations. A directory keeps the number that it was made
	// with; 0 takes it as it is.
	Machines int
	// OnDemand is how many further machines can be created without a reservation. Default:
	// DefaultOnDemand.
	OnDemand int
	// Listen is the address of the API, of the images and of the status page. Default 127.0.0.1:0; a
	// port of 0 is chosen once for the world.
	Listen string
	// TLS makes the API speak TLS, with a certificate of the world's own authority (World.CAFile).
	// Images and the status page stay on plain HTTP, on a port of their own.
	TLS bool
	// SSHPort is the port on which every machine answers SSH, each on its own address. 0: chosen once
	// for the world.
	SSHPort int
	// Speed is how much faster than Durations everything goes. Default 1.
	Speed float64
	// Durations says how long things take at speed 1. Default: DemoDurations.
	Durations *Durations
	// RealAgents is how many machines (the first ones) execute the uploaded agent as a process. On the
	// others Agent is called.
	RealAgents int
	// Agent is the agent's program for machines that run it in this process. May be nil when all
	// machines run real processes.
	Agent AgentFunc
	// Preload are executables that every machine's first operating system has: path on the machine to
	// path on this host.
	Preload map[string]string
	// Faults is a fault specification, as fault.Parse reads it. Default: none.
	Faults string
	// Images to offer. Default: one image "demo" of 64 MiB, compressed with zstd.
	Images []ImageSpec
	// Logger gets the world's log. Default: nothing is logged.
	Logger *slog.Logger
}

// ImageSpec asks for a deterministic disk image.
type ImageSpec struct {
	// Name is the last part of the image's URL. Letters, digits, dots and dashes.
	Name string
	// Size of the raw image in bytes; a multiple of 1 MiB.
	Size int64
	// Compression is "none" or "zstd" (the default).
	Compression string
}

// Image is an image that the world serves.
type Image struct {
	Name string
	URL  string
	// Digest of the raw image: "sha256:" and 64 hexadecimal digits.
	Digest string
	// Size of the raw image, and what is transferred, in bytes.
	Size         int64
	TransferSize int64
	Compression  string
}

// DefaultOnDemand is how many machines can be created on demand in a world that does not say.
const DefaultOnDemand = 100

const mebibyte = 1 << 20

// maxMachines is how many machines have addresses: 127.16.0.0 to 127.255.255.255, without those
// that look special.
const maxMachines = networks * 256 * 253

// withDefaults fills in what was left out.
func (c Config) withDefaults() Config {
	if c.OnDemand == 0 {
		c.OnDemand = DefaultOnDemand
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.Speed == 0 {
		c.Speed = 1
	}
	if c.Durations == nil {
		demo := DemoDurations()
		c.Durations = &demo
	}
	if len(c.Images) == 0 {
		c.Images = []ImageSpec{{Name: "demo", Size: 64 * mebibyte}}
	}
	images := make([]ImageSpec, len(c.Images))
	for i, spec := range c.Images {
		if spec.Compression == "" {
			spec.Compression = "zstd"
		}
		images[i] = spec
	}
	c.Images = images
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate says everything that is wrong with a configuration.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Dir != "", "the directory of the world must be set")
	check(c.Machines >= 0 && c.OnDemand >= 0 && c.Machines+c.OnDemand <= maxMachines, "the number of machines must be from 0 to %d", maxMachines)
	check(c.SSHPort >= 0 && c.SSHPort < 1<<16, "the SSH port must be from 0 to 65535")
	check(c.Speed > 0 && !math.IsInf(c.Speed, 0), "the speed must be above 0")
	check(c.RealAgents >= 0, "the number of real agents must not be negative")
	check(c.Agent != nil || c.RealAgents >= c.Machines, "without an agent to run in this process, all machines must run real agents")
	for name := range c.Preload {
		check(path.IsAbs(name), "preload %q: the path on the machine must be absolute", name)
	}
	for _, d := range []struct {
		name string
		Range
	}{
		{"queued", c.Durations.Queued},
		{"provisioning", c.Durations.Provisioning},
		{"boot", c.Durations.Boot},
		{"power off", c.Durations.PowerOff},
		{"power on", c.Durations.PowerOn},
		{"reboot", c.Durations.Reboot},
		{"deprovisioning", c.Durations.Deprovisioning},
	} {
		check(d.Min >= 0 && (d.Max == 0 || d.Max >= d.Min), "duration %s: its maximum is below its minimum", d.name)
	}
	names := map[string]bool{}
	for _, spec := range c.Images {
		errs = append(errs, image.Spec{Name: spec.Name, Size: spec.Size, Compression: spec.Compression}.Validate())
		check(!names[spec.Name], "image %q is given twice", spec.Name)
		names[spec.Name] = true
	}
	_, err := fault.Parse(c.Faults)
	return errors.Join(append(errs, err)...)
}

// span is a range at the world's speed.
func (c Config) span(r Range) equinixapi.Span {
	scale := func(d time.Duration) time.Duration { return time.Duration(float64(d) / c.Speed) }
	return equinixapi.Span{Min: scale(r.Min), Max: scale(r.Max)}
}

// Range is a duration between Min and Max; the seed decides.
type Range struct{ Min, Max time.Duration }

// Durations says how long things take at speed 1.
type Durations struct {
	// Queued is from the creation of a device until it starts to be provisioned, Provisioning from
	// then until it is active.
	Queued, Provisioning Range
	// Boot is from power-on (or reset) until the operating system answers.
	Boot Range
	// PowerOff is from the request until the machine is off, PowerOn until it begins to boot, and
	// Reboot until it is reset. A reboot that takes no time has happened when it is answered.
	PowerOff, PowerOn, Reboot Range
	// Deprovisioning is from the deletion of a device until its hardware can be provisioned again.
	Deprovisioning Range
}

// DemoDurations are short enough to watch and long enough to see: at least 3 s to provision, at
// least 1 s to boot.
func DemoDurations() Durations {
	return Durations{
		Queued:         Range{500 * time.Millisecond, time.Second},
		Provisioning:   Range{2500 * time.Millisecond, 5 * time.Second},
		Boot:           Range{time.Second, 2 * time.Second},
		PowerOff:       Range{500 * time.Millisecond, time.Second},
		PowerOn:        Range{200 * time.Millisecond, 400 * time.Millisecond},
		Reboot:         Range{200 * time.Millisecond, 400 * time.Millisecond},
		Deprovisioning: Range{2 * time.Second, 4 * time.Second},
	}
}
