// Package initializer puts our agent in charge of machines: the process agent-start.
//
// For each machine that needs an agent, it
//
//  1. asks the provider for the address,
//  2. dials the machine over SSH and verifies its host key,
//  3. mints a takeover generation,
//  4. asks for the machine's architecture, and uploads the agent for it, unless that very version
//     is there,
//  5. runs it with TakeoverInit on standard input,
//  6. checks the TakeoverResponse and records the agent's public key.
//
// What it promises:
//
//   - Before it writes anything to the host, it commits the takeover generation, and with it a host
//     key that it trusted on first use. A takeover that is interrupted leaves an agent that the
//     agent API refuses, and the next takeover supersedes it.
//   - A response counts only when it echoes the very init message and carries an Ed25519 key.
//   - Where nothing can be put into a directory of the machine, or executed there, the next one of
//     the configuration is tried.
//   - A machine can hurt only itself: each step has a time limit, and so has the whole; what it
//     writes is bounded, and shown in quotes. At the first attempt, and at the next one after a
//     success, silence alone ends the work soon; the attempts after that are patient, and have at
//     most half of the loop's slots.
//   - A failure concerns one machine, whose backoff has the cause. There is a backoff each for a
//     provider that cannot be asked, for a start that failed, and for an ID that the provider does
//     not know.
package initializer

import (
	"errors"
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Config is how agents are started.
type Config struct {
	// AgentExecutable is the path of the agent's executable on this host. Default: the agent beside
	// the program.
	AgentExecutable string `yaml:"agent_executable"`
	// OtherAgentExecutables are the agent's executables for machines of other architectures. Each
	// machine is asked what it is, and gets the first that it can execute. Default: those beside the
	// program, unless AgentExecutable is set.
	OtherAgentExecutables []string `yaml:"other_agent_executables"`
	// TargetPath is the directory on the machines that it is uploaded to; not /, and none in which
	// others than root may write. It is made if it is missing.
	TargetPath string `yaml:"target_path"`
	// OtherTargetPaths are tried in turn on a machine where nothing can be put into TargetPath, or
	// nothing executed there: it is read-only, full, mounted noexec, or others can write to it.
	OtherTargetPaths []string `yaml:"other_target_paths"`
	// Endpoint is where the agents find the agent API, as host:port. Default: the agent API's own. A
	// certificate that is made here is for both.
	Endpoint string `yaml:"endpoint"`
	// EndpointCA is a PEM file with the certificates that the endpoint's certificate must chain to, at
	// most 32 KiB of them. Whatever else is in it is not given away.
	// Default: as agent_api.tls says, its ca_certificate, the authority that was made here, or the
	// public roots of the machines.
	EndpointCA string `yaml:"endpoint_ca"`
	// User and Port of SSH on the machines.
	User string `yaml:"user"`
	Port uint16 `yaml:"port"`
	// ConnectTimeout bounds the TCP connect.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// FirstSilence is how long a machine, or its jump host, may say nothing during the SSH handshake,
	// and how long the machine may take to answer a first command that does nothing, unless a start
	// failed there lately. So machines that hang leave their slots early, and are tried with more
	// patience later. 0: no such limit.
	FirstSilence time.Duration `yaml:"first_silence"`
	// StepTimeout bounds each other step on the machine: the SSH handshake, each command, each
	// operation on files, and how long the upload may go without progress.
	StepTimeout time.Duration `yaml:"step_timeout"`
	// ExecuteTimeout bounds the agent's run.
	ExecuteTimeout time.Duration `yaml:"execute_timeout"`
	// WorkTimeout bounds the whole. An upload that takes longer is gone on with by the next attempt.
	WorkTimeout time.Duration `yaml:"work_timeout"`
	// ContactLimit is how long an agent in memory may go without being admitted before it restarts
	// the machine into the system that was there before. It is for takeovers by kexec.
	ContactLimit time.Duration `yaml:"contact_limit"`
	// ProviderBackoff is for a provider that cannot be asked, StartBackoff for a start that failed,
	// or a machine that is off or has no address, and IDBackoff for a machine whose ID the provider
	// does not know. Where a list of hosts does not have the machine, ProviderBackoff counts.
	ProviderBackoff fleet.Backoff `yaml:"provider_backoff"`
	StartBackoff    fleet.Backoff `yaml:"start_backoff"`
	IDBackoff       fleet.Backoff `yaml:"id_backoff"`
}

// DefaultConfig returns the documented defaults. Agent executable and endpoint have none.
func DefaultConfig() Config {
	return Config{
		TargetPath:       "/root/agent/",
		OtherTargetPaths: []string{"/var/lib/ironherd-agent/bin/", "/run/ironherd-agent/bin/"},
		User:             "root",
		Port:             22,
		ConnectTimeout:   2 * time.Second,
		FirstSilence:     2 * time.Second,
		StepTimeout:      15 * time.Second,
		ExecuteTimeout:   time.Minute,
		WorkTimeout:      5 * time.Minute,
		ContactLimit:     10 * time.Minute,
		ProviderBackoff:  fleet.Backoff{Initial: 30 * time.Second},
		StartBackoff:     fleet.Backoff{Initial: time.Minute, Exponent: 1.5, Maximum: time.Hour},
		IDBackoff:        fleet.Backoff{Initial: time.Hour},
	}
}

// maxContactLimit is the longest that an agent accepts.
const maxContactLimit = 24 * time.Hour

// sharedDirectories are those in which everybody on a machine may write.
var sharedDirectories = []string{"/tmp", "/var/tmp", "/dev/shm", "/run/lock", "/var/lock"}

// Validate reports every fault at once; each names its key and is of kind Invalid. It does not read
// the files.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, format, args...))
	}
	if strings.TrimSpace(c.AgentExecutable) == "" {
		fault("agent_executable must be set")
	}
	for i, executable := range c.OtherAgentExecutables {
		if strings.TrimSpace(executable) == "" {
			fault("other_agent_executables[%d] must not be empty", i)
		}
	}
	targetFaults(fault, "target_path", c.TargetPath)
	for i, other := range c.OtherTargetPaths {
		targetFaults(fault, fmt.Sprintf("other_target_paths[%d]", i), other)
	}
	if c.Endpoint == "" {
		fault("endpoint must be set")
	} else if !validEndpoint(c.Endpoint) {
		fault("endpoint must be host:port, not %q", c.Endpoint)
	}
	if strings.TrimSpace(c.User) == "" {
		fault("user must be set")
	}
	if c.Port == 0 {
		fault("port must be from 1 to 65535, not 0")
	}
	if c.ContactLimit > maxContactLimit {
		fault("contact_limit must be at most %s, not %s", maxContactLimit, c.ContactLimit)
	}
	return errors.Join(append(faults,
		shepherd.RequirePositive("connect_timeout", c.ConnectTimeout),
		shepherd.RequireNotNegative("first_silence", c.FirstSilence),
		shepherd.RequirePositive("step_timeout", c.StepTimeout),
		shepherd.RequirePositive("execute_timeout", c.ExecuteTimeout),
		shepherd.RequirePositive("work_timeout", c.WorkTimeout),
		shepherd.RequirePositive("contact_limit", c.ContactLimit),
		shepherd.RequireBackoff("provider_backoff", c.ProviderBackoff),
		shepherd.RequireBackoff("start_backoff", c.StartBackoff),
		shepherd.RequireBackoff("id_backoff", c.IDBackoff))...)
}

