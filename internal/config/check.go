package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider/builtin"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/token"
)

// checkWithin is check, unless that takes longer than the limit, because a file does not answer:
// nobody comes back who looks at one of these.
func (d *document) checkWithin(c Config, limit, blame time.Duration) {
	checked := *d
	checked.faults = slices.Clone(d.faults)
	_, late := secret.Within(limit, func() (struct{}, error) {
		checked.check(c)
		if c.Has(fleet.RoleOperatorAPI) { // a start reads it next, and tells what is wrong with it
			_ = secret.Check(c.OperatorAPI.TokensFile)
		}
		if c.Database.URL == "" { // a start opens it
			secret.Touch(filepath.Dir(c.Database.Path))
		}
		return struct{}{}, nil
	})
	if late == nil {
		d.faults = checked.faults
		return
	}
	d.blame(c, limit, blame)
}

// blame records which files do not answer within a limit, where checking them took too long.
func (d *document) blame(c Config, tooLong, limit time.Duration) {
	before := len(d.faults)
	files := c.fileKeys()
	if c.Database.URL != "" {
		for _, path := range postgres.Files(c.Database.URL) {
			files = append(files, fileKey{key: "database.url", path: &path})
		}
	}
	hang := make([]error, len(files))
	var asked sync.WaitGroup
	for i, file := range files {
		path := *file.path
		if path == "" {
			continue
		}
		if file.key == "database.path" {
			path = filepath.Dir(path) // who closes a database that is open here ends its locks
		}
		asked.Go(func() { hang[i] = secret.Answers(limit, path) })
	}
	asked.Wait()
	for i, err := range hang {
		if err != nil {
			d.fileFault(files[i].key, err)
		}
	}
	if len(d.faults) == before {
		d.faultAt(place{}, "", "checking the configuration took longer than %s, and each file that it names answers now", tooLong)
		d.faults[before].Passes = true
	}
}

// check records the faults of a decoded configuration. Components check the values of their
// sections; check adds what concerns several sections, and files.
func (d *document) check(c Config) {
	d.checkGeneral(c)
	d.checkDatabase(c.Database)
	d.checkAgentAPI(c)
	d.checkOperatorAPI(c)
	d.checkOwnKeys(c)
	d.checkKeys(c)
	if c.Session.Lease < shepherd.LeastSessionLease {
		d.keyFault("session.lease", "must be at least %s, not %s", shepherd.LeastSessionLease, c.Session.Lease)
	}
	for _, loop := range c.eachLoop() {
		d.faultsOf(loop.key, loop.config.Validate())
		if c.DrainTimeout > 0 && loop.config.Grace > c.DrainTimeout/2 {
			d.keyFault(loop.key+".grace", "must be at most half of drain_timeout (%s), not %s", c.DrainTimeout, loop.config.Grace)
		}
	}
	if d.mayHave(c, fleet.RoleInitializer) {
		d.checkInitializer(c)
	}
	d.faultsOf("recoverer", c.Recoverer.Validate())
	d.faultsOf("operations", c.Operations.Validate())
	d.faultsOf("prober", c.Prober.Validate())
	d.faultsOf("janitor", c.Janitor.Validate())
	d.faultsOf("", c.Policy.Validate())
	d.faultsOf("", shepherd.RequirePositive("drain_timeout", c.DrainTimeout))
	d.checkImages(c.Images)
	first, sources := map[string]int{}, map[string]int{}
	for i, p := range c.Providers {
		section := fmt.Sprintf("providers[%d]", i)
		if j, twice := first[p.Name]; twice && p.Name != "" {
			d.keyFault(section+".name", "%q is the name of providers[%d] too: names must differ", p.Name, j)
		}
		first[p.Name] = i
		d.checkProvider(section, p, c.Catalogue())
		d.checkSource(section, i, p, sources)
	}
}

// checkSource checks that no provider before this one has the same list of hosts, or the same
// project of an API. first has which one named it first.
func (d *document) checkSource(section string, number int, p Provider, first map[string]int) {
	kind, err := builtin.Find(p.Kind)
	if err != nil {
		return // reported
	}
	key, source := kind.Section(p.Sections).Source()
	if source == "" {
		return
	}
	source = p.Kind + " " + source
	j, twice := first[source]
	switch key = join(join(section, p.Kind), key); {
	case !twice:
		first[source] = number
	case kind.IsList:
		d.keyFault(key, "is the list of providers[%d] too: a host has one provider, so put the hosts of each into a list of its own", j)
	default:
		d.keyFault(key, "is that of providers[%d] too, at the same api_url: a machine has one provider, so give each a project of its own, "+
			"or remove the one that has no machines", j)
	}
}

