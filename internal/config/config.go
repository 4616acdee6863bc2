package config

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider/builtin"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/internal/server/agentapi"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/shepherd/janitor"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/prober"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/recoverer"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
)

// Config is a whole control plane's configuration.
type Config struct {
	// Dir is the directory of database, certificates, SSH key and socket. Its mode is 0700; it is made
	// when it is not there. The packaged service may write to the default alone: for another one, or a
	// database.path outside of it, add ReadWritePaths= to its unit.
	Dir string `yaml:"dir"`
	// Roles are what this process does. Several processes may share the work.
	Roles []fleet.Role `yaml:"roles"`
	// Log says what is logged to standard error.
	Log Log `yaml:"log"`
	// Database is where the Bare Metal Database is. With an address alone, the section may be written
	// as `database: postgres://…` or `database: sqlite:…`.
	Database Database `yaml:"database"`
	// AgentAPI is where agents call.
	AgentAPI agentapi.Config `yaml:"agent_api"`
	// OperatorAPI is where people and their programs call. The page, metrics and health are on the
	// same listener.
	OperatorAPI OperatorAPI `yaml:"operator_api"`
	// SSH is how machines are reached.
	SSH SSH `yaml:"ssh"`
	// Session says how long a loop may keep work without a proof of life.
	Session Session `yaml:"session"`
	// Loops says how eagerly each loop works.
	Loops Loops `yaml:"loops"`
	// Initializer says how agents are started. Unless they are set, endpoint and endpoint_ca are those
	// of the agent API, and agent_executable is the agent beside the program.
	Initializer initializer.Config `yaml:"initializer"`
	// Recoverer says how machines that are not heard of are repaired. When, and how far, is policy
	// (recovery_…, suspect_…).
	Recoverer recoverer.Config `yaml:"recoverer"`
	// Operations says how what people ask for is carried out at the providers.
	Operations operations.Config `yaml:"operations"`
	// Prober says how installed systems are asked whether they are up. When is policy (probe_interval,
	// watch_interval, unreachable_after).
	Prober prober.Config `yaml:"prober"`
	// Janitor says how often the database is cleaned up, and what is kept.
	Janitor janitor.Config `yaml:"janitor"`
	// Policy becomes the fleet's policy when it differs from the newest one in the database.
	Policy fleet.Policy `yaml:"policy"`
	// Images are the operating systems that can be asked for by name.
	Images []Image `yaml:"images"`
	// Providers are where machines come from.
	Providers []Provider `yaml:"providers"`
	// DrainTimeout bounds an orderly stop.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
}

// Log says what is logged, and how.
type Log struct {
	// Level is debug, info, warn or error.
	Level string `yaml:"level"`
	// Format is text (for people), json, or auto: text when standard error is a terminal.
	Format string `yaml:"format"`
}

// OperatorAPI is the listener for people.
type OperatorAPI struct {
	// Listen is host:port, for callers with a token, over TLS; empty: only the socket. On an address
	// that other hosts reach, `ironherd config check` wants a token that counts.
	Listen string `yaml:"listen"`
	// Names are names and IP addresses by which callers reach it. The certificate that is made here
	// has them besides localhost, this host's name and the address to listen on.
	Names []string `yaml:"names"`
	// TLS is the certificate. Default: one is made, with an authority of its own, whose certificate is
	// in operator-ca.crt in dir: give that to callers.
	TLS OperatorTLS `yaml:"tls"`
	// Socket is a Unix socket with all rights for whoever can open it (mode 0600). Default:
	// ironherd.sock in dir.
	Socket string `yaml:"socket"`
	// TokensFile has the tokens of callers over TCP, hashed; `ironherd token` makes and revokes them.
	// Default: operator-tokens.yaml in dir. Without tokens, nothing but health is served over TCP.
	TokensFile string `yaml:"tokens_file"`
}

// Exposed reports whether other hosts can call.
func (o OperatorAPI) Exposed() bool {
	host, _, err := net.SplitHostPort(o.Listen)
	return err == nil && !secret.StaysHere(host)
}

