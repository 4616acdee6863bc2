package provisioner

import (
	"errors"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Config is how machines are created at one provider.
type Config struct {
	// MaxMachines is how many machines there may be, open intents included. 0: no limit, which is the
	// default for a list of hosts. A lower number never shrinks the fleet: it only gives up creations
	// that wait to be made or tried again, the newest first. One whose request has no answer is not
	// requested again, and ends once the settling time has shown that nothing was made.
	MaxMachines int `yaml:"max_machines"`
	// ChunkSize is how many machines one pass creates at most; 1000 is the default for a list of
	// hosts. While capacity is free, creations that are tried again get half of it at most.
	ChunkSize int `yaml:"chunk_size"`
	// CreateRate limits creations. The bucket is empty at first, so that restarts do not exceed the
	// rate. For a list of hosts, where nothing is bought, the default is 1ms,1000.
	CreateRate fleet.Rate `yaml:"create_rate"`
	// CreateParallelism is how many creations may be under way at once.
	CreateParallelism int `yaml:"create_parallelism"`
	// Penalty is how long nothing is created on capacity after it failed. Where a list has it as free,
	// and the provider itself says that it is not, that is for SettlingTime, if that is shorter.
	Penalty time.Duration `yaml:"penalty"`
	// SettlingTime is how long the provider's lists may lag, and how long a request may be on its way.
	SettlingTime time.Duration `yaml:"settling_time"`
	// Backoff of passes that failed.
	Backoff fleet.Backoff `yaml:"backoff"`
	// Install is asked for on every machine that is created here; nil: nothing is. It is made of the
	// provider's install section.
	Install *fleet.InstallRequest `yaml:"-"`
	// ReadAt is the database time when the configuration was read; zero: now.
	ReadAt time.Time `yaml:"-"`
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		MaxMachines:       50,
		ChunkSize:         20,
		CreateRate:        fleet.Rate{Every: 5 * time.Second, Burst: 1},
		CreateParallelism: 1,
		Penalty:           time.Hour,
		SettlingTime:      15 * time.Minute,
		Backoff:           fleet.Backoff{Initial: 10 * time.Second, Exponent: 1.5, Maximum: 5 * time.Minute},
	}
}

// ListConfig returns the documented defaults for a list of hosts, where a machine costs nothing and
// making one calls nobody: it needs no limit and no pace.
func ListConfig() Config {
	c := DefaultConfig()
	c.MaxMachines, c.ChunkSize, c.CreateRate = 0, 1000, fleet.Rate{Every: time.Millisecond, Burst: 1000}
	return c
}

// Validate reports every fault at once; each names its key and is of kind Invalid.
func (c Config) Validate() error {
	var faults []error
	if c.MaxMachines < 0 {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, "max_machines must not be negative, not %d (0 means no limit)", c.MaxMachines))
	}
	if c.ChunkSize < 1 {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, "chunk_size must be at least 1, not %d", c.ChunkSize))
	}
	if c.CreateParallelism < 1 {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, "create_parallelism must be at least 1, not %d", c.CreateParallelism))
	}
	return errors.Join(append(faults,
		shepherd.RequireRate("create_rate", c.CreateRate),
		shepherd.RequirePositive("penalty", c.Penalty),
		shepherd.RequirePositive("settling_time", c.SettlingTime),
		shepherd.RequireBackoff("backoff", c.Backoff))...)
}

// Source is a provider that machines are created at.
type Source = shepherd.Source[Config]