// checkImages checks the catalogue.
func (d *document) checkImages(images []Image) {
	first := map[string]int{}
	for i, image := range images {
		section := fmt.Sprintf("images[%d]", i)
		if _, err := fleet.ParseImageName(image.Name); err != nil {
			d.keyFault(section+".name", "%s", err)
		} else if j, twice := first[image.Name]; twice {
			d.keyFault(section+".name", "%q is the name of images[%d] too: names must differ", image.Name, j)
		}
		first[image.Name] = i
		for _, f := range image.image().Validate() {
			d.keyFault(section+"."+f.Field, "%s", f.Problem)
		}
	}
}

// keyFault records a fault of a key, unless it has one already. The format continues the key.
func (d *document) keyFault(key, format string, args ...any) {
	if !d.reported(key) {
		d.faultAt(d.nearest(key), key, format, args...)
	}
}

// fileFault records what is wrong with the file that a key names, unless the key has a fault
// already.
func (d *document) fileFault(key string, err error) {
	if !d.reported(key) {
		d.fileFaultAt(d.nearest(key), key, err)
	}
}

func (d *document) fileFaultAt(at place, key string, err error) {
	d.faultAt(at, key, "%s", err)
	d.faults[len(d.faults)-1].Passes = secret.Passes(err)
}

// wrongDir says why a directory cannot be that of a control plane; "": it can.
func wrongDir(dir string) string {
	if dir == "" {
		return "must be set to a directory for database, certificates and keys"
	}
	if info, err := os.Stat(dir); err == nil && secret.Shared(dir, info) {
		return dir + " is a directory that all share: name one of its own in it"
	}
	return ""
}

func (d *document) checkGeneral(c Config) {
	if fault := wrongDir(c.Dir); fault != "" {
		d.keyFault("dir", "%s", fault)
	}
	if len(c.Roles) == 0 {
		d.keyFault("roles", "must not be empty: leave it out for all roles")
	}
	for i, r := range c.Roles {
		if !slices.Contains(fleet.Roles(), r) {
			d.keyFault(fmt.Sprintf("roles[%d]", i), "%q is no role: the roles are %s", r, list(fleet.Roles()))
		}
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		d.keyFault("log.level", "must be debug, info, warn or error, not %q", c.Log.Level)
	}
	if !slices.Contains([]string{"auto", "text", "json"}, c.Log.Format) {
		d.keyFault("log.format", "must be auto, text or json, not %q", c.Log.Format)
	}
}

// mayHave reports whether the process has a role, as far as can be told: a list of roles with a
// fault may mean any.
func (d *document) mayHave(c Config, role fleet.Role) bool {
	return c.Has(role) || slices.ContainsFunc(d.faults, func(f Fault) bool { return strings.HasPrefix(f.Key, "roles") })
}

// checkAgentAPI checks the section also where only the initializer runs, which tells agents where
// the agent API is and how to verify it.
func (d *document) checkAgentAPI(c Config) {
	if !d.mayHave(c, fleet.RoleAgentAPI) && !d.mayHave(c, fleet.RoleInitializer) {
		return
	}
	general := c.AgentAPI
	general.TLS = server.CertificateConfig{} // it is checked below, where its faults get the right key
	d.faultsOf("agent_api", general.Validate())
	d.faultsOf("agent_api.tls", c.AgentAPI.TLS.Validate())
	if host, port, err := net.SplitHostPort(c.AgentAPI.Endpoint); err == nil {
		if ip := net.ParseIP(host); port == "0" || ip != nil && ip.IsUnspecified() {
			d.keyFault("agent_api.endpoint", "must be an address that machines can reach, not %q", c.AgentAPI.Endpoint)
		}
	}
	if d.mayHave(c, fleet.RoleAgentAPI) || !d.isSet("initializer.endpoint") {
		d.checkReach("agent_api.endpoint", c.AgentAPI.Endpoint, c.Providers)
	}
	d.checkHost("agent_api.endpoint", c.AgentAPI.Endpoint)
	d.checkFile("agent_api.tls.certificate", c.AgentAPI.TLS.Certificate)
	d.checkSecret("agent_api.tls.key", c.AgentAPI.TLS.Key)
	authority := "agent_api.tls.ca_certificate"
	if !d.isSet(authority) {
		authority = "initializer.endpoint_ca" // which takes its place
	}
	d.checkAuthority(authority, c.AgentAPI.TLS.CACertificate)
}

// checkReach checks that an endpoint which machines are told is not this host alone where a
// provider has other machines. Each of these would call itself, and an agent in memory that is
// admitted nowhere restarts its host.
func (d *document) checkReach(key, endpoint string, providers []Provider) {
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil || !secret.StaysHere(host) {
		return
	}
	for i, p := range providers {
		kind, err := builtin.Find(p.Kind)
		if err != nil {
			continue // reported
		}
		if elsewhere := kind.Section(p.Sections).Elsewhere(); elsewhere != "" {
			d.keyFault(key, "must be an address that machines can reach, not %q, where each machine finds itself: providers[%d] has %s", endpoint, i, elsewhere)
			return
		}
	}
}