// Hosts returns the names and addresses that a certificate must carry which is made on a host of
// that name.
func (o OperatorAPI) Hosts(hostname string) []string {
	hosts := []string{"localhost", "127.0.0.1", "::1", hostname}
	if host, _, err := net.SplitHostPort(o.Listen); err == nil {
		if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
			hosts = append(hosts, host)
		}
	}
	hosts = append(hosts, o.Names...)
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// OperatorTLS names the certificate of the operator API.
type OperatorTLS struct {
	// Certificate and Key are PEM files: the chain, leaf first, and its private key.
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
}

// SSH is how machines are reached.
type SSH struct {
	// KeyFile is the private key, in OpenSSH or PEM form, without passphrase. Default: ssh_key in dir,
	// made on first start.
	KeyFile string `yaml:"key_file"`
}

// Session is how a loop proves to the database that it lives. Its work is free for others when it
// does not.
type Session struct {
	// Lease is how long a session lives without an extension; at least a second.
	Lease time.Duration `yaml:"lease"`
}

// Loops is how eagerly each loop works.
type Loops struct {
	// Provisioner creates machines, a provider at a time.
	Provisioner shepherd.Config `yaml:"provisioner"`
	// Initializer starts agents, a machine at a time.
	Initializer shepherd.Config `yaml:"initializer"`
	// Updater refreshes the facts of machines, a provider at a time.
	Updater shepherd.Config `yaml:"updater"`
	// Recoverer repairs machines, and Operations does what people ask for, a machine at a time.
	Recoverer  shepherd.Config `yaml:"recoverer"`
	Operations shepherd.Config `yaml:"operations"`
	// Prober asks installed systems whether they are up, a machine at a time. Of those that are gone,
	// each takes one of its slots until the time of the probe is over.
	Prober shepherd.Config `yaml:"prober"`
}

// defaultLoops returns the documented defaults.
func defaultLoops() Loops {
	loop := shepherd.DefaultConfig()
	return Loops{Provisioner: loop, Initializer: loop, Updater: loop, Recoverer: loop, Operations: loop, Prober: prober.DefaultLoop()}
}

// Provider is one place where machines come from.
type Provider struct {
	// Name of the instance; it stays with the machines for ever. Required.
	Name string `yaml:"name"`
	// Kind of provider; the section of that name configures it. Required.
	Kind string `yaml:"kind"`
	// Sections has a section for each kind, under the kind's name.
	builtin.Sections `yaml:",inline"`
	// TrustFirstUse accepts any SSH host key from a machine of which none is known, and pins it.
	TrustFirstUse bool `yaml:"trust_first_use"`
	// Takeover is how agents are put in charge: in-place (a process of the operating system that is
	// there) or kexec (the agent takes its place, in memory, so that its disk can be written). An
	// agent in place that is to install takes the machine over by kexec first.
	Takeover initializer.Takeover `yaml:"takeover"`
	// Provisioner says how machines are created here, and Updater how their facts are refreshed.
	Provisioner provisioner.Config `yaml:"provisioner"`
	Updater     updater.Config     `yaml:"updater"`
	// Install is asked for on every machine that is created here, as it is configured when the machine
	// is there. Default: none is.
	Install *Install `yaml:"install"`
}

func (p *Provider) setDefaults() {
	*p = Provider{
		Sections: builtin.Defaults(), Takeover: initializer.TakeoverInPlace, Provisioner: provisioner.DefaultConfig(), Updater: updater.DefaultConfig(),
	}
}

// NewProvider returns a provider with the defaults of its sections.
func NewProvider(name, kind string) Provider {
	var p Provider
	p.setDefaults()
	p.Name, p.Kind = name, kind
	p.setKindDefaults(func(string) bool { return false })
	return p
}

