package test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/gate"
	"github.com/ironherd/ironherd/reconciler/release"
	"github.com/ironherd/ironherd/test/cluster"
	"github.com/ironherd/ironherd/test/process"
)

// software is a release that a node can run.
type software struct{ release, needs, admits string }

// TestPageUpgrade runs the steps of docs/ops/kubernetes.md as they are written there, with the
// units of deploy/systemd, on one, two and three nodes: set up, upgrade to a release whose API
// server needs the new base resources, and the same steps back. With two nodes and more, clients
// are served all the way up. The reconciler's user has the rights that the steps give it, and no
// others.
func TestPageUpgrade(t *testing.T) {
	t.Parallel()
	old, next := software{"v1.0.0", "v1.0.0", "v1.0.0"}, software{"v1.1.0", "v1.1.0", "v1.0.0"}
	for nodes := 1; nodes <= 3; nodes++ {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			ctx := bounded(t, 10*time.Minute)
			p := newPage(ctx, t, nodes)
			p.install(old)
			for _, h := range p.hosts {
				h.run(ctx, p.steps[0])
			}
			stop := p.watch(ctx, nodes > 1)
			p.install(next)
			for _, h := range p.hosts {
				h.run(ctx, p.steps[1])
				h.run(ctx, p.steps[2])
				h.run(ctx, p.steps[3])
				eventually(t, func() error { // a busy host may take seconds for one answer
					if answer := h.get(ctx, "/readyz"); answer != "ok" {
						return fmt.Errorf("clients of %s: %s", h.name, answer)
					}
					return nil
				})
			}
			p.settled(ctx, next)
			stop()
			stop = p.watch(ctx, false) // on the way back the older ones wait
			p.install(old)
			for i, h := range p.hosts {
				h.run(ctx, p.steps[2])
				if i == nodes-1 {
					h.run(ctx, p.steps[3])
				}
			}
			p.settled(ctx, old)
			stop()
		})
	}
}

// TestPageUpgradeIncompatible: the old API servers do not work with the new resources. The leader
// holds until the last of them is gone. Nobody is served meanwhile by an API server that must not.
func TestPageUpgradeIncompatible(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 5*time.Minute)
	p := newPage(ctx, t, 2)
	next := software{"v2.0.0", "v2.0.0", "v2.0.0"}
	p.install(software{"v1.0.0", "v1.0.0", "v1.0.0"})
	for _, h := range p.hosts {
		h.run(ctx, p.steps[0])
	}
	stop := p.watch(ctx, false)
	p.install(next)
	first, last := p.hosts[0], p.hosts[1]
	first.run(ctx, p.steps[2])
	p.until(ctx, "the leader holds", func(look reconciler.Overview) bool {
		return look.Leader != nil && look.Leader.Build.Release.String() == "v2.0.0" && look.Holds && strings.Contains(look.Reason, "n2 (v1.0.0)")
	})
	for h, want := range map[*host]string{first: "refused", last: "ok"} {
		answer := noAnswer
		for ctx.Err() == nil && answer == noAnswer { // as from a busy host
			answer = h.get(ctx, "/readyz")
		}
		if answer != want && (want == "ok" || !strings.Contains(answer, want)) {
			t.Errorf("clients of %s: %s, want %s", h.name, answer, want)
		}
	}
	last.run(ctx, p.steps[2])
	for _, h := range p.hosts {
		h.run(ctx, p.steps[3])
	}
	p.settled(ctx, next)
	stop()
}

// page is a cluster whose nodes are looked after as the page says.
type page struct {
	t       *testing.T
	program string
	etcd    *clientv3.Client
	hosts   []*host
	steps   [][]string
}