// checkInitializer does not check an endpoint that comes from the agent API's section, which was
// checked there.
func (d *document) checkInitializer(c Config) {
	i := c.Initializer
	if !d.isSet("initializer.endpoint") {
		i.Endpoint = "checked.example:1"
	}
	d.faultsOf("initializer", i.Validate())
	if d.isSet("initializer.endpoint") {
		d.checkHost("initializer.endpoint", c.Initializer.Endpoint)
		d.checkReach("initializer.endpoint", c.Initializer.Endpoint, c.Providers)
	}
	d.checkFile("initializer.agent_executable", i.AgentExecutable)
	for n, executable := range i.OtherAgentExecutables {
		d.checkFile(fmt.Sprintf("initializer.other_agent_executables[%d]", n), executable)
	}
	d.checkAuthority("initializer.endpoint_ca", i.EndpointCA)
}

// maximumSocketPath is the kernel's limit for the path of a Unix socket, without its terminating
// zero.
const maximumSocketPath = 107

// checkOperatorAPI checks the section where the process may have the operator API: the others need
// none of its files.
func (d *document) checkOperatorAPI(c Config) {
	if !d.mayHave(c, fleet.RoleOperatorAPI) {
		return
	}
	if c.OperatorAPI.Listen != "" {
		d.checkListener("operator_api.listen", c.OperatorAPI.Listen)
		d.checkTokens(c.OperatorAPI)
	}
	d.faultsOf("operator_api.tls", server.CertificateConfig{Certificate: c.OperatorAPI.TLS.Certificate, Key: c.OperatorAPI.TLS.Key}.Validate())
	d.checkFile("operator_api.tls.certificate", c.OperatorAPI.TLS.Certificate)
	d.checkSecret("operator_api.tls.key", c.OperatorAPI.TLS.Key)
	for i, name := range c.OperatorAPI.Names {
		if name == "" || strings.ContainsAny(name, ":/ \t\n") && net.ParseIP(name) == nil {
			d.keyFault(fmt.Sprintf("operator_api.names[%d]", i), "must be a name or an IP address, without a port, not %q", name)
		}
		if c.OperatorAPI.TLS.Certificate == "" && c.OperatorAPI.Listen != "" {
			d.checkHost(fmt.Sprintf("operator_api.names[%d]", i), name)
		}
	}
	if len(c.OperatorAPI.Socket) > maximumSocketPath {
		d.keyFault("operator_api.socket", "has %d characters, and a socket's path can have %d: use a shorter one",
			len(c.OperatorAPI.Socket), maximumSocketPath)
	}
}

// checkOwnKeys checks the SSH key that is named, and the keys that a start makes in dir, as far as
// they are there already and will be read.
func (d *document) checkOwnKeys(c Config) {
	var files []string
	if d.isSet("ssh.key_file") {
		d.checkSecret("ssh.key_file", c.SSH.KeyFile)
	} else {
		files = append(files, c.SSH.KeyFile)
	}
	if c.AgentAPI.TLS.Certificate == "" && (c.Has(fleet.RoleAgentAPI) || c.Has(fleet.RoleInitializer) && c.Initializer.EndpointCA == "") {
		files = append(files, server.ForAgents.KeyFiles(c.Dir)...)
	}
	if c.OperatorAPI.TLS.Certificate == "" && c.OperatorAPI.Listen != "" && c.Has(fleet.RoleOperatorAPI) {
		files = append(files, server.ForOperators.KeyFiles(c.Dir)...)
	}
	for _, path := range files {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := secret.Check(path); err != nil {
			d.fileFaultAt(d.nearest("dir"), "dir", err)
		}
	}
}

// checkTokens checks the file of tokens where somebody asks for contents. Where other hosts can
// call there must be one that counts: whoever opened the address to them expects that somebody can.
func (d *document) checkTokens(o OperatorAPI) {
	if !d.sources.Contents {
		return
	}
	all, err := token.Read(o.TokensFile)
	if err != nil {
		d.fileFault("operator_api.tokens_file", err)
		return
	}
	now := time.Now()
	if o.Exposed() && !slices.ContainsFunc(all, func(t token.Token) bool { return !t.Expired(now) }) {
		d.keyFault("operator_api.listen", "%s is reached from other hosts, and there is no token that counts: make one with `ironherd token create NAME --role ROLE`, "+
			"or listen on 127.0.0.1", o.Listen)
	}
}

