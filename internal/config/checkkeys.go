package config

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/server"
)

// checkKeys reads the keys and certificates that a start reads, where somebody asks for contents. A
// control plane starts with a certificate that clients refuse, and shows it.
func (d *document) checkKeys(c Config) {
	if !d.sources.Contents {
		return
	}
	if d.isSet("ssh.key_file") && !d.reported("ssh.key_file") {
		if _, err := remote.OpenKey(c.SSH.KeyFile); err != nil {
			d.fileFault("ssh.key_file", err)
		}
	}
	if agents := c.AgentAPI.TLS; d.mayHave(c, fleet.RoleAgentAPI) || d.mayHave(c, fleet.RoleInitializer) {
		hosts := c.AgentAPI.Hosts(c.Initializer.Endpoint)
		if !d.mayHave(c, fleet.RoleAgentAPI) { // it tells installed systems nothing
			hosts = hosts[max(0, len(hosts)-1):]
		}
		d.checkPair("agent_api.tls", agents.Certificate, func(logger *slog.Logger) (*server.Certificates, error) {
			return agents.Open(c.Dir, hosts, c.GivenToAgents(), logger)
		})
		if given := "initializer.endpoint_ca"; agents.Certificate == "" && c.Has(fleet.RoleAgentAPI) && !d.reported(given) {
			if fault := server.RefusedBy(c.Dir, c.GivenToAgents()); fault != "" {
				d.keyFault(given, "%s", fault)
			}
		}
	}
	if operators := c.OperatorAPI.TLS; d.mayHave(c, fleet.RoleOperatorAPI) {
		d.checkPair("operator_api.tls", operators.Certificate, func(logger *slog.Logger) (*server.Certificates, error) {
			return server.LoadCertificates(server.ForOperators, operators.Certificate, operators.Key, "", logger)
		})
	}
}

// checkPair checks a configured certificate with its key, unless a fault of one of their files is
// recorded already.
func (d *document) checkPair(section, certificate string, open func(*slog.Logger) (*server.Certificates, error)) {
	key := section + ".certificate"
	others := []string{section + ".key", section + ".ca_certificate", "initializer.endpoint_ca"}
	if certificate == "" || d.reported(key) || slices.ContainsFunc(others, d.reported) {
		return
	}
	certificates, err := open(slog.New(slog.DiscardHandler))
	if err != nil {
		d.fileFault(key, err)
	} else if fault := cmp.Or(certificates.Fault(time.Now()), certificates.Warning(time.Now())); fault != "" {
		d.keyFault(key, "%s: %s", certificate, fault)
	}
}

// checkHost checks that a name can stand in a certificate, which is in ASCII, as DNS is.
func (d *document) checkHost(key, name string) {
	if strings.ContainsFunc(name, func(r rune) bool { return r > unicode.MaxASCII }) {
		d.keyFault(key, "must be in ASCII, as DNS has it (xn--…), not %q", name)
	}
}