// Image is an operating system with a name, such as `ironherd image build` makes them.
type Image struct {
	// Name to ask for it by, such as debian-13. Required.
	Name string `yaml:"name"`
	// URL of the image, http, https or oci, without user and password. Required.
	URL string `yaml:"url"`
	// Digest of the raw image: sha256: and 64 hexadecimal digits. It may be left out where file_digest
	// is given, and with an oci URL.
	Digest string `yaml:"digest"`
	// FileDigest is the digest of the file as it is served: sha256: and 64 hexadecimal digits, or
	// sha512: and 128. All that are given must match.
	FileDigest string `yaml:"file_digest"`
	// Compression is none, zstd, gzip, xz, or layer: as the manifest of an oci URL says. Default: by
	// the end of the URL; layer for an oci one.
	Compression fleet.Compression `yaml:"compression"`
	// Size of the raw image in bytes; 0: not known. An image of another size fails the install, no
	// smaller disk is chosen, and progress is told in percent.
	Size int64 `yaml:"size"`
	// FirstBoot is nocloud for systems with cloud-init, which get their first-boot data as NoCloud,
	// with the machine's name and its static addresses; nocloud-user-data: without name and
	// addresses. Default: they find it in the first-boot area.
	FirstBoot fleet.FirstBootForm `yaml:"first_boot"`
	// Architecture that the image is for, amd64 or arm64: no machine of another one is written.
	// Default: it is not known, and an image for another one is written as any other is.
	Architecture fleet.Architecture `yaml:"architecture"`
}

func (i Image) image() fleet.Image {
	image := fleet.Image{
		Name: i.Name, URL: i.URL, Digest: i.Digest, FileDigest: i.FileDigest, Compression: i.Compression, Size: i.Size, FirstBoot: i.FirstBoot,
		Architecture: i.Architecture,
	}
	if image.Compression == "" {
		image.Compression = fleet.CompressionOf(i.URL)
	}
	return image
}

// Catalogue returns the images that have a name.
func (c Config) Catalogue() []fleet.Image {
	images := make([]fleet.Image, len(c.Images))
	for i, image := range c.Images {
		images[i] = image.image()
	}
	return images
}

// setKindDefaults sets what has other defaults for a list of hosts, unless the key is there. A key
// with nothing in it has the default of the other kinds. Keys are relative to the section
// provisioner.
func (p *Provider) setKindDefaults(isThere func(key string) bool) {
	kind, err := builtin.Find(p.Kind)
	if err != nil || !kind.IsList {
		return
	}
	defaults := provisioner.ListConfig()
	if !isThere("max_machines") {
		p.Provisioner.MaxMachines = defaults.MaxMachines
	}
	if !isThere("chunk_size") {
		p.Provisioner.ChunkSize = defaults.ChunkSize
	}
	if !isThere("create_rate") {
		p.Provisioner.CreateRate = defaults.CreateRate
	}
}

const (
	// SystemDir is the default directory of a control plane that runs as root.
	SystemDir = "/var/lib/ironherd"
	// SocketName is the default name of the operators' socket, in the directory.
	SocketName = "ironherd.sock"
	// AgentName is the name of the agent's executable.
	AgentName = "ironherd-agent"
	// OperatorCAName is the name of the file, in the directory, that callers verify the operator API
	// by. It has no key.
	OperatorCAName = "operator-ca.crt"
	tokensName     = "operator-tokens.yaml"
	databaseName   = "ironherd.db"
	sshKeyName     = "ssh_key"
)

// Default returns the documented defaults.
func Default() Config {
	return Config{
		Dir:          SystemDir,
		Roles:        fleet.Roles(),
		Log:          Log{Level: "info", Format: "auto"},
		Database:     Database{Isolation: ReadCommitted, Connections: 16, Notify: true},
		AgentAPI:     agentapi.DefaultConfig(),
		OperatorAPI:  OperatorAPI{Listen: "127.0.0.1:7480"},
		Session:      Session{Lease: shepherd.DefaultSessionLease},
		Loops:        defaultLoops(),
		Initializer:  initializer.DefaultConfig(),
		Recoverer:    recoverer.DefaultConfig(),
		Operations:   operations.DefaultConfig(),
		Prober:       prober.DefaultConfig(),
		Janitor:      janitor.DefaultConfig(),
		Policy:       fleet.DefaultPolicy(),
		DrainTimeout: 30 * time.Second,
	}
}

// Has reports whether the process has a role.
func (c Config) Has(role fleet.Role) bool { return slices.Contains(c.Roles, role) }

// GivenToAgents is the file with the certificates that this process gives to agents, so that they
// verify the agent API by them; "": it starts none.
func (c Config) GivenToAgents() string {
	if !c.Has(fleet.RoleInitializer) {
		return ""
	}
	return c.Initializer.EndpointCA
}

