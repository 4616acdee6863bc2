package server

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
)

// CertificateConfig names the certificate of the agent API. All empty: one is made, with an
// authority of its own.
type CertificateConfig struct {
	// Certificate and Key are PEM files: the chain, leaf first, and its private key.
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
	// CACertificate is a PEM file whose certificates, at most 32 KiB, agents and installed systems are
	// given to verify the endpoint by. Empty, with a certificate configured: the initializer's
	// endpoint_ca where its endpoint is this one, else the public roots.
	CACertificate string `yaml:"ca_certificate"`
}

// Validate reports every fault at once; each names its key and is of kind Invalid.
func (c CertificateConfig) Validate() error {
	var faults []error
	need := func(have, want, key, other string) {
		if have != "" && want == "" {
			faults = append(faults, fleet.Errorf(fleet.KindInvalid, "%s must be set, because %s is", key, other))
		}
	}
	need(c.Key, c.Certificate, "certificate", "key")
	need(c.Certificate, c.Key, "key", "certificate")
	if c.Certificate == "" && c.Key == "" {
		need(c.CACertificate, c.Certificate, "certificate", "ca_certificate")
	}
	return errors.Join(faults...)
}

// Open loads the configured certificate, or makes one under dir for the hosts. The first of these
// is the one that installed systems are told to call, the last the one that agents are. given names
// the file with the certificates that agents are given; "": those of CACertificate, or of the
// authority that is made.
func (c CertificateConfig) Open(dir string, hosts []string, given string, logger *slog.Logger) (*Certificates, error) {
	opened, err := c.open(dir, hosts, logger)
	if err == nil && given != "" && given != c.CACertificate {
		if opened.given, err = secret.ReadAuthority(given); err != nil {
			err = fmt.Errorf("read the certificates that agents are given: %w", err)
		}
	}
	if err != nil {
		return nil, err
	}
	return opened, nil
}

func (c CertificateConfig) open(dir string, hosts []string, logger *slog.Logger) (*Certificates, error) {
	if c.Certificate == "" {
		return OpenCertificates(ForAgents, dir, hosts, logger)
	}
	loaded, err := LoadCertificates(ForAgents, c.Certificate, c.Key, c.CACertificate, logger)
	if err == nil && len(hosts) > 0 {
		loaded.installed, loaded.told = hosts[0], hosts[len(hosts)-1]
	}
	return loaded, err
}

// RefusedBy says why agents that are given the certificates of a file refuse the certificate that a
// start makes under dir; "" when they do not, and when one of the files cannot be read. It makes
// nothing.
func RefusedBy(dir, given string) string {
	authority, err := secret.ReadAuthority(given)
	if err != nil {
		return ""
	}
	switch ours, err := readPair(ForAgents.KeyFiles(dir)[0]); {
	case errors.Is(err, os.ErrNotExist): // what a start makes is in no file yet
		return refusedHere
	case err == nil && verify(ours.tls(), authority, time.Now()) != nil:
		return refusedHere
	}
	return ""
}
