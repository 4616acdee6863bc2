package test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/etcdtest"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/test/cluster"
)

// walked are the releases of the walks. The second gets on with the first in both directions. The
// API server of the third needs its own resources. The last gets on with nobody.
var walked = []software{
	{"v1.0.0", "v1.0.0", "v1.0.0"}, {"v1.1.0", "v1.0.0", "v1.0.0"}, {"v1.2.0", "v1.2.0", "v1.1.0"}, {"v2.0.0", "v2.0.0", "v2.0.0"},
}

// TestWalks takes three nodes from release to release at random, up and down, with the real
// programs, three members of etcd and three API servers, while processes are killed and stopped,
// nodes are cut off or unheard, a member goes down, the status is garbled, manifests vanish and
// come back, and somebody deletes a role. The releases are one program that goes by several names,
// so their own sets are alike; their manifests differ. No client may be served by an API server
// that the status excludes, no object of a user may vanish, nor one that the manifests of every
// release have. When the storm is over, there must be what the release of the nodes wants, and
// nothing that another one has left. IRONHERD_TORTURE_ROUNDS says how many walks, and
// IRONHERD_TORTURE_SEED which.
func TestWalks(t *testing.T) {
	t.Parallel()
	walks, seed := 2, uint64(12)
	if n, err := strconv.Atoi(os.Getenv("IRONHERD_TORTURE_ROUNDS")); err == nil && n > 0 {
		walks, seed = n, uint64(time.Now().UnixNano())
	}
	if n, err := strconv.ParseUint(os.Getenv("IRONHERD_TORTURE_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("seed %d", seed)
	ctx := bounded(t, time.Duration(walks+1)*10*time.Minute)
	s := newStorm(ctx, t, seed)
	s.install(walked[0])
	for _, h := range s.hosts {
		s.furnish(h, walked[0])
	}
	s.heal(ctx)
	s.settled(ctx, walked[0])
	s.arrived(ctx, walked[0])
	user := s.createUsers(ctx)
	began, served, slowest := time.Now(), 0, time.Duration(0)
	for n := range walks {
		target := walked[s.random.IntN(len(walked))]
		calm, stop := s.blow(ctx), s.watch(ctx, false)
		for _, i := range s.random.Perm(len(s.hosts)) {
			if s.random.IntN(4) == 0 { // by way of another one
				s.change(ctx, s.hosts[i], walked[s.random.IntN(len(walked))])
			}
			s.change(ctx, s.hosts[i], target)
		}
		calm()
		quiet := time.Now()
		s.heal(ctx)
		bound, cancel := context.WithTimeout(ctx, 5*time.Minute)
		s.settled(bound, target)
		s.arrived(bound, target)
		cancel()
		slowest = max(slowest, time.Since(quiet))
		served += stop()
		t.Logf("walk %d to %s, well %v after the storm; so far %v", n+1, target.release, time.Since(quiet).Round(100*time.Millisecond), s.count)
		if now := s.users(ctx); now != user {
			t.Fatalf("walk %d: what must stay was %s, and is %s", n, user, now)
		}
		if t.Failed() {
			t.Fatalf("walk %d to %s failed", n, target.release)
		}
	}
	t.Logf("%d walks in %v: %v; clients were served %d times; all was well again %v after a storm at the latest", walks,
		time.Since(began).Round(time.Second), s.count, served, slowest.Round(100*time.Millisecond))
	if served == 0 {
		t.Error("clients were never served: this test has seen nothing")
	}
}

// storm is three nodes, and what goes wrong with them.
type storm struct {
	*page
	random  *rand.Rand
	members *etcdtest.Cluster
	links   [][]*etcdtest.Link // of each node, to each member
	// settings are the configuration of each node that no release changes.
	settings map[*host]string

	mu    sync.Mutex // of the units of all nodes: one start or stop at a time
	count tally
}

// tally counts what went wrong.
type tally map[string]int

func newStorm(ctx context.Context, t *testing.T, seed uint64) *storm {
	t.Helper()
	members, files := etcdtest.New(t, 3), t.TempDir()
	if err := cluster.WriteFiles(files); err != nil {
		t.Fatal(err)
	}
	s := &storm{
		page:   &page{t: t, program: reconcilerProgram, etcd: dial(ctx, t, members.Endpoints()...)},
		random: rand.New(rand.NewPCG(seed, 12)), members: members, count: tally{}, settings: map[*host]string{},
	}
	for range 3 {
		var links []*etcdtest.Link
		var urls []string
		for _, endpoint := range members.Endpoints() {
			link := etcdtest.NewLink(t, endpoint)
			links, urls = append(links, link), append(urls, link.URL())
		}
		server, err := cluster.NewAPIServer(ctx, files, t.TempDir(), strings.Join(urls, ","))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.KillAPIServer)
		if err := server.StartAPIServer(ctx); err != nil { // it makes its certificates
			t.Fatal(err)
		}
		server.KillAPIServer()
		kubeconfig, err := server.Kubeconfig()
		if err != nil {
			t.Fatal(err)
		}
		s.links = append(s.links, links)
		s.add(server, kubeconfig, strings.Join(urls, ", "))
		h := s.hosts[len(s.hosts)-1]
		s.settings[h] = read(t, filepath.Join(h.root, "etc/ironherd/reconciler.yaml"))
	}
	return s
}

// units of a node, in the order in which they start.
var units = []string{"ironherd-reconciler.service", "kube-apiserver.service", "kube-apiserver-expose.service"}

// up starts what does not run, as systemd does, until it runs.
func (s *storm) up(ctx context.Context, h *host) error {
	for _, unit := range units {
		for !s.runs(h, unit) {
			h.busy.Lock()
			attempt, cancel := context.WithTimeout(ctx, 30*time.Second)
			err := h.tryStart(attempt, unit)
			cancel()
			if err != nil && unit == "kube-apiserver.service" {
				h.server.KillAPIServer()
				h.serves(software{})
			}
			h.busy.Unlock()
			if ctx.Err() != nil {
				return fmt.Errorf("%s: %s does not start: %w", h.name, unit, err)
			}
			if err != nil {
				letRun(ctx, 300*time.Millisecond)
			}
		}
	}
	return nil
}

func (s *storm) runs(h *host, unit string) bool {
	h.busy.Lock()
	defer h.busy.Unlock()
	if unit == "kube-apiserver.service" {
		return h.serving() != software{}
	}
	p := h.running[unit]
	if p == nil {
		return false
	}
	select {
	case <-p.Ended():
		return false
	default:
		return true
	}
}

// change takes a node to a release, as the page says: everything stops, and starts again in order.
func (s *storm) change(ctx context.Context, h *host, to software) {
	h.busy.Lock()
	for _, unit := range []string{units[2], units[1], units[0]} {
		s.kill(h, unit)
	}
	h.install(s.program, to)
	s.furnish(h, to)
	if err := h.try(ctx, "install -m 0755 ironherd-reconciler /usr/bin/ironherd-reconciler"); err != nil {
		s.t.Error(err)
	}
	h.busy.Unlock()
	if err := s.up(ctx, h); err != nil {
		s.t.Fatal(err)
	}
}

// kill ends a unit.
func (s *storm) kill(h *host, unit string) {
	if unit == "kube-apiserver.service" {
		h.server.KillAPIServer()
		h.serves(software{})
	} else if p := h.running[unit]; p != nil {
		p.Kill()
	}
}

// pause stops a unit without ending it.
func (s *storm) pause(h *host, unit string) (resume func()) {
	if unit == "kube-apiserver.service" {
		if h.serving() == (software{}) || h.server.PauseAPIServer() != nil {
			return nil
		}
		return func() { _ = h.server.ResumeAPIServer() } // it may have been killed since
	}
	p := h.running[unit]
	if p == nil || p.Signal(syscall.SIGSTOP) != nil {
		return nil
	}
	return func() { _ = p.Signal(syscall.SIGCONT) }
}

// blow lets things go wrong, one after the other, until calm is called.
func (s *storm) blow(ctx context.Context) (calm func()) {
	ctx, cancel := context.WithCancel(ctx)
	random := rand.New(rand.NewPCG(s.random.Uint64(), 1))
	var blowing sync.WaitGroup
	blowing.Go(func() {
		for ctx.Err() == nil {
			s.wrong(ctx, random)
			letRun(ctx, time.Duration(300+random.IntN(2500))*time.Millisecond)
		}
	})
	return func() {
		cancel()
		blowing.Wait()
	}
}

// wrong lets one thing go wrong.
func (s *storm) wrong(ctx context.Context, random *rand.Rand) {
	i := random.IntN(len(s.hosts))
	h, unit := s.hosts[i], units[random.IntN(len(units))]
	while := time.Duration(random.IntN(8000)) * time.Millisecond // the TTL is 3 s
	switch what := random.IntN(14); what {
	case 0, 1, 2: // systemd starts it again
		h.busy.Lock()
		s.kill(h, unit)
		h.busy.Unlock()
		s.tell("killed")
		_ = s.up(ctx, h) // heal does, if the storm is over before
	case 3, 4, 5:
		h.busy.Lock()
		resume := s.pause(h, unit)
		h.busy.Unlock()
		if resume != nil {
			letRun(ctx, while)
			resume()
			s.tell("stopped for a while")
		}
	case 6, 7:
		how, tell := (*etcdtest.Link).Cut, "cut off"
		if what == 7 { // nobody is told, and what was under way arrives late
			how, tell = (*etcdtest.Link).Hang, "unheard"
		}
		for _, link := range s.links[i] {
			how(link)
		}
		letRun(ctx, while)
		for _, link := range s.links[i] {
			link.Restore()
		}
		s.tell(tell)
	case 8:
		member := random.IntN(3)
		s.members.Down(member)
		letRun(ctx, while)
		if err := s.members.Up(context.WithoutCancel(ctx), member); err != nil {
			s.t.Error(err)
		}
		s.tell("members down")
	case 9:
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := s.etcd.Put(short, etcd.Layout{Root: etcd.DefaultRoot}.Status(), "{garbled"); err == nil {
			s.tell("status garbled")
		}
	case 10, 11:
		h.busy.Lock()
		mount, err := h.unmount()
		h.busy.Unlock()
		letRun(ctx, while)
		h.busy.Lock()
		err = errors.Join(err, mount())
		h.busy.Unlock()
		if err != nil {
			s.t.Error(err)
		}
		s.tell("manifests vanished")
	case 12, 13:
		if s.lose(ctx, h) {
			s.tell("role deleted")
		}
	}
}

func (s *storm) tell(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count[what]++
}

// heal starts what does not run.
func (s *storm) heal(ctx context.Context) {
	s.t.Helper()
	for _, h := range s.hosts {
		if err := s.up(ctx, h); err != nil {
			s.t.Fatal(err)
		}
	}
}
