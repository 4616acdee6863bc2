package command_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/reconciler/command"
	"github.com/ironherd/ironherd/internal/reconciler/etcdtest"
	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/etcd"
)

var (
	shared *etcdtest.Cluster
	roots  atomic.Int64
)

func TestMain(m *testing.M) {
	os.Exit(etcdtest.Main(context.Background(), m, &shared, etcdtest.MembersLeave()...))
}

// buffer is a writer for several.
type buffer struct {
	mu   sync.Mutex
	kept bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept.String()
}

// program is the program with a cluster of its own.
type program struct {
	t    *testing.T
	root string
	env  []string
}

func newProgram(t *testing.T) *program {
	t.Helper()
	p := &program{t: t, root: fmt.Sprintf("/test/%d", roots.Add(1))}
	p.env = []string{
		"IRONHERD_RECONCILER_ETCD_ENDPOINTS=" + shared.Endpoints()[0], "IRONHERD_RECONCILER_ROOT=" + p.root,
		"IRONHERD_RECONCILER_LOG_FORMAT=json",
	}
	return p
}

func (p *program) layout() etcd.Layout { return etcd.Layout{Root: p.root} }

func (p *program) start(ctx context.Context, args ...string) (stdout, stderr *buffer, code func() int) {
	stdout, stderr = &buffer{}, &buffer{}
	ended := make(chan int, 1)
	go func() {
		ended <- command.Main(ctx, args, command.Env{
			Stdout: stdout, Stderr: stderr, Environ: p.env, Hostname: "N1", Version: "test",
		})
	}()
	return stdout, stderr, func() int { return <-ended }
}

// run runs a command to its end and compares the exit code.
func (p *program) run(want int, args ...string) (stdout, stderr string) {
	p.t.Helper()
	out, errOut, code := p.start(p.t.Context(), args...)
	if got := code(); got != want {
		p.t.Fatalf("%s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, want, out, errOut)
	}
	return out.String(), errOut.String()
}

func (p *program) put(key, value string) {
	p.t.Helper()
	if _, err := shared.Client(p.t).Put(p.t.Context(), key, value); err != nil {
		p.t.Fatal(err)
	}
}

func contains(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s does not say %q:\n%s", what, part, text)
		}
	}
}

func TestNodesAndStatus(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	out, _ := p.run(0, "status")
	contains(t, "an empty cluster", out, "leader:  none", "status:  none yet")
	_, said := p.run(0, "node", "register")
	contains(t, "register", said, "node n1 is registered with release v0.1.0")
	_, said = p.run(0, "node", "register")
	contains(t, "register again", said, "already")
	p.run(0, "node", "register", "--node", "n2", "--release", "v0.2.0-rc.1")
	p.put(p.layout().Node("n3"), "\x1b[31m")
	p.put(p.layout().Status(), `{"state":"done","version":"v0.2.0","minimumCompatible":"v0.1.5"}`)
	out, _ = p.run(0, "status")
	contains(t, "status", out, "status:  done, version v0.2.0, minimum compatible release v0.1.5",
		"below the minimum compatible release v0.1.5", "n2    v0.2.0-rc.1", "unknown")
	if strings.Contains(out, "\x1b") {
		t.Error("what a node says drives the terminal")
	}
	out, _ = p.run(0, "status", "-o", "json")
	var o struct {
		Leader *struct{} `json:"leader"`
		Nodes  []struct {
			Name, Release string
			Known         bool
			Admitted      struct{ OK bool }
		}
	}
	if err := json.Unmarshal([]byte(out), &o); err != nil || o.Leader != nil || len(o.Nodes) != 3 || o.Nodes[0].Admitted.OK || !o.Nodes[1].Admitted.OK ||
		o.Nodes[2].Known {
		t.Errorf("%v: %s", err, out)
	}
	_, said = p.run(2, "node", "remove", "n3")
	contains(t, "remove", said, "--stopped")
	p.run(0, "node", "remove", "n3", "--stopped")
	p.run(3, "node", "remove", "n3", "--stopped")
	out, _ = p.run(0, "node", "list")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 3 {
		t.Errorf("nodes:\n%s", out)
	}
}

