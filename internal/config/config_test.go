package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider/builtin"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
)

// minimal is the least that a control plane needs.
const minimal = "initializer: {agent_executable: /dev/null}\nagent_api:\n  endpoint: herd.example:8443\n"

func load(t *testing.T, content string, environ ...string) (config.Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ironherd.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load(config.Sources{File: file, Environ: environ})
}

// faults loads a faulty configuration and returns its faults without the directory.
func faults(t *testing.T, content string, environ ...string) []string {
	t.Helper()
	_, err := load(t, content, environ...)
	if fleet.KindOf(err) != fleet.KindInvalid {
		t.Fatalf("loading gave %v, want an error of kind invalid", err)
	}
	var lines []string
	for _, line := range strings.Split(err.Error(), "\n") {
		lines = append(lines, strings.ReplaceAll(line, directory(line), ""))
	}
	return lines
}

func directory(line string) string {
	if i := strings.Index(line, "ironherd.yaml"); i > 0 {
		return line[:i]
	}
	return "\x00"
}

func TestEveryFaultAtOnce(t *testing.T) {
	t.Parallel()
	got := faults(t, `dirr: /tmp/herd
initializer: {agent_executable: /dev/null}
agent_api:
  listen: 0.0.0.0:8443
session:
  lease: 5 seconds
providers:
  - name: metal
    kind: equinix
    equinix:
      token_file: /nowhere/token
      project: 7b1d6e0a-5f2c-4c7e-9a51-0c8f4a6f7d11
      ssh_key_label: herd
      device_prefix: CHANGEME
      operating_system: debian_12
    provisioner:
      chunk_size: 0
`)
	want := []string{
		"ironherd.yaml:1: dirr: there is no such key; did you mean dir?",
		"ironherd.yaml:3: agent_api.endpoint must be set: where machines reach the agent API, as host:port",
		`ironherd.yaml:6: session.lease: "5 seconds" is not a duration: write a number with its unit, such as 500ms, 30s or 1h30m`,
		"ironherd.yaml:11: providers[0].equinix.token_file: the file /nowhere/token cannot be read: no such file or directory",
		`ironherd.yaml:14: providers[0].equinix.device_prefix is still the placeholder "CHANGEME": set it to a value of your own`,
		"ironherd.yaml:17: providers[0].provisioner.chunk_size must be at least 1, not 0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		content string
		environ []string
		want    string
	}{
		"not YAML": {"dir: [", nil, "ironherd.yaml:1: this is not valid YAML: "},
		"a secret": {"hunter2\n", nil, `ironherd.yaml:1: the file must hold keys and values, such as "dir: /var/lib/ironherd", not a single value`},
		"a secret URL": {
			minimal + "database: \"postgre://u:hunter2@h/db\"\n", nil,
			"ironherd.yaml:4: database: a section with path, url, password_file, isolation, connections and notify is expected, not a single value",
		},
		"a secret with a star": {"database: *hunter2\n", nil, "ironherd.yaml: this is not valid YAML: a value that begins with * must be in quotes"},
		"a tab":                {minimal + "log:\n\tlevel: debug\n", nil, "ironherd.yaml:5: this is not valid YAML: indent with spaces, not tabs"},
		"a tab behind blanks":  {minimal + "log:\n  \tlevel: debug\n", nil, "ironherd.yaml:5: this is not valid YAML: indent with spaces, not tabs"},
		"a tab at once":        {"\tdir: /x\n", nil, "ironherd.yaml:1: this is not valid YAML: indent with spaces, not tabs"},
		"a tab below a value":  {minimal + "log:\n  level: info\n\tformat: text\n", nil, "ironherd.yaml:6: this is not valid YAML: indent with spaces, not tabs"},
		"a tab in the middle":  {minimal + "log:\n  level: @\tx\n", nil, "ironherd.yaml:5: this is not valid YAML: found character that cannot start any token"},
		"not a mapping":        {"- a\n", nil, `ironherd.yaml:1: the file must hold keys and values, such as "dir: /var/lib/ironherd", not a list`},
		"two documents": {
			minimal + "---\ndir: /b\n", nil,
			"ironherd.yaml:4: another YAML document begins here, of which nothing would count: move its keys into the first one, and remove the line ---",
		},
		"two documents, the first empty": {"---\n---\n" + minimal, nil, "ironherd.yaml:2: another YAML document begins here"},
		"a third document":               {minimal + "---\n---\ndir: /b\n", nil, "ironherd.yaml:5: another YAML document begins here"},
		"a second document, not YAML":    {minimal + "---\ndir: [\n", nil, "ironherd.yaml:5: this is not valid YAML: "},
		"given twice":                    {minimal + "dir: /a\ndir: /b\n", nil, "ironherd.yaml:5: dir: is given twice, first in line 4: keep one of them"},
		"section missing":                {minimal + "session: 5s\n", nil, `ironherd.yaml:4: session: a section with lease is expected, not a single value`},
		"list missing":                   {minimal + "roles: janitor\n", nil, `ironherd.yaml:4: roles: a list is expected, not a single value: put each entry on a line of its own, after a hyphen`},
		"value missing":                  {minimal + "dir: [a]\n", nil, "ironherd.yaml:4: dir: a single value is expected, not a list"},
		"bad role":                       {minimal + "roles:\n  - janitor\n  - king\n", nil, `ironherd.yaml:6: roles[1]: "king" is no role: the roles are provisioner,`},
		"bad number":                     {minimal + "loops:\n  updater:\n    parallelism: many\n", nil, `ironherd.yaml:6: loops.updater.parallelism: "many" is not a whole number`},
		"bad rate":                       {minimal + "loops:\n  updater:\n    claim_rate: 250ms\n", nil, `ironherd.yaml:6: loops.updater.claim_rate: "250ms" is not a rate: write a positive duration`},
		"short lease":                    {minimal + "session: {lease: 999ms}\n", nil, "ironherd.yaml:4: session.lease: must be at least 1s, not 999ms"},
		"bad policy":                     {minimal + "policy:\n  heartbeat_interval: 1h\n", nil, "ironherd.yaml:4: policy.silent_after must be at least three heartbeat intervals"},
		"grace too long":                 {minimal + "drain_timeout: 15s\nloops: {updater: {grace: 9s}}\n", nil, "ironherd.yaml:5: loops.updater.grace: must be at most half of drain_timeout (15s), not 9s"},
		"bad log level":                  {minimal + "log: {level: loud}\n", nil, `ironherd.yaml:4: log.level: must be debug, info, warn or error, not "loud"`},
		"no port":                        {"initializer: {agent_executable: /dev/null}\nagent_api: {endpoint: 'control:84433'}\n", nil, `ironherd.yaml:2: agent_api.endpoint must be host:port, with a number as port, not "control:84433"`},
		"no port, from the environment": {
			minimal,
			[]string{"IRONHERD_AGENT_API_ENDPOINT=control:84433"},
			`environment IRONHERD_AGENT_API_ENDPOINT: agent_api.endpoint must be host:port, with a number as port, not "control:84433"`,
		},
		"half a key pair": {minimal + "  tls:\n    key: /dev/null\n", nil, "ironherd.yaml:4: agent_api.tls.certificate must be set, because key is"},
		"other kind": {
			minimal + "providers:\n- name: a\n  kind: static\n  static: {url: 'https://x/'}\n  equinix: {spacing: 1s}\n", nil,
			"ironherd.yaml:8: providers[0].equinix: is for providers of kind equinix, and this one is of kind static: remove it",
		},
		"unknown kind": {
			minimal + "providers:\n- name: a\n  kind: openstack\n", nil,
			`ironherd.yaml:6: providers[0].kind: "openstack" is no kind of provider: use one of equinix, static`,
		},
		"no kind": {
			minimal + "providers:\n- name: a\n", nil,
			`ironherd.yaml:5: providers[0].kind: "" is no kind of provider: use one of equinix, static`,
		},
		"same name": {
			minimal + "providers:\n- {name: a, kind: static, static: {url: 'https://x/'}}\n- {name: a, kind: static, static: {url: 'https://y/'}}\n", nil,
			`ironherd.yaml:6: providers[1].name: "a" is the name of providers[0] too: names must differ`,
		},
		"same list": {
			minimal + "providers:\n- {name: a, kind: static, static: {url: 'https://Lists.example:443'}}\n- {name: b, kind: static, static: {url: 'https://lists.example/'}}\n", nil,
			`ironherd.yaml:6: providers[1].static.url: is the list of providers[0] too: a host has one provider, so put the hosts of each into a list of its own`,
		},
		"same file": {
			minimal + "providers:\n- {name: a, kind: static, static: {path: /etc/hosts}}\n- {name: b, kind: static, static: {path: /etc/../etc/hosts}}\n", nil,
			`ironherd.yaml:6: providers[1].static.path: is the list of providers[0] too: a host has one provider, so put the hosts of each into a list of its own`,
		},
		"bad image": {
			minimal + "providers:\n- name: a\n  kind: static\n  static: {url: 'https://x/'}\n  install:\n    url: http://x/i\n    compression: none\n    digest: sha1:12\n", nil,
			`ironherd.yaml:11: providers[0].install.digest: must be sha256: and 64 lower-case hexadecimal digits, not "sha1:12"`,
		},
		"image without a name": {
			minimal + "images:\n- url: http://x/i\n  digest: sha256:" + strings.Repeat("a", 64) + "\n", nil,
			`ironherd.yaml:5: images[0].name: "" cannot name an image: want lower-case letters`,
		},
		"same image": {
			minimal + "images:\n- {name: a, url: 'http://x/i', digest: 'sha256:" + strings.Repeat("a", 64) + "'}\n" +
				"- {name: a, url: 'http://x/i', digest: 'sha256:" + strings.Repeat("b", 64) + "'}\n", nil,
			`ironherd.yaml:6: images[1].name: "a" is the name of images[0] too: names must differ`,
		},
		"image by a bad digest": {
			minimal + "images:\n- {name: a, url: 'http://x/i', digest: 'sha1:12'}\n", nil,
			`ironherd.yaml:5: images[0].digest: must be sha256: and 64 lower-case hexadecimal digits, not "sha1:12"`,
		},
		"image for no architecture": {
			minimal + "images:\n- {name: a, url: 'http://x/i', digest: 'sha256:" + strings.Repeat("a", 64) + "', architecture: x86_64}\n", nil,
			`ironherd.yaml:5: images[0].architecture: must be amd64 or arm64, or left out where it is not known, not "x86_64"`,
		},
		"unknown image": {
			minimal + "images:\n- {name: a, url: 'http://x/i', digest: 'sha256:" + strings.Repeat("a", 64) + "'}\n" +
				"providers:\n- name: a\n  kind: static\n  static: {url: 'https://x/'}\n  install: {image: b}\n", nil,
			`ironherd.yaml:10: providers[0].install.image: must be the name of one of images, not "b"`,
		},
		"image twice": {
			minimal + "images:\n- {name: a, url: 'http://x/i', digest: 'sha256:" + strings.Repeat("a", 64) + "'}\n" +
				"providers:\n- name: a\n  kind: static\n  static: {url: 'https://x/'}\n  install: {image: a, size: 5}\n", nil,
			`ironherd.yaml:10: providers[0].install.image: names an image, so url, digest, file_digest, compression, size and architecture must be left out`,
		},
		"unknown variable": {
			minimal,
			[]string{"IRONHERD_LOG_LEVELS=debug"},
			"environment: IRONHERD_LOG_LEVELS: there is no such variable; did you mean IRONHERD_LOG_LEVEL?",
		},
		"bad variable": {
			minimal,
			[]string{"IRONHERD_SESSION_LEASE=soon"},
			`environment IRONHERD_SESSION_LEASE: session.lease: "soon" is not a duration:`,
		},
		"unspecified endpoint": {
			"initializer: {agent_executable: /dev/null}\nagent_api: {endpoint: \"0.0.0.0:8443\"}\n", nil,
			`ironherd.yaml:2: agent_api.endpoint: must be an address that machines can reach, not "0.0.0.0:8443"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := faults(t, test.content, test.environ...)
			if len(got) != 1 || !strings.HasPrefix(got[0], test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

func TestSourcesInOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "ironherd.yaml")
	content := minimal + `
dir: state
log: &log
  level: warn
session: {lease: 7s}
loops:
  updater: {claim_rate: "1s,2"}
providers:
  - name: rack
    kind: static
    static: {url: https://hosts.example/}
    install:
      url: http://images.example/a.zst
      digest: sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
      compression: zstd
      architecture: arm64
      root_disk: {serial: 0012, pick: smallest}
      kexec: true
`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := config.Load(config.Sources{
		File: file,
		Environ: []string{
			"IRONHERD_SESSION_LEASE=8s", "IRONHERD_LOG_FORMAT=json", "IRONHERD_ROLES=janitor, updater", "IRONHERD_SERVER=unix:///x",
			"IRONHERD_SERVICE_HOST=10.0.0.1", "IRONHERD_PORT_443_TCP=tcp://10.0.0.1:443", "HOME=/root",
			"IRONHERD_RECONCILER_CONFIG=/etc/ironherd/reconciler.yaml", "IRONHERD_RECONCILER_ETCD_ENDPOINTS=https://10.0.0.2:2379",
		},
		Flags: []config.Override{{Flag: "--set", Key: "session.lease", Value: "9s"}, {Flag: "--dir", Key: "dir", Value: dir + "/x"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Session.Lease != 9*time.Second || got.Log.Level != "warn" || got.Log.Format != "json" {
		t.Errorf("flag over environment over file: got %+v, %+v", got.Session, got.Log)
	}
	if diff := cmp.Diff([]fleet.Role{fleet.RoleJanitor, fleet.RoleUpdater}, got.Roles); diff != "" {
		t.Error(diff)
	}
	if got.Loops.Updater.ClaimRate != (fleet.Rate{Every: time.Second, Burst: 2}) || got.Loops.Updater.Parallelism != 10 {
		t.Errorf("a section keeps the defaults of what is not written: %+v", got.Loops.Updater)
	}
	if got.Dir != dir+"/x" || got.OperatorAPI.Socket != dir+"/x/ironherd.sock" {
		t.Errorf("paths follow dir: %s, %s", got.Dir, got.OperatorAPI.Socket)
	}
	p := got.Providers[0]
	if p.Provisioner.ChunkSize != 1000 || p.Static.Spacing != time.Second || p.Install.RootDisk.Serial != "0012" {
		t.Errorf("provider: %+v", p)
	}
	if request, err := p.Install.Request("test", nil); err != nil || !request.Image.Kexec || request.Image.Architecture != fleet.ArchitectureARM64 {
		t.Errorf("install: %+v, %v", request, err)
	}
}

// TestGraceFollowsTheDrainTimeout: a file that sets it for the loops that it knows is good for a
// version that has more of them.
func TestGraceFollowsTheDrainTimeout(t *testing.T) {
	t.Parallel()
	c, err := load(t, minimal+"drain_timeout: 10s\nloops: {updater: {grace: 2s}}\n")
	if err != nil {
		t.Fatal(err)
	}
	if c.Loops.Updater.Grace != 2*time.Second || c.Loops.Prober.Grace != 5*time.Second {
		t.Errorf("updater %s, prober %s", c.Loops.Updater.Grace, c.Loops.Prober.Grace)
	}
	if c, err = load(t, minimal); err != nil || c.Loops.Prober.Grace != 10*time.Second {
		t.Errorf("prober %s, %v", c.Loops.Prober.Grace, err)
	}
}

// A list of hosts has no limit and no pace unless one is written; what is bought has both.
func TestDefaultsOfAListOfHosts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, test := range map[string]struct {
		written string
		want    provisioner.Config
	}{
		"nothing": {"", provisioner.ListConfig()},
		"blank":   {"provisioner: {max_machines: , chunk_size: null, create_rate: ~}", provisioner.DefaultConfig()},
		"max":     {"provisioner: {max_machines: 50}", func() provisioner.Config { c := provisioner.ListConfig(); c.MaxMachines = 50; return c }()},
		"rate": {"provisioner: {create_rate: \"5s,1\"}", func() provisioner.Config {
			c := provisioner.ListConfig()
			c.CreateRate = provisioner.DefaultConfig().CreateRate
			return c
		}()},
		"something": {"provisioner: {penalty: 2h}", func() provisioner.Config { c := provisioner.ListConfig(); c.Penalty = 2 * time.Hour; return c }()},
	} {
		path := filepath.Join(dir, name+".yaml")
		hosts := filepath.Join(dir, "hosts.yaml")
		for file, content := range map[string]string{
			path:  "dir: state\nagent_api: {endpoint: \"control.example:1\"}\ninitializer: {agent_executable: hosts.yaml}\nproviders:\n  - name: rack\n    kind: static\n    static: {path: hosts.yaml}\n    " + test.written + "\n",
			hosts: "hosts: []\n",
		} {
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := config.Load(config.Sources{File: path})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, got.Providers[0].Provisioner); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if bought := config.NewProvider("metal", "equinix").Provisioner; bought.MaxMachines != 50 {
		t.Errorf("what is bought: %+v", bought)
	}
}

func TestPathsAreRelativeToTheFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{"ironherd.yaml": minimal + "dir: state\noperator_api: {tokens_file: tokens}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := config.Load(config.Sources{File: filepath.Join(dir, "ironherd.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	if got.Dir != dir+"/state" || got.OperatorAPI.TokensFile != dir+"/tokens" || got.Database.Path != dir+"/state/ironherd.db" {
		t.Errorf("got %s, %s, %s", got.Dir, got.OperatorAPI.TokensFile, got.Database.Path)
	}
}

// TestEncode writes a configuration with everything in it, and reads it again.
func TestEncode(t *testing.T) {
	t.Parallel()
	want := config.Default()
	want.Dir = t.TempDir()
	want.Roles = []fleet.Role{fleet.RoleJanitor, fleet.RoleOperatorAPI}
	want.AgentAPI.Endpoint = "herd.example:8443"
	want.OperatorAPI.Listen = ""
	want.Loops.Updater.ClaimRate = fleet.Rate{Every: time.Second, Burst: 3}
	p := config.NewProvider("rack", builtin.Static)
	p.Static.URL, p.Static.Spacing, p.TrustFirstUse = "https://hosts.example/", 0, true
	p.Install = &config.Install{
		URL: "http://images.example/a", Digest: "sha256:" + strings.Repeat("0a", 32), Compression: fleet.CompressionNone,
		RootDisk: fleet.DiskSelector{Serial: "0012", Pick: fleet.PickLargest},
	}
	want.Providers = []config.Provider{p, config.NewProvider("other", builtin.Static)}
	want.Providers[1].Static.URL = "https://other.example/"
	want.Resolve(want.Dir)
	text, err := config.Encode(want, "A comment.")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "ssh_key") || !strings.HasPrefix(string(text), "# A comment.\n") {
		t.Errorf("what follows from other keys is not written:\n%s", text)
	}
	got, err := load(t, string(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s\n%s", diff, text)
	}
}

func TestMissingFile(t *testing.T) {
	t.Parallel()
	_, err := config.Load(config.Sources{File: "/nowhere/ironherd.yaml"})
	if fleet.KindOf(err) != fleet.KindInvalid || err.Error() != "configuration file /nowhere/ironherd.yaml does not exist: name one with --config" {
		t.Errorf("got %v", err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(minimal)
	f.Add("a: &a [*a]\n")
	f.Add("providers: [{kind: static, static: &x {url: 'http://h/'}}, {name: b, kind: static, static: *x}]")
	f.Add("session: {lease: !!binary aGk=}\n? [a]\n: b\n")
	f.Add("<<: {dir: /x}\n")
	f.Fuzz(func(t *testing.T, content string) {
		file := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := config.Load(config.Sources{File: file})
		if err == nil {
			return
		}
		var all config.Faults
		if !errors.As(err, &all) {
			t.Fatalf("an error that lists no faults: %v", err)
		}
		for _, fault := range all {
			if fault.Source != file || fault.Line < 0 || fault.Problem == "" || strings.ContainsAny(fault.Error(), "\n\x00") {
				t.Errorf("bad fault: %+v", fault)
			}
		}
	})
}

// TestAuthorityContents: certificates that no agent could take are told where somebody asks.
func TestAuthorityContents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	content := "agent_api: {endpoint: 'herd.example:8443'}\ninitializer: {agent_executable: /dev/null, endpoint_ca: ca.pem}\n"
	file := filepath.Join(dir, "ironherd.yaml")
	for path, text := range map[string]string{"ironherd.yaml": content, "ca.pem": "no certificate\n"} {
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for contents, want := range map[bool]string{false: "", true: "initializer.endpoint_ca: " + dir + "/ca.pem holds no certificate in PEM form"} {
		_, err := config.Load(config.Sources{File: file, Contents: contents})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("it says %v, want %q", err, want)
		}
	}
}

// TestContents: the content of a list of hosts is checked where somebody asks for it. A control
// plane starts with a list that has faults.
func TestContents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hosts := "- {id: a, address: 192.0.2.1, host_key: secret}\n- {id: b, address: nowhere}\n- {id: c, address: 192.0.2.3}\n"
	if err := os.WriteFile(filepath.Join(dir, "hosts.yaml"), []byte(hosts), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "ironherd.yaml")
	content := minimal + "providers:\n- name: rack\n  kind: static\n  static: {path: hosts.yaml}\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(config.Sources{File: file}); err != nil {
		t.Errorf("a control plane does not start: %v", err)
	}
	_, err := config.Load(config.Sources{File: file, Contents: true})
	faults, _ := errors.AsType[config.Faults](err)
	var got []string
	for _, f := range faults {
		got = append(got, strings.TrimPrefix(f.Error(), dir+"/"))
	}
	want := []string{
		"ironherd.yaml:7: providers[0].static.path: " + dir + `/hosts.yaml: line 1: host "a": host_key must be a public key`,
		"ironherd.yaml:7: providers[0].static.path: " + dir + `/hosts.yaml: line 2: host "b": address must be`,
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("it says %q, want %q", got, want)
	}
}