// UserDir is the directory of a control plane that does not run as root: $XDG_STATE_HOME/ironherd,
// else ~/.local/state/ironherd; empty when the environment names neither.
func UserDir(environ []string) string {
	home, state := "", ""
	for _, entry := range environ {
		if v, ok := strings.CutPrefix(entry, "HOME="); ok {
			home = v
		}
		if v, ok := strings.CutPrefix(entry, "XDG_STATE_HOME="); ok {
			state = v
		}
	}
	switch {
	case filepath.IsAbs(state):
		return filepath.Join(state, "ironherd")
	case filepath.IsAbs(home):
		return filepath.Join(home, ".local", "state", "ironherd")
	}
	return ""
}

// Resolve makes paths absolute, relative to base, and fills in those that depend on dir.
func (c *Config) Resolve(base string) {
	if absolute, err := filepath.Abs(base); err == nil {
		base = absolute
	}
	for _, file := range c.fileKeys() {
		if *file.path != "" && !filepath.IsAbs(*file.path) {
			*file.path = filepath.Join(base, *file.path)
		}
	}
	for _, own := range c.ownPaths() {
		if *own.path == "" {
			*own.path = filepath.Join(c.Dir, own.name)
		}
	}
	if c.Initializer.Endpoint == "" {
		c.Initializer.Endpoint = c.AgentAPI.Endpoint
	}
	switch tls := &c.AgentAPI.TLS; {
	case c.Initializer.EndpointCA == "":
		c.Initializer.EndpointCA = tls.CACertificate
	case tls.CACertificate == "" && tls.Certificate != "" && c.Initializer.Endpoint == c.AgentAPI.Endpoint:
		// Agents and installed systems call the same endpoint, so both verify it alike.
		tls.CACertificate = c.Initializer.EndpointCA
	}
}

// ownPath is a file that is in dir unless the configuration says otherwise.
type ownPath struct {
	path *string
	name string
}

func (c *Config) ownPaths() []ownPath {
	return []ownPath{
		{&c.Database.Path, databaseName},
		{&c.OperatorAPI.Socket, SocketName},
		{&c.OperatorAPI.TokensFile, tokensName},
		{&c.SSH.KeyFile, sshKeyName},
	}
}

// fileKey is a key whose value is a file name.
type fileKey struct {
	key  string
	path *string
}

// fileKeys lists every key whose value is a file name.
func (c *Config) fileKeys() []fileKey {
	keys := []fileKey{
		{"dir", &c.Dir},
		{"database.path", &c.Database.Path},
		{"database.password_file", &c.Database.PasswordFile},
		{"operator_api.socket", &c.OperatorAPI.Socket},
		{"operator_api.tokens_file", &c.OperatorAPI.TokensFile},
		{"operator_api.tls.certificate", &c.OperatorAPI.TLS.Certificate},
		{"operator_api.tls.key", &c.OperatorAPI.TLS.Key},
		{"ssh.key_file", &c.SSH.KeyFile},
		{"initializer.agent_executable", &c.Initializer.AgentExecutable},
		{"initializer.endpoint_ca", &c.Initializer.EndpointCA},
		{"agent_api.tls.certificate", &c.AgentAPI.TLS.Certificate},
		{"agent_api.tls.key", &c.AgentAPI.TLS.Key},
		{"agent_api.tls.ca_certificate", &c.AgentAPI.TLS.CACertificate},
	}
	for i := range c.Initializer.OtherAgentExecutables {
		keys = append(keys, fileKey{fmt.Sprintf("initializer.other_agent_executables[%d]", i), &c.Initializer.OtherAgentExecutables[i]})
	}
	for i := range c.Providers {
		p := &c.Providers[i]
		section := fmt.Sprintf("providers[%d]", i)
		for _, kind := range builtin.Kinds() {
			for _, file := range kind.Files(&p.Sections) {
				keys = append(keys, fileKey{join(join(section, kind.Name), file.Key), file.Path})
			}
		}
		if p.Install != nil {
			keys = append(keys, fileKey{join(section, "install.first_boot_data_file"), &p.Install.FirstBootDataFile},
				fileKey{join(section, "install.seen_up_ca_file"), &p.Install.SeenUpCAFile})
		}
	}
	return keys
}
