package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/builtin"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/internal/telemetry"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/release"
)

// config is the configuration of the program.
type config struct {
	node       string
	etcd       etcd.Config
	layout     etcd.Layout
	kubeconfig string
	manifests  string
	force      bool
	maxPrune   int
	selection  builtin.Selection
	listen     string
	expose     string
	ttl        time.Duration
	settle     time.Duration
	fullPass   time.Duration
	build      release.Build
	log        telemetry.LogOptions
	// where says where keys that are missing can be set.
	where string
}

func defaults(hostname string) config {
	return config{
		node: strings.ToLower(hostname), layout: etcd.Layout{Root: etcd.DefaultRoot}, listen: "127.0.0.1:9479",
		ttl: reconciler.DefaultTTL, settle: reconciler.DefaultSettle, fullPass: reconciler.DefaultFullPass,
		build: release.Own(),
	}
}

// setting is one key of the configuration: KEY in the file, IRONHERD_RECONCILER_KEY in the
// environment, and --key, with hyphens, as a flag.
type setting struct {
	key, usage string
	set        func(c *config, value string) error
}

func (s setting) flag() string     { return strings.ReplaceAll(s.key, "_", "-") }
func (s setting) variable() string { return prefix + strings.ToUpper(s.key) }

const prefix = "IRONHERD_RECONCILER_"

// settings lists every key.
func settings() []setting {
	text := func(into func(*config) *string) func(*config, string) error {
		return func(c *config, value string) error {
			*into(c) = value
			return nil
		}
	}
	span := func(into func(*config) *time.Duration) func(*config, string) error {
		return func(c *config, value string) (err error) {
			if *into(c), err = time.ParseDuration(value); err != nil {
				return fmt.Errorf("must be a duration like 10s, not %q", value)
			}
			return nil
		}
	}
	yes := func(into func(*config) *bool) func(*config, string) error {
		return func(c *config, value string) (err error) {
			if *into(c), err = strconv.ParseBool(value); err != nil {
				return fmt.Errorf("must be true or false, not %q", value)
			}
			return nil
		}
	}
	version := func(into func(*config) *release.Release) func(*config, string) error {
		return func(c *config, value string) (err error) {
			*into(c), err = release.Parse(value)
			return err
		}
	}
	return []setting{
		{"node", "name of this node (default: the host's name)", text(func(c *config) *string { return &c.node })},
		{"etcd_endpoints", "client URLs of etcd's members, separated by commas", setEndpoints},
		{"etcd_ca", "PEM file with the certificate that etcd's are verified by", text(func(c *config) *string { return &c.etcd.CAFile })},
		{"etcd_cert", "PEM file with the client certificate for etcd", text(func(c *config) *string { return &c.etcd.CertFile })},
		{"etcd_key", "PEM file with the key of the client certificate", text(func(c *config) *string { return &c.etcd.KeyFile })},
		{"root", "path of the keys in etcd (default " + etcd.DefaultRoot + ")", text(func(c *config) *string { return &c.layout.Root })},
		{"kubeconfig", "kubeconfig file for this node's API server", text(func(c *config) *string { return &c.kubeconfig })},
		{"manifests", "directory of manifests that are kept beside the release's own", text(func(c *config) *string { return &c.manifests })},
		{"force_conflicts", "take fields over from other managers (default false)", yes(func(c *config) *bool { return &c.force })},
		{"max_prune", "most objects to delete at once because they are no longer in the manifests (default: any number that others agree to)", setMaxPrune},
		{"built_in", "parts of the release's own set to keep, separated by commas, or all, or none (default " +
			strings.Join(builtin.Default(), ",") + ")", setBuiltIn},
		{
			"default_storage_class", "storage class of ours to make the default while no other is: local or local-strict (default: none)",
			text(func(c *config) *string { return &c.selection.DefaultClass }),
		},
		{"storage_capacity", "have the scheduler ask for the capacity that the driver publishes (default false)", yes(func(c *config) *bool { return &c.selection.Capacity })},
		{"listen", "address of /metrics, /healthz, /readyz, /servez (default 127.0.0.1:9479)", text(func(c *config) *string { return &c.listen })},
		{"expose", "address at which expose lets clients reach the API server", text(func(c *config) *string { return &c.expose })},
		{"election_ttl", "after which a leader that is gone is replaced (default 10s)", span(func(c *config) *time.Duration { return &c.ttl })},
		{"settle", "wait of a new leader for the old one's last requests (default 5s)", span(func(c *config) *time.Duration { return &c.settle })},
		{"full_pass", "time between passes when nothing changes (default 30s)", span(func(c *config) *time.Duration { return &c.fullPass })},
		{"release", "release of this build; for tests", version(func(c *config) *release.Release { return &c.build.Release })},
		{"min_reconciler", "oldest base resources that our API server works with; for tests", version(func(c *config) *release.Release { return &c.build.MinReconciler })},
		{"min_api_server", "oldest API server that our base resources admit; for tests", version(func(c *config) *release.Release { return &c.build.MinAPIServer })},
		{"log_level", "debug, info, warn or error (default info)", text(func(c *config) *string { return &c.log.Level })},
		{"log_format", "auto, text or json (default auto)", text(func(c *config) *string { return &c.log.Format })},
	}
}