func TestWaitReady(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	const none = "the base resources have never been reconciled: there is no status"
	_, said := p.run(7, "wait-ready", "--timeout", "300ms")
	// On a busy machine the time may be up before etcd has answered.
	for timeout := time.Second; !strings.Contains(said, none) && timeout < time.Minute; timeout *= 3 {
		_, said = p.run(7, "wait-ready", "--timeout", timeout.String())
	}
	contains(t, "wait-ready", said, none, "the time is up")
	_, stderr, code := p.start(t.Context(), "wait-ready", "--release", "v1.2.0")
	await(t, "the reason", func() bool { return strings.Contains(stderr.String(), "there is no status") })
	p.put(p.layout().Status(), `{"state":"done","version":"v2.0.0","minimumCompatible":"v2.0.0"}`)
	await(t, "the next reason", func() bool { return strings.Contains(stderr.String(), "below the minimum compatible release v2.0.0") })
	p.put(p.layout().Status(), `{"state":"working","version":"v1.0.0","minimumCompatible":"v1.0.0"}`)
	if got := code(); got != 0 {
		t.Errorf("exit code %d: %s", got, stderr)
	}
	p.env = append(p.env, "IRONHERD_RECONCILER_ETCD_ENDPOINTS=http://127.0.0.1:9")
	_, said = p.run(7, "wait-ready", "--timeout", "1s")
	contains(t, "without etcd", said, "cannot be registered")
	p.run(7, "status")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, code := p.start(ctx, "wait-ready"); code() != 130 {
		t.Error("an interrupt is not told by the exit code")
	}
}