func newPage(ctx context.Context, t *testing.T, nodes int) *page {
	t.Helper()
	r := startReconciled(ctx, t, cluster.User{Name: reconcilerUser})
	endpoint := "http://" + r.cluster.EtcdEndpoint()
	p := &page{t: t, program: r.program, steps: pageSteps(t), etcd: dial(ctx, t, endpoint)}
	for n := 1; n <= nodes; n++ {
		server := r.cluster.APIServer
		if n > 1 {
			var err error
			if server, err = r.cluster.Another(ctx, fmt.Sprintf("n%d", n)); err != nil {
				t.Fatal(err)
			}
		}
		kubeconfig, err := server.KubeconfigOf(reconcilerUser)
		if err != nil {
			t.Fatal(err)
		}
		server.KillAPIServer() // the steps start it
		p.add(server, kubeconfig, endpoint)
	}
	return p
}

func dial(ctx context.Context, t *testing.T, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := etcd.Dial(ctx, etcd.Config{Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// add adds a node.
func (p *page) add(server *cluster.APIServer, kubeconfig, endpoints string) {
	n := len(p.hosts) + 1
	h := &host{t: p.t, name: fmt.Sprintf("n%d", n), root: p.t.TempDir(), running: map[string]*process.Process{}, server: server}
	_, port, _ := net.SplitHostPort(server.Address())
	h.address = fmt.Sprintf("127.0.1.%d:%s", n, port) // the API server has the same port on 127.0.0.1
	h.file("etc/ironherd/reconciler.yaml", fmt.Sprintf("node: %s\netcd_endpoints: [%s]\nkubeconfig: %s\nexpose: %s\nlisten: 127.0.0.1:0\n"+
		"election_ttl: 3s\nsettle: 200ms\nlog_format: json\n", h.name, endpoints, kubeconfig, h.address))
	h.file("usr/bin/.keep", "")
	p.hosts = append(p.hosts, h)
	p.t.Cleanup(h.end)
}

// pageSteps returns the commands of the page's steps, a list for each block.
func pageSteps(t *testing.T) (steps [][]string) {
	t.Helper()
	text := read(t, "../docs/ops/kubernetes.md")
	_, text, _ = strings.Cut(text, "<!-- steps: begin -->")
	text, _, found := strings.Cut(text, "<!-- steps: end -->")
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(text, -1) {
		var commands []string
		output := false // such a block shows, and says nothing of what to do
		for line := range strings.Lines(block[1]) {
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ ")
			commands, output = append(commands, command), output || !ok
		}
		if !output {
			steps = append(steps, commands)
		}
	}
	if !found || len(steps) != 4 {
		t.Fatalf("the page has %d blocks of steps, want 4: set up, look, upgrade, wait", len(steps))
	}
	return steps
}

// install puts a release where the steps of every node find it.
func (p *page) install(s software) {
	p.t.Helper()
	for _, h := range p.hosts {
		h.install(p.program, s)
	}
}

// install puts a release where the steps find it; the first one is installed.
func (h *host) install(program string, s software) {
	h.t.Helper()
	script := fmt.Sprintf("#!/bin/sh\nexport IRONHERD_RECONCILER_RELEASE=%s IRONHERD_RECONCILER_MIN_RECONCILER=%s IRONHERD_RECONCILER_MIN_API_SERVER=%s\nexec %s \"$@\"\n",
		s.release, s.needs, s.admits, program)
	h.software = s
	h.file("download/ironherd-reconciler", script)
	if _, err := os.Stat(filepath.Join(h.root, "usr/bin/ironherd-reconciler")); err != nil {
		h.file("usr/bin/ironherd-reconciler", script)
	}
}

// look asks etcd what there is.
func (p *page) look(ctx context.Context) (look reconciler.Overview, err error) {
	return reconciler.Look(ctx, p.etcd, etcd.Layout{Root: etcd.DefaultRoot}, release.Own(), slog.New(slog.DiscardHandler))
}

func (p *page) until(ctx context.Context, what string, so func(reconciler.Overview) bool) {
	p.t.Helper()
	for {
		look, err := p.look(ctx)
		if err == nil && so(look) {
			return
		}
		letRun(ctx, 200*time.Millisecond)
		if ctx.Err() != nil {
			text, _ := json.Marshal(look) // was decoded from it
			p.t.Fatalf("waited for: %s; it is %s, %v", what, text, err)
		}
	}
}

// settled waits until everything is as a release wants it, and all nodes serve.
func (p *page) settled(ctx context.Context, s software) {
	p.t.Helper()
	p.until(ctx, s.release+" is done", func(look reconciler.Overview) bool {
		return look.Status.Unreadable == "" &&
			look.Status.Status.String() == fmt.Sprintf("done, version %s, minimum compatible release %s", s.release, s.admits)
	})
	p.until(ctx, "all serve", func(reconciler.Overview) bool {
		return !slices.ContainsFunc(p.hosts, func(h *host) bool { return h.get(ctx, "/readyz") != "ok" })
	})
}

// watch looks on as clients do. None may be served by an API server that the status excludes, and,
// if always is set, there must always be one that serves. What stop returns is how often a client
// was served.
func (p *page) watch(ctx context.Context, always bool) (stop func() int) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	total := 0
	watching.Go(func() {
		down, last := 0, time.Now()
		for ctx.Err() == nil {
			served, known := 0, true
			for _, h := range p.hosts {
				before, err := p.status(ctx)
				s := h.serving()
				answer := h.get(ctx, "/readyz")
				known = known && answer != noAnswer
				if !strings.HasPrefix(answer, "ok") {
					continue
				}
				served++
				after, err2 := p.status(ctx)
				if err != nil || err2 != nil || s == (software{}) || s != h.serving() || before.revision != after.revision || after.unknown {
					continue // something changed while we looked
				}
				if release.MustParse(s.release).Less(after.MinimumCompatible) || after.Version.Less(release.MustParse(s.needs)) {
					p.t.Errorf("clients reach %s of release %s beside a status that excludes it: %s", h.name, s.release, after.Status)
				}
			}
			total += served
			switch {
			case served > 0:
				down, last = 0, time.Now()
			case known: // silence may be that of a busy host, for a minute
				down++
			}
			if always && (down == 3 || time.Since(last) > time.Minute) && ctx.Err() == nil {
				p.t.Error("no node serves")
				always = false
			}
			letRun(ctx, 50*time.Millisecond)
		}
	})
	return func() int {
		cancel()
		watching.Wait()
		return total
	}
}

// announcement is the status at a revision. An unknown one, which could not be read or stands for
// one that could not, says nothing of who serves already.
type announcement struct {
	gate.Status
	revision int64
	unknown  bool
}

func (p *page) status(ctx context.Context) (a announcement, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	answer, err := p.etcd.Get(ctx, etcd.Layout{Root: etcd.DefaultRoot}.Status())
	if err != nil || len(answer.Kvs) == 0 {
		return announcement{unknown: true}, err
	}
	a.Status, err = gate.ParseStatus(answer.Kvs[0].Value)
	a.revision, a.unknown = answer.Kvs[0].ModRevision, err != nil || a.Version.IsZero()
	return a, nil
}

// host is a node: a directory for what the steps find under /, and the processes of its units.
type host struct {
	t             *testing.T
	name, root    string
	address       string // where clients connect
	server        *cluster.APIServer
	software      software   // what the steps install
	busy          sync.Mutex // one unit starts or stops at a time
	mu            sync.Mutex
	running       map[string]*process.Process
	apiserverRuns software
}

func (h *host) file(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) end() {
	for name, p := range h.running {
		if h.t.Failed() {
			h.t.Logf("%s, %s says: %s", h.name, name, p.Stderr())
		}
		p.Kill()
	}
}

// serving is what the API server is of; nothing while it does not run.
func (h *host) serving() software {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.apiserverRuns
}

func (h *host) serves(s software) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.apiserverRuns = s
}

// noAnswer is what get returns when there is none in time.
const noAnswer = "no answer"

// get asks as a client does, and returns the answer or the error.
func (h *host) get(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+h.address+path, nil)
	if err != nil {
		return err.Error()
	}
	var text []byte
	answer, err := client.Do(request)
	if err == nil {
		defer answer.Body.Close()
		text, err = io.ReadAll(answer.Body) // what there is is shown
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return noAnswer
	case answer == nil:
		return err.Error()
	}
	return string(text)
}