func targetFaults(fault func(format string, args ...any), key, directory string) {
	if !path.IsAbs(directory) || strings.ContainsAny(directory, "\x00\n") {
		fault("%s must be an absolute path, not %q", key, directory)
	}
	if path.Clean(directory) == "/" { // from which no agent removes anything
		fault("%s must be a directory below /, not %q: use one of root's, such as /root/agent/", key, directory)
	}
	for _, shared := range sharedDirectories {
		if within := path.Clean(directory) + "/"; strings.HasPrefix(within, shared+"/") {
			fault("%s must not be in %s, where everybody on the machine could put a program in the agent's place: use one of root's, "+
				"such as /root/agent/", key, shared)
		}
	}
}

func validEndpoint(endpoint string) bool {
	host, port, err := net.SplitHostPort(endpoint)
	n, errPort := strconv.ParseUint(port, 10, 16)
	return err == nil && errPort == nil && n > 0 && host != ""
}

// ProviderConfig is what the configuration of a provider says to the initializer.
type ProviderConfig struct {
	// TrustFirstUse accepts any host key from a machine of which none is known, and pins it.
	TrustFirstUse bool
	// Takeover is how agents are put in charge.
	Takeover Takeover
}

// Takeover is how an agent is put in charge of a machine.
type Takeover string

// The ways of a takeover.
const (
	// TakeoverInPlace runs the agent as a process of the operating system that is there.
	TakeoverInPlace Takeover = "in-place"
	// TakeoverKexec puts the agent into memory, in the place of the operating system.
	TakeoverKexec Takeover = "kexec"
)

// Validate reports a way that does not exist.
func (t Takeover) Validate() error {
	if t != TakeoverInPlace && t != TakeoverKexec {
		return fleet.Errorf(fleet.KindInvalid, "takeover must be %s or %s, not %q", TakeoverInPlace, TakeoverKexec, string(t))
	}
	return nil
}

// Source is a provider whose machines get agents.
type Source = shepherd.Source[ProviderConfig]