func await(t *testing.T, what string, ask func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(time.Minute); !ask(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// kubeconfig names an API server that nobody runs.
const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
current-context: c
`

// TestRun runs the whole service with an etcd and without an API server: it leads, tells what is
// wrong, and stops in order.
func TestRun(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "reconciler.yaml")
	text := "# of this node\nnode: n7\nkubeconfig: " + file + "\nlisten: 127.0.0.1:0\netcd_endpoints: [" + shared.Endpoints()[0] + "]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p.run(0, "config", "check", "--config", config)
	ctx, cancel := context.WithCancel(t.Context())
	_, stderr, code := p.start(ctx, "run", "--config", config)
	client := shared.Client(t)
	await(t, "it leads", func() bool {
		leader, _, err := election.Leader(t.Context(), client, p.layout().Election())
		return err == nil && leader.Name == "n7"
	})
	address := listens(stderr.String())
	await(t, "it tells that passes fail", func() bool {
		status, body := get(t, address, "/healthz")
		return status == 503 && strings.Contains(body, `"name":"lead","condition":"running","healthy":false`)
	})
	if status, body := get(t, address, "/readyz"); status != 200 {
		t.Errorf("not ready: %d %s", status, body)
	}
	if status, body := get(t, address, "/servez"); status != 503 || !strings.Contains(body, "there is no status") {
		t.Errorf("the API server may serve: %d %s", status, body)
	}
	var body string
	await(t, "it sees its own node", func() bool {
		_, body = get(t, address, "/metrics")
		return strings.Contains(body, "ironherd_reconciler_nodes{")
	})
	contains(t, "metrics", body, "ironherd_reconciler_leading 1", `ironherd_reconciler_nodes{release="v0.1.0"} 1`,
		`ironherd_reconciler_passes_total{outcome="failed"}`, "ironherd_reconciler_term 1",
		"ironherd_reconciler_failures_required 0", "ironherd_reconciler_last_pass_failed 1", "ironherd_reconciler_last_pass_blocks 1")
	out, _ := p.run(0, "status")
	contains(t, "status", out, "leader:       n7 (release v0.1.0", "it cannot do its work, and hands over as soon as a candidate can: ", "leader does:  there is no status yet")
	p.put(p.layout().Status(), `{"state":"working","version":"v0.1.0","minimumCompatible":"v0.1.0"}`)
	if status, body := get(t, address, "/servez"); status != 503 || !strings.Contains(body, "cannot be reached") {
		t.Errorf("a load balancer is sent to an API server that does not run: %d %s", status, body)
	}
	cancel()
	if got := code(); got != 0 {
		t.Errorf("exit code %d: %s", got, stderr)
	}
	if leader, found, err := election.Leader(t.Context(), client, p.layout().Election()); found || err != nil {
		t.Errorf("%+v still leads, %v", leader, err)
	}
}

// listens returns where a program listens, from its log.
func listens(log string) (address string) {
	for line := range strings.Lines(log) {
		var entry struct{ Msg, Address string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" {
			address = entry.Address
		}
	}
	return address
}

func get(t *testing.T, address, path string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "reconciler.yaml")
	text := `node: n1
kubeconfg: typo
settle: soon
settle: 5s
manifests: {a: b}
listen: nowhere
min_api_server: v9.9.9
built_in: []
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, env: []string{"IRONHERD_RECONCILER_ELECTION=1s", "IRONHERD_RECONCILER_MAX_PRUNE=-1", "IRONHERD_RECONCILER_BUILT_IN= ,"}}
	_, said := p.run(2, "config", "check", "--config", file, "--election-ttl", "1500ms")
	contains(t, "config check", said,
		file+`:2: there is no key "kubeconfg"`, file+":3: settle must be a duration", file+":4: settle is given already in line 3",
		file+":5: manifests must be a single value", "environment: there is no variable IRONHERD_RECONCILER_ELECTION",
		"environment IRONHERD_RECONCILER_MAX_PRUNE: max_prune must be a number", `listen must be HOST:PORT, not "nowhere"`,
		file+":8: built_in names no part", "environment IRONHERD_RECONCILER_BUILT_IN: built_in names no part",
		"kubeconfig must be set", "etcd_endpoints must be set in "+file, "TTL must be whole seconds", "v9.9.9 must not be above the release")
	two := filepath.Join(dir, "two.yaml")
	if err := os.WriteFile(two, []byte("node: n1\n---\nsettle: 5s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, said = (&program{t: t}).run(2, "config", "check", "--config", two)
	contains(t, "two documents", said, two+":2: another YAML document begins here, of which nothing would count: remove the line ---")
	for _, args := range [][]string{
		{"run"},
		{"status"},
		{"plan"},
		{"nonsense"},
		{"run", "--no-such-flag"},
		{"status", "-o", "yaml"},
		{"plan", "--kubeconfig", "/does/not/exist"},
		{"version", "--config", filepath.Join(dir, "none.yaml")},
	} {
		if _, said := (&program{t: t}).run(2, args...); !strings.HasPrefix(said, "ironherd-reconciler: ") {
			t.Errorf("%v says %q", args, said)
		}
	}
	out, _ := (&program{t: t}).run(0, "version")
	contains(t, "version", out, "ironherd-reconciler test (", "release v0.1.0, minimum reconciler v0.1.0, minimum API server v0.1.0")
}

// TestListenInUse: a port that another process has.
func TestListenInUse(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	newProgram(t).run(5, "run", "--kubeconfig", file, "--listen", ln.Addr().String())
}

// TestHandover stops the whole service of a leader in order, as SIGTERM does, while another one
// stands by.
func TestHandover(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	client := shared.Client(t)
	leads := func(name string) func() bool {
		return func() bool {
			leader, _, err := election.Leader(t.Context(), client, p.layout().Election())
			return err == nil && leader.Name == name
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, _, first := p.start(ctx, "run", "--node", "n1", "--kubeconfig", file, "--listen", "")
	await(t, "n1 leads", leads("n1"))
	later, stop := context.WithCancel(t.Context())
	_, _, second := p.start(later, "run", "--node", "n2", "--kubeconfig", file, "--listen", "")
	await(t, "n2 stands by", func() bool {
		all, err := client.Get(t.Context(), p.layout().Election()+"candidates/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && all.Count == 2
	})
	begun := time.Now()
	cancel()
	await(t, "n2 leads", leads("n2"))
	t.Logf("n2 led %s after n1 was told to stop, which goes on trying passes without an API server", time.Since(begun).Round(time.Millisecond))
	if code := first(); code != 0 {
		t.Errorf("n1: exit code %d", code)
	}
	stop()
	if code := second(); code != 0 {
		t.Errorf("n2: exit code %d", code)
	}
}

// TestConfigCheckOpens: what the configuration names is opened, and every fault is told at once.
func TestConfigCheckOpens(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("kubeconfig", kubeconfig)
	bad := file("bad-kubeconfig", strings.Replace(strings.Replace(kubeconfig, "http:", "https:", 1), "cluster: {", "cluster: {certificate-authority: no-ca.crt, ", 1))
	file("manifests/typo.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {nam: x}\n")
	junk := file("junk.pem", "not PEM")
	_, said := p.run(2, "config", "check", "--kubeconfig", bad, "--etcd-endpoints", "https://127.0.0.1:9", "--etcd-ca", junk)
	contains(t, "config check", said, "junk.pem holds no PEM certificate", "no-ca.crt")
	_, said = p.run(2, "config", "check", "--kubeconfig", good, "--manifests", filepath.Join(dir, "manifests"), "--etcd-endpoints", "https://127.0.0.1:9",
		"--etcd-cert", junk, "--etcd-key", filepath.Join(dir, "none.key"))
	contains(t, "config check", said, "etcd client's certificate", "typo.yaml", "metadata.name")
	_, said = p.run(2, "config", "check", "--kubeconfig", bad, "--manifests", filepath.Join(dir, "manifests"), "--etcd-endpoints", "https://127.0.0.1:9,there",
		"--etcd-ca", junk, "--etcd-cert", junk, "--etcd-key", junk, "--built-in", "kubelet-api,nothing", "--log-level", "loud", "--log-format", "xml",
		"--expose", "nowhere", "--listen", "nowhere", "--root", "x", "--election-ttl", "1500ms")
	all := []string{
		"junk.pem holds no PEM certificate", "etcd client's certificate", "no-ca.crt", "typo.yaml", `there is no built-in part "nothing"`,
		`no log level is named "loud"`, `no log format is named "xml"`, `expose must be the address at which clients reach the API server, HOST:PORT, not "nowhere"`,
		`listen must be HOST:PORT, not "nowhere"`, "the root of the keys in etcd must be a path", "TTL must be whole seconds", `etcd endpoint "there" must be a URL`,
	}
	contains(t, "one run of config check", said, all...)
	if lines := strings.Count(said, "\n"); lines != len(all) {
		t.Errorf("%d faults are told in %d lines:\n%s", len(all), lines, said)
	}
	_, said = p.run(2, "config", "check", "--kubeconfig", good, "--log-format", "xml")
	contains(t, "config check", said, `no log format is named "xml"`)
	p.run(0, "config", "check", "--kubeconfig", good, "--expose", "192.0.2.11:6443")
	p.run(0, "config", "check", "--kubeconfig", good)
	_, said = p.run(7, "config", "check", "--kubeconfig", good, "--connect")
	contains(t, "config check --connect", said, "the API server at http://127.0.0.1:9 cannot be reached")
	_, said = p.run(7, "config", "check", "--kubeconfig", good, "--connect", "--etcd-endpoints", "http://127.0.0.1:9")
	contains(t, "config check --connect", said, "etcd: http://127.0.0.1:9: nobody listens there")
}

// TestNoLeader: without a leader, status says why.
func TestNoLeader(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	out, _ := p.run(0, "status")
	contains(t, "an empty cluster", out, "leader:  none: no node has registered itself")
	p.run(0, "node", "register", "--node", "n1")
	p.run(0, "node", "register", "--node", "n2", "--release", "v0.2.0")
	out, _ = p.run(0, "status")
	contains(t, "nobody runs", out, "only a reconciler of v0.2.0", "is it running on n2")
	p.put(p.layout().Node("n3"), "?")
	out, _ = p.run(0, "status")
	contains(t, "an unreadable record", out, "the release of n3 is not known")
}

// TestPageNamesWhatThereIs: the keys, flags and commands that the pages name exist.
func TestPageNamesWhatThereIs(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	help, _ := p.run(0, "--help")
	for _, page := range []string{"kubernetes.md", "resources.md"} {
		text, err := os.ReadFile("../../../docs/ops/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			if strings.HasPrefix(block[1], "spec:") || strings.Contains(block[1], "kind:") || strings.HasPrefix(block[1], "scrape_configs:") {
				continue // of Kubernetes, or of Prometheus
			}
			for line := range strings.Lines(block[1]) {
				key, _, _ := strings.Cut(line, ":")
				if !strings.Contains(help, "--"+strings.ReplaceAll(key, "_", "-")+" ") {
					t.Errorf("%s names the key %q, which is none", page, key)
				}
			}
		}
		for _, command := range regexp.MustCompile("(?:`|\\$ )"+`ironherd-reconciler ([a-z-]+(?: (?:approve|check|list|register|remove|show|withdraw))?)((?: [^`+"`"+`\n]*)?)`).FindAllStringSubmatch(string(text), -1) {
			if strings.HasPrefix(command[1], "-") {
				continue
			}
			words := strings.Fields(command[1])
			usage, _ := p.run(0, append(words, "--help")...)
			if !strings.Contains(usage, "ironherd-reconciler "+command[1]) {
				t.Errorf("%s names the command %q, which is none", page, command[1])
			}
			for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString(command[2], -1) {
				if !strings.Contains(usage, flag) {
					t.Errorf("%s gives %q the flag %s, which it does not have", page, command[1], flag)
				}
			}
		}
	}
}