func setEndpoints(c *config, value string) error {
	c.etcd.Endpoints = nil
	for endpoint := range strings.SplitSeq(value, ",") {
		if endpoint = strings.TrimSpace(endpoint); endpoint != "" {
			c.etcd.Endpoints = append(c.etcd.Endpoints, endpoint)
		}
	}
	return nil
}

func setBuiltIn(c *config, value string) error {
	switch value {
	case "all":
		c.selection.Names = builtin.All()
		return nil
	case "none":
		c.selection.Names = []string{}
		return nil
	}
	c.selection.Names = nil
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); name != "" {
			c.selection.Names = append(c.selection.Names, name)
		}
	}
	if c.selection.Names == nil { // which would mean the default
		return errors.New("names no part: write none to keep none, or leave the key out for the default")
	}
	return nil
}

func setMaxPrune(c *config, value string) (err error) {
	if c.maxPrune, err = strconv.Atoi(value); err != nil || c.maxPrune < 0 {
		return fmt.Errorf("must be a number, not negative, not %q", value)
	}
	return nil
}

// origin is a value and where it comes from.
type origin struct {
	key, value, from string
}

// faults collects everything that is wrong with the configuration.
type faults []error

func (f *faults) add(format string, args ...any) {
	*f = append(*f, fleet.Errorf(fleet.KindInvalid, format, args...))
}

// load applies file, environment and flags, in this order, over the defaults. It reports every
// fault, as KindInvalid.
func load(hostname, file string, environ []string, flags []origin) (config, error) {
	c, all := defaults(hostname), settings()
	var wrong faults
	var origins []origin
	if file != "" {
		origins = readFile(file, &wrong)
	}
	origins = append(origins, readEnvironment(environ, all, &wrong)...)
	for _, o := range append(origins, flags...) {
		at := slices.IndexFunc(all, func(s setting) bool { return s.key == o.key })
		if at < 0 {
			wrong.add("%s: there is no key %q", o.from, o.key)
			continue
		}
		if err := all[at].set(&c, o.value); err != nil {
			wrong.add("%s: %s %w", o.from, o.key, err)
		}
	}
	return c, errors.Join(wrong...)
}

// readFile reads a mapping of keys to values, or lists of values.
func readFile(file string, wrong *faults) (origins []origin) {
	text, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		wrong.add("configuration file %s does not exist: name one with --config", file)
		return nil
	case err != nil:
		wrong.add("configuration: %w", err)
		return nil
	}
	var document, other yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		wrong.add("configuration %s: %w", file, err)
		return nil
	}
	if err := decoder.Decode(&other); !errors.Is(err, io.EOF) {
		wrong.add("configuration %s:%d: another YAML document begins here, of which nothing would count: remove the line ---", file, max(other.Line, 1))
		return nil
	}
	if len(document.Content) == 0 {
		return nil
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		wrong.add("configuration %s:%d: keys with values are expected", file, root.Line)
		return nil
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		from := fmt.Sprintf("%s:%d", file, key.Line)
		if line, twice := seen[key.Value]; twice {
			wrong.add("%s: %s is given already in line %d", from, key.Value, line)
			continue
		}
		seen[key.Value] = key.Line
		var parts []string
		switch {
		case value.Kind == yaml.ScalarNode:
			parts = []string{value.Value}
		case value.Kind == yaml.SequenceNode && (key.Value == "etcd_endpoints" || key.Value == "built_in"):
			for _, element := range value.Content {
				parts = append(parts, element.Value)
			}
		default:
			wrong.add("%s: %s must be a single value", from, key.Value)
			continue
		}
		origins = append(origins, origin{key.Value, strings.Join(parts, ","), from})
	}
	return origins
}

