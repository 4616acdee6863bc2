package equinix

import (
	"errors"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/secret"
)

// Config says which project of which API to use, and how often to call it.
type Config struct {
	// APIURL is the base URL of the API, with or without a trailing slash. It is https, or http to
	// this host itself, because the token is sent there.
	APIURL string `yaml:"api_url"`
	// User names this integration to the API (X-Consumer-Token). It is no credential.
	User string `yaml:"user"`
	// TokenFile holds the API token and nothing else. It is read before each call, so that a token can
	// be rotated in place. Required.
	TokenFile string `yaml:"token_file"`
	// Project is the UUID of the project whose reservations are used. A project has one provider.
	// Required.
	Project string `yaml:"project"`
	// SSHKeyLabel is the label under which the public half of the SSH key (ssh.key_file) is kept in
	// the project. Required.
	SSHKeyLabel string `yaml:"ssh_key_label"`
	// SSHPublicKey is the public half of the key that machines are reached with, in authorized_keys
	// form. It is derived from the configured private key, not configured itself.
	SSHPublicKey string `yaml:"-"`
	// DevicePrefix starts the host name of every device that is created here. Required.
	DevicePrefix string `yaml:"device_prefix"`
	// OperatingSystem is the slug of the system that new devices boot first. Required.
	OperatingSystem string `yaml:"operating_system"`
	// InjectHostKey gives each new device an SSH host key of our making by cloud-config user data, so
	// that no key is believed on first use. False is for images that ignore user data: their devices
	// show keys of their own, which would be refused.
	InjectHostKey bool `yaml:"inject_host_key"`
	// Spacing is the least time from one call to the next, of all control planes that share the
	// database, and of all providers with the same token.
	Spacing time.Duration `yaml:"spacing"`
	// InFlight is how many calls may be under way at once.
	InFlight int `yaml:"in_flight"`
	// PageSize is how many rows of a list are asked for at once. The API may give fewer. A list that
	// fits on one page is read in one call, and as of one instant.
	PageSize int `yaml:"page_size"`
}

// DefaultConfig returns the documented defaults. Token file, project, key label, device prefix and
// operating system have none.
func DefaultConfig() Config {
	return Config{
		APIURL:   "https://api.equinix.com/metal/v1",
		User:     "ironherd",
		Spacing:  2 * time.Second,
		InFlight: 1,
		PageSize: 500,

		InjectHostKey: true,
	}
}

// maximumPageSize is the schema's limit for per_page.
const maximumPageSize = 1000

var (
	devicePrefix = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9-])?$`)
	slug         = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]*$`)
)

// Validate reports every fault at once; each names its key and is of kind Invalid.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, format, args...))
	}

	if problem := apiURLProblem(c.APIURL); problem != "" {
		fault("api_url must be %s", problem)
	}
	for _, required := range []struct{ key, value string }{
		{"token_file", c.TokenFile},
		{"project", c.Project},
		{"ssh_key_label", c.SSHKeyLabel},
		{"device_prefix", c.DevicePrefix},
		{"operating_system", c.OperatingSystem},
	} {
		switch {
		case strings.TrimSpace(required.value) == "":
			fault("%s must be set", required.key)
		case placeholder(required.value):
			fault("%s is still the placeholder %q: set it to a value of your own", required.key, required.value)
		}
	}
	if set(c.Project) && uuid.Validate(c.Project) != nil {
		fault("project must be the UUID of a project, not %q", c.Project)
	}
	if set(c.DevicePrefix) && !devicePrefix.MatchString(c.DevicePrefix) {
		fault("device_prefix must be 1 to 40 lower-case letters, digits and hyphens, no hyphen first, not %q", c.DevicePrefix)
	}
	if set(c.OperatingSystem) && !slug.MatchString(c.OperatingSystem) {
		fault("operating_system must be a slug such as debian_12, not %q", c.OperatingSystem)
	}
	if c.Spacing < 0 {
		fault("spacing must not be negative, not %s", c.Spacing)
	}
	if c.InFlight < 1 {
		fault("in_flight must be at least 1, not %d", c.InFlight)
	}
	if c.PageSize < 1 || c.PageSize > maximumPageSize {
		fault("page_size must be from 1 to %d, not %d", maximumPageSize, c.PageSize)
	}
	return errors.Join(faults...)
}

// Limits returns those of the calls. They count against the token, which is not known here.
func (c Config) Limits() provider.Limits {
	return provider.Limits{Spacing: c.Spacing, InFlight: c.InFlight}
}

// Account names what the calls count against, as far as can be told without reading the token: the
// same API and the same file.
func (c Config) Account() string { return host(c.APIURL) + " " + c.TokenFile }

// Source returns what names the project, the same for each spelling of it, and the key that does.
// Both are empty where none is named.
func (c Config) Source() (key, source string) {
	project, err := uuid.Parse(c.Project)
	u, bad := url.Parse(c.APIURL)
	if err != nil || bad != nil {
		return "", ""
	}
	host := strings.ToLower(u.Host)
	if port := u.Port(); port == "443" && u.Scheme == "https" || port == "80" && u.Scheme == "http" {
		host = strings.TrimSuffix(host, ":"+port)
	}
	return "project", host + strings.TrimRight(u.Path, "/") + " " + project.String()
}

// Identity returns the UUID of the project in its canonical form: the API may move, and the token
// be another one.
func (c Config) Identity() string {
	project, known := parseUUID(c.Project)
	if !known {
		return ""
	}
	return project.String()
}

func set(value string) bool { return strings.TrimSpace(value) != "" && !placeholder(value) }

// placeholder reports whether a value was left as an example has it.
func placeholder(value string) bool {
	value = strings.TrimSpace(value)
	if strings.ContainsAny(value, "<>") || strings.Contains(value, "${") {
		return true
	}
	switch strings.Trim(strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(value)), ".!") {
	case "changeme", "changethis", "fixme", "todo", "tbd", "xxx", "example", "placeholder", "replaceme", "yourprefix", "prefix":
		return true
	}
	return false
}

// Elsewhere says where the API is; empty: on this host, or it cannot be told.
func (c Config) Elsewhere() string {
	u, err := url.Parse(c.APIURL)
	if err != nil || u.Host == "" || secret.StaysHere(u.Hostname()) {
		return ""
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && ip.IsUnspecified() {
		return "" // calls to it stay here, too
	}
	return "its API at " + u.Host
}

func apiURLProblem(raw string) string {
	u, err := url.Parse(raw)
	switch {
	case raw == "":
		return "set"
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return "an http or https URL"
	case u.User != nil:
		return "without a user or password: the token belongs into token_file"
	case u.RawQuery != "" || u.Fragment != "":
		return "without a query or fragment"
	case u.Scheme == "http" && !secret.StaysHere(u.Hostname()):
		return "https: the token would be sent in the clear"
	}
	return ""
}
