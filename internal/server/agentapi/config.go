package agentapi

import (
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
)

// Config is how the agent API is served.
type Config struct {
	// Listen is the address to listen on, as host:port.
	Listen string `yaml:"listen"`
	// Endpoint is where machines reach it, as host:port: installed systems call it to say that they
	// are up, and agents where initializer.endpoint does not name another one. One that only this host
	// reaches, such as localhost, is refused where a provider has machines elsewhere, and no machine
	// elsewhere is handed an install with it. Required.
	Endpoint string `yaml:"endpoint"`
	// TLS is the certificate that it proves itself with.
	TLS server.CertificateConfig `yaml:"tls"`

	// HeartbeatsPerSecond bounds what all agents together are asked for: with more agents, each is
	// asked to speak less often.
	HeartbeatsPerSecond int `yaml:"heartbeats_per_second"`
	// FlushInterval is how often liveness is written.
	FlushInterval time.Duration `yaml:"flush_interval"`
	// Recheck is how long a remembered identity is good for without asking the BMDB again. With agents
	// that are asked to speak less often it is two of their intervals.
	Recheck time.Duration `yaml:"recheck"`
	// CallRate bounds the calls of one agent, and of one connection.
	CallRate fleet.Rate `yaml:"call_rate"`
	// ReportRate bounds what one agent can make durable: its reports, changes of its boot ID, and
	// lines of the log about heartbeats that are malformed.
	ReportRate fleet.Rate `yaml:"report_rate"`
	// MaxMessageBytes bounds one request.
	MaxMessageBytes int `yaml:"max_message_bytes"`
	// MaxConnections bounds the open connections; MaxConnectionsPerAddress those from one IP address
	// (of IPv6: from one /64). Zero: no limit. There are never more than the limit of open files
	// leaves room for; a thousand files are kept for all else.
	MaxConnections           int `yaml:"max_connections"`
	MaxConnectionsPerAddress int `yaml:"max_connections_per_address"`
	// MaxUnadmitted bounds the connections among them on which no agent is admitted (yet);
	// MaxUnadmittedPerAddress those from one IP address (of IPv6: from one /64). Above a limit, those
	// that do nothing are closed in favour of new ones.
	MaxUnadmitted           int `yaml:"max_unadmitted"`
	MaxUnadmittedPerAddress int `yaml:"max_unadmitted_per_address"`
	// AdmitWithin is how long a connection may be open until an agent is admitted on it.
	AdmitWithin time.Duration `yaml:"admit_within"`
	// Drain is how long calls may go on when the server is told to stop. They are cancelled at half of
	// it.
	Drain time.Duration `yaml:"drain"`
}

// DefaultConfig returns the documented defaults. Endpoint must be set.
func DefaultConfig() Config {
	return Config{
		Listen:                   ":8443",
		HeartbeatsPerSecond:      500,
		FlushInterval:            time.Second,
		Recheck:                  time.Minute,
		CallRate:                 fleet.Rate{Every: 250 * time.Millisecond, Burst: 20},
		ReportRate:               fleet.Rate{Every: time.Minute, Burst: 20},
		MaxMessageBytes:          1 << 20,
		MaxConnections:           50_000,
		MaxConnectionsPerAddress: 10_000,
		MaxUnadmitted:            512,
		MaxUnadmittedPerAddress:  128,
		AdmitWithin:              10 * time.Second,
		Drain:                    5 * time.Second,
	}
}

// Validate reports every fault at once; each names its key and is of kind Invalid.
func (c Config) Validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fleet.Errorf(fleet.KindInvalid, format, args...))
		}
	}
	check(isListen(c.Listen), "listen must be host:port or :port, with a number as port, not %q", c.Listen)
	check(c.Endpoint != "", "endpoint must be set: where machines reach the agent API, as host:port")
	check(c.Endpoint == "" || isEndpoint(c.Endpoint), "endpoint must be host:port, with a number as port, not %q", c.Endpoint)
	check(c.HeartbeatsPerSecond > 0, "heartbeats_per_second must be positive, not %d", c.HeartbeatsPerSecond)
	check(c.FlushInterval > 0, "flush_interval must be positive, not %s", c.FlushInterval)
	check(c.Recheck > 0, "recheck must be positive, not %s", c.Recheck)
	check(c.CallRate.Valid(), "call_rate must be a positive duration and a positive number, such as 250ms,20, not %s", c.CallRate)
	check(c.ReportRate.Valid(), "report_rate must be a positive duration and a positive number, such as 1m,20, not %s", c.ReportRate)
	check(c.MaxMessageBytes >= 64<<10, "max_message_bytes must be at least 65536, not %d", c.MaxMessageBytes)
	check(c.MaxConnections >= 0, "max_connections must not be negative, but is %d", c.MaxConnections)
	check(c.MaxConnectionsPerAddress >= 0, "max_connections_per_address must not be negative, but is %d", c.MaxConnectionsPerAddress)
	check(c.MaxUnadmitted > 0, "max_unadmitted must be positive, not %d", c.MaxUnadmitted)
	check(c.MaxUnadmittedPerAddress > 0, "max_unadmitted_per_address must be positive, not %d", c.MaxUnadmittedPerAddress)
	check(c.AdmitWithin >= time.Second, "admit_within must be at least 1s, not %s", c.AdmitWithin)
	check(c.Drain > 0, "drain must be positive, not %s", c.Drain)
	return errors.Join(append(faults, c.TLS.Validate())...)
}

// unadmittedBytes is how much is read from a connection until it is admitted, TLS included: enough
// for a report that a system is up, and for a heartbeat without reports.
const unadmittedBytes = 32 << 10

// perMachine is how many connections one agent may have: one that it uses, and those that it has
// lost and this server does not know to be dead.
const perMachine = 4

func (c Config) limit() server.Limit {
	return server.Limit{
		Total: server.FitOpenFiles(c.MaxConnections), PerSource: c.MaxConnectionsPerAddress,
		Unadmitted: c.MaxUnadmitted, UnadmittedPerSource: c.MaxUnadmittedPerAddress, PerOwner: perMachine,
		AdmitWithin: c.AdmitWithin, UnadmittedBytes: unadmittedBytes,
	}
}

// Hosts returns the names and addresses that the certificate must carry: that of the endpoint,
// which installed systems are told to call, and that of the one that agents are.
func (c Config) Hosts(told string) (hosts []string) {
	for _, endpoint := range []string{c.Endpoint, told} {
		if host, _, err := net.SplitHostPort(endpoint); err == nil && host != "" && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// isListen reports whether something can be listened at: on any port, where it is 0.
func isListen(s string) bool {
	_, port, err := net.SplitHostPort(s)
	_, notANumber := strconv.ParseUint(port, 10, 16)
	return err == nil && notANumber == nil
}

// isEndpoint reports whether a host and a port are named.
func isEndpoint(s string) bool {
	host, port, _ := net.SplitHostPort(s)
	return isListen(s) && host != "" && strings.Trim(port, "0") != ""
}