// run runs the commands of a block as a person would.
func (h *host) run(ctx context.Context, commands []string) {
	h.t.Helper()
	for _, command := range commands {
		command, remark, _ := strings.Cut(command, " #")
		if strings.Contains(remark, "first node") && h.name != "n1" {
			continue
		}
		words := strings.Fields(command)
		switch {
		case words[0] == "kubectl":
			h.kubectl(ctx, words)
		case words[0] == "systemctl" && (words[1] == "start" || words[1] == "stop"):
			for _, unit := range words[2:] {
				if words[1] == "start" {
					h.start(ctx, unit)
				} else {
					h.stop(ctx, unit)
				}
			}
		case words[0] == "systemctl" && words[1] == "enable" && words[2] == "--now":
			for _, unit := range words[3:] {
				h.start(ctx, unit)
			}
		case words[0] == "systemctl":
			h.t.Fatalf("the page has a command that this test cannot run: %s", command)
		default:
			h.shell(ctx, command)
		}
	}
}

// here replaces what a node has under / with what this one has.
func (h *host) here(command string) string {
	return strings.NewReplacer(" /usr/bin/", " "+h.root+"/usr/bin/", " /etc/ironherd/", " "+h.root+"/etc/ironherd/").Replace(" " + command)[1:]
}

func (h *host) shell(ctx context.Context, command string) {
	h.t.Helper()
	if err := h.try(ctx, command); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) try(ctx context.Context, command string) error {
	c := exec.CommandContext(ctx, "bash", "-euc", h.here(command))
	c.Dir = filepath.Join(h.root, "download")
	c.Env = append(os.Environ(), "PATH="+h.root+"/usr/bin:"+os.Getenv("PATH"))
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %s: %w\n%s", h.name, command, err, out)
	}
	return nil
}