func readEnvironment(environ []string, all []setting, wrong *faults) (origins []origin) {
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, prefix) || name == prefix+"CONFIG" {
			continue
		}
		at := slices.IndexFunc(all, func(s setting) bool { return s.variable() == name })
		if at < 0 {
			wrong.add("environment: there is no variable %s", name)
			continue
		}
		origins = append(origins, origin{all[at].key, value, "environment " + name})
	}
	return origins
}

// checkRun reports what is missing for the service.
func (c config) checkRun() error {
	var wrong faults
	if c.kubeconfig == "" {
		wrong.add("kubeconfig must be set")
	}
	if _, _, err := net.SplitHostPort(c.listen); err != nil && c.listen != "" {
		wrong.add("listen must be HOST:PORT, not %q", c.listen)
	}
	if err := c.selection.Validate(); err != nil {
		wrong.add("%w", err)
	}
	return errors.Join(append(wrong, c.checkEtcd())...)
}

// checkEtcd reports what is wrong with the access to etcd.
func (c config) checkEtcd() error {
	if len(c.etcd.Endpoints) == 0 {
		return fleet.Errorf(fleet.KindInvalid, "etcd_endpoints must be set%s", c.where)
	}
	return c.etcd.Validate()
}

// open opens what the configuration names, and reports every fault.
func (c config) open(ctx context.Context) error {
	var wrong faults
	if err := c.etcd.Open(); err != nil {
		wrong.add("%w", err)
	}
	if c.kubeconfig != "" {
		server, err := resources.CheckKubeconfig(c.kubeconfig)
		if err == nil {
			err = errors.Join(c.checkServer(server), c.exposed())
		}
		if err != nil {
			wrong.add("%w", err)
		}
	}
	c.expired(&wrong, time.Now())
	failures, err := resources.Check(ctx, c.options())
	if err != nil {
		wrong.add("%w", err)
	}
	for _, f := range failures {
		wrong.add("%s: %s", f.Object, f.Reason)
	}
	return errors.Join(wrong...)
}

// exposed reports which of the files that have the credentials for the API server others can read.
// A service runs all the same: that it stops would mend nothing.
func (c config) exposed() error {
	files, err := resources.SecretFiles(c.kubeconfig)
	if err != nil {
		return nil //nolint:nilerr // others tell of it
	}
	var wrong []error
	for _, file := range files {
		if err := secret.Check(file); err != nil {
			wrong = append(wrong, fleet.Errorf(fleet.KindInvalid, "credentials for the API server: %w", err))
		}
	}
	return errors.Join(wrong...)
}

// checkExpose reports what is missing for expose.
func (c config) checkExpose() error { return errors.Join(c.checkAddress(), c.checkRun()) }

// checkAddress reports what is wrong with the address at which clients reach the API server.
func (c config) checkAddress() error {
	if _, _, err := net.SplitHostPort(c.expose); err != nil {
		return fleet.Errorf(fleet.KindInvalid, "expose must be the address at which clients reach the API server, HOST:PORT, not %q", c.expose)
	}
	return nil
}

// checkServer returns what is wrong with the address of the kubeconfig's API server beside that of
// expose, if there is one.
func (c config) checkServer(server string) error {
	host, port, err := net.SplitHostPort(c.expose)
	to, toPort, wrong := net.SplitHostPort(server)
	if err != nil || wrong != nil || port != toPort {
		return nil //nolint:nilerr // others tell of it
	}
	at, _ := netip.ParseAddr(host)
	toAt, _ := netip.ParseAddr(to)
	everywhere := (host == "" || at.IsUnspecified()) && !toAt.IsLoopback()
	if everywhere || strings.EqualFold(host, to) || at.IsValid() && at == toAt {
		return fleet.Errorf(fleet.KindInvalid, "kubeconfig %s leads to %s, where expose itself listens: let it name the API server behind that, such as https://127.0.0.1:%s",
			c.kubeconfig, server, port)
	}
	return nil
}

// service returns the configuration of the service.
func (c config) service() reconciler.Config {
	return reconciler.Config{Node: c.node, Build: c.build, Layout: c.layout, TTL: c.ttl, Settle: c.settle, FullPass: c.fullPass}
}
