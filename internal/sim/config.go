package sim

import (
	"log/slog"
	"time"
)

// Config describes a world. The zero value of a field means its default.
type Config struct {
	// Dir keeps the world: its journal, its machines' file systems and disks, its images. Required. One world per directory at
	// a time.
	Dir string
	// Seed decides whatever is random. A directory keeps the seed that it was made with.
	Seed uint64
	// Machines is the number of hardware reservations. It may grow when a world is opened again; it never shrinks.
	Machines int
	// OnDemand is how many further machines can be created without a reservation. Default 100.
	OnDemand int
	// Listen is the address of the API, of the images and of the status page. Default 127.0.0.1:0; a port of 0 is chosen once
	// for the world.
	Listen string
	// SSHPort is the port on which every machine answers SSH, each on its own address. 0: chosen once for the world.
	SSHPort int
	// Speed is how much faster than Durations everything goes. Default 1.
	Speed float64
	// Durations says how long things take at speed 1. Default: DemoDurations.
	Durations *Durations
	// RealAgents is how many machines (the first ones) execute the uploaded agent as a process. On the others Agent is called.
	RealAgents int
	// Agent is the agent's program for machines that run it in this process. May be nil when all machines run real processes.
	Agent AgentFunc
	// Preload are executables that every machine's first operating system has: path on the machine to path on this host.
	Preload map[string]string
	// Faults is a fault specification, as fault.Parse reads it. Default: none.
	Faults string
	// StableLists makes the API list in a stable order. By default it does not, as the real one did not.
	StableLists bool
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

// Range is a duration between Min and Max; the seed decides.
type Range struct{ Min, Max time.Duration }

// Durations says how long things take at speed 1.
type Durations struct {
	// Queued is from the creation of a device until it starts to be provisioned, Provisioning from then until it is active.
	Queued, Provisioning Range
	// Boot is from power-on (or reset) until the operating system answers.
	Boot Range
	// PowerOff is from the request until the machine is off.
	PowerOff Range
	// Deprovisioning is from the deletion of a device until its hardware can be provisioned again.
	Deprovisioning Range
}

// DemoDurations are short enough to watch and long enough to see: at least 3 s to provision, at least 1 s to boot.
func DemoDurations() Durations {
	return Durations{
		Queued:         Range{500 * time.Millisecond, time.Second},
		Provisioning:   Range{2500 * time.Millisecond, 5 * time.Second},
		Boot:           Range{time.Second, 2 * time.Second},
		PowerOff:       Range{500 * time.Millisecond, time.Second},
		Deprovisioning: Range{2 * time.Second, 4 * time.Second},
	}
}

// RealisticDurations are those of real servers.
func RealisticDurations() Durations {
	return Durations{
		Queued:         Range{5 * time.Second, time.Minute},
		Provisioning:   Range{2 * time.Minute, 8 * time.Minute},
		Boot:           Range{time.Minute, 3 * time.Minute},
		PowerOff:       Range{20 * time.Second, 40 * time.Second},
		Deprovisioning: Range{3 * time.Minute, 10 * time.Minute},
	}
}
