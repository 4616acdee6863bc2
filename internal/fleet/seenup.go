package fleet

import (
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// SeenBy is what shows that an installed system has come up.
type SeenBy string

// What shows it.
const (
	// SeenByUnit: a unit of the installed system calls the control plane: once, or again and again
	// where it is watched.
	SeenByUnit SeenBy = ""
	// SeenBySSH: the installed system answers SSH, with the host key that its install brought.
	SeenBySSH SeenBy = "ssh"
	// SeenByHTTP: the installed system answers a GET with a status from 200 to 399.
	SeenByHTTP SeenBy = "http"
)

// SeenUp is how an installed system is seen to have come up, and whether it is watched from then
// on. Its zero value is the unit.
type SeenUp struct {
	By SeenBy `json:"by,omitempty"`
	// URL to ask for, with SeenByHTTP. The connection always goes to the machine's own address, by the
	// URL's port: the host is only what the request and the certificate name. AddressPlaceholder, as
	// the whole host, stands for the address.
	URL string `json:"url,omitempty"`
	// CA are the certificates, in PEM form, that an https certificate must chain to; empty: the
	// public roots of the control plane.
	CA string `json:"ca,omitempty"`
	// Watch goes on after the system has come up: it is asked again and again, or its unit goes on
	// calling.
	Watch bool `json:"watch,omitempty"`
}

// AddressPlaceholder stands for the address of the machine in the URL of a probe.
const AddressPlaceholder = "{address}"

// Limits of what a probe may be asked with, in bytes.
const (
	maxProbeURL = 1024
	maxProbeCA  = 64 << 10
)

// ParseSeenUp returns what people write: "unit", "ssh", or an http or https URL. Validate judges
// it.
func ParseSeenUp(text string) SeenUp {
	switch text {
	case "", "unit":
		return SeenUp{}
	case "ssh":
		return SeenUp{By: SeenBySSH}
	}
	return SeenUp{By: SeenByHTTP, URL: text}
}

// String is what ParseSeenUp reads.
func (s SeenUp) String() string {
	switch s.By {
	case SeenByUnit:
		return "unit"
	case SeenByHTTP:
		return s.URL
	case SeenBySSH:
	}
	return string(s.By)
}

// Asks says in words what shows that the system is up: "SSH", the URL that is asked for, or "calls
// of its unit".
func (s SeenUp) Asks() string {
	switch s.By {
	case SeenBySSH:
		return "SSH"
	case SeenByUnit:
		return "calls of its unit"
	case SeenByHTTP:
	}
	return s.String()
}

// Validate returns every fault of it. The API and the CLI take it in, and both judge by this.
func (s SeenUp) Validate() []FieldFault {
	var f faults
	switch s.By {
	case SeenByHTTP:
		if problem := probeURLProblem(s.URL); problem != "" {
			f.add("seen_up", "%s", problem)
		}
	case SeenByUnit, SeenBySSH:
	default:
		f.add("seen_up", "must be unit, ssh, or an http or https URL, not %.80q", string(s.By))
	}
	switch {
	case s.CA == "":
	case s.By != SeenByHTTP || !strings.HasPrefix(s.URL, "https:"):
		f.add("ca", "is for an https URL alone")
	case len(s.CA) > maxProbeCA:
		f.add("ca", "must have at most %d bytes, not %d", maxProbeCA, len(s.CA))
	case !holdsCertificates(s.CA):
		f.add("ca", "must hold certificates in PEM form, and nothing else")
	}
	return f
}

// probeURLProblem says what is wrong with the URL without a word of it: what it holds may be
// secret.
func probeURLProblem(text string) string {
	u, err := url.Parse(strings.Replace(text, AddressPlaceholder, "address.invalid", 1))
	switch {
	case len(text) > maxProbeURL:
		return "must be a URL of at most " + strconv.Itoa(maxProbeURL) + " bytes"
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "must be unit, ssh, or an http or https URL with a host"
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "must not have a user, password, query or fragment in its URL, because everybody who may read can see it"
	}
	before, after, named := strings.Cut(text, AddressPlaceholder)
	if named && (!strings.EqualFold(before, u.Scheme+"://") || u.Hostname() != "address.invalid" || strings.Contains(after, AddressPlaceholder)) {
		return "must have " + AddressPlaceholder + " in the place of the whole host, and nowhere else: the address is filled in there alone"
	}
	if _, err := netip.ParseAddr(u.Hostname()); err == nil {
		return "must name the machine as " + AddressPlaceholder + ", or by a name: the connection goes to its own address, whatever the URL says"
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "must have a port from 1 to 65535 in its URL"
		}
	}
	return ""
}

func holdsCertificates(text string) bool { return len(certificatesOf(text)) > 0 }

// Authorities returns the certificates that an https URL is verified by; none: the public roots.
func (s SeenUp) Authorities() []*x509.Certificate { return certificatesOf(s.CA) }

// certificatesOf returns the certificates of a text in PEM form; none where it holds anything else.
func certificatesOf(text string) (all []*x509.Certificate) {
	rest := []byte(text)
	for strings.TrimSpace(string(rest)) != "" {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil
		}
		all = append(all, certificate)
	}
	return all
}

// Probe is what the newest probe of an installed system has found. Written by the prober, and by
// each call of the unit of a watched system, which is an answer.
type Probe struct {
	// Generation and Attempt of the install that was asked about.
	Generation InstallGeneration
	Attempt    int
	// At is when it was found.
	At time.Time
	// AnsweredAt is when the system last answered as it should; zero: never.
	AnsweredAt time.Time
	// UnansweredSince is when the first of the probes was made that have failed since; zero: the
	// newest one was answered.
	UnansweredSince time.Time
	// Detail says what the newest probe found, in one clause.
	Detail string
	// Epoch and Session of the work that has found it; zero where the unit has called.
	Epoch   Epoch
	Session SessionID
}

// Answered reports whether the newest probe was answered as it should be.
func (p Probe) Answered() bool { return p.UnansweredSince.IsZero() }