// lines returns the values of a key in the unit and its drop-ins.
func (h *host) lines(unit, key string) (values []string) {
	h.t.Helper()
	files, _ := filepath.Glob("../deploy/systemd/" + unit + ".d/*.conf")
	if _, err := os.Stat("../deploy/systemd/" + unit); err == nil {
		files = append(files, "../deploy/systemd/"+unit)
	}
	if len(files) == 0 {
		h.t.Fatalf("there is no unit %s", unit)
	}
	for _, file := range files {
		for line := range strings.Lines(read(h.t, file)) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
				values = append(values, value)
			}
		}
	}
	return values
}

// start starts a unit as systemd would: what comes before it to its end, then itself.
func (h *host) start(ctx context.Context, unit string) {
	h.t.Helper()
	if err := h.tryStart(ctx, unit); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) tryStart(ctx context.Context, unit string) error {
	for _, command := range h.lines(unit, "ExecStartPre") {
		if err := h.try(ctx, command); err != nil {
			return err
		}
	}
	if unit == "kube-apiserver.service" { // it tells systemd when it is ready
		h.serves(h.software)
		return h.server.StartAPIServer(ctx)
	}
	words := strings.Fields(h.here(h.lines(unit, "ExecStart")[0]))
	p, err := process.Start(ctx, words[0], words[1:]...)
	if err == nil {
		h.running[unit] = p
	}
	return err
}

func (h *host) stop(ctx context.Context, unit string) {
	h.t.Helper()
	if unit == "kube-apiserver.service" {
		h.server.KillAPIServer()
		h.serves(software{})
		return
	}
	if p := h.running[unit]; p != nil {
		if err := p.Stop(ctx); err != nil {
			h.t.Fatalf("%s: stop %s: %v", h.name, unit, err)
		}
		delete(h.running, unit)
	}
}