func (d *document) checkProvider(section string, p Provider, catalogue []fleet.Image) {
	if p.Name == "" {
		d.keyFault(section+".name", "must be set: it names this provider in the database and to people")
	} else if _, err := fleet.ParseProviderName(p.Name); err != nil {
		d.keyFault(section+".name", "%s", err)
	}
	d.checkKind(section, p)
	d.faultsOf(section, p.Takeover.Validate())
	d.faultsOf(section+".provisioner", p.Provisioner.Validate())
	d.faultsOf(section+".updater", p.Updater.Validate())
	if p.Install != nil {
		d.checkInstall(section+".install", *p.Install, catalogue)
	}
}

// checkKind checks the section of the provider's kind, and that no other kind has one. Where the
// kind is not known, it checks the sections that are there.
func (d *document) checkKind(section string, p Provider) {
	own, err := builtin.Find(p.Kind)
	if err != nil {
		d.keyFault(section+".kind", "%s", err)
	}
	for _, kind := range builtin.Kinds() {
		key := join(section, kind.Name)
		switch {
		case err != nil && !d.isSet(key):
			continue // it may be of another kind
		case err == nil && kind.Name != own.Name:
			if d.isSet(key) {
				d.keyFault(key, "is for providers of kind %s, and this one is of kind %s: remove it", kind.Name, own.Name)
			}
			continue
		}
		d.faultsOf(key, kind.Section(p.Sections).Validate())
		for _, file := range kind.Files(&p.Sections) {
			d.checkFileBy(join(key, file.Key), *file.Path, file.Check)
			d.checkContent(join(key, file.Key), *file.Path, file.CheckContent)
		}
	}
}

func (d *document) checkInstall(section string, i Install, catalogue []fleet.Image) {
	switch image, err := i.image(catalogue); {
	case err != nil:
		d.keyFault(section+".image", "must be the name of one of images, not %q", i.Image)
	case i.Image != "" && (i.URL != "" || i.Digest != "" || i.FileDigest != "" || i.Compression != "" || i.Size != 0 || i.Architecture != ""):
		d.keyFault(section+".image", "names an image, so url, digest, file_digest, compression, size and architecture must be left out")
	case i.Image == "":
		for _, f := range image.Validate() {
			d.keyFault(section+"."+f.Field, "%s", f.Problem)
		}
	}
	for _, f := range i.RootDisk.Validate() {
		d.keyFault(section+".root_disk."+f.Field, "%s", f.Problem)
	}
	if _, err := i.readFirstBootData(); err != nil {
		d.faultsOf(section, err)
	}
	if _, err := i.seenUp(); err != nil {
		d.faultsOf(section, err)
	}
}

// checkListener checks that an address is host:port. The host may be empty (all addresses), and the
// port may be 0 (any free one).
func (d *document) checkListener(key, address string) {
	_, port, err := net.SplitHostPort(address)
	if _, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil {
		d.keyFault(key, "must be host:port, such as 127.0.0.1:7480, not %q", address)
	}
}

// checkSecret checks a file that others must not be able to read, if one is named.
func (d *document) checkSecret(key, path string) { d.checkFileBy(key, path, secret.Check) }

// checkAuthority checks a file of certificates that agents are given, if one is named. What is in
// it is checked where somebody asks for that: the start of what reads it refuses the same.
func (d *document) checkAuthority(key, path string) {
	d.checkFile(key, path)
	if d.sources.Contents && path != "" && !d.reported(key) {
		d.checkFileBy(key, path, secret.CheckAuthority)
	}
}

// checkFileBy records what check says of a file, if one is named. A nil check: it must be readable.
func (d *document) checkFileBy(key, path string, check func(string) error) {
	switch {
	case check == nil:
		d.checkFile(key, path)
	case path != "":
		if err := check(path); err != nil {
			d.fileFault(key, err)
		}
	}
}

// checkContent records what is wrong with the content of a file that can be read, where somebody
// asks for it.
func (d *document) checkContent(key, path string, check func(string) error) {
	if !d.sources.Contents || check == nil || path == "" || d.reported(key) {
		return
	}
	for _, fault := range fleet.Split(check(path)) {
		d.faultAt(d.nearest(key), key, "%s: %s", path, fault)
	}
}

// checkFile checks that a file can be opened, if one is named.
func (d *document) checkFile(key, path string) {
	if path == "" {
		return
	}
	file, err := os.Open(path)
	if err != nil {
		d.fileFault(key, secret.Unreadable(path, err))
		return
	}
	info, err := file.Stat()
	_ = file.Close() // only read
	if err == nil && info.IsDir() {
		d.keyFault(key, "%s is a directory, and a file is expected", path)
	}
}

func list[T ~string](all []T) string {
	names := make([]string, len(all))
	for i, v := range all {
		names[i] = string(v)
	}
	return enumerate(names)
}
