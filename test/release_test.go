package test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/process"
)

// gateScript is what runs on a gated host in the place of each command that comes over SSH. It asks
// before the command and after it, and goes on when it is answered. The pipe lets a command go on
// that nobody reads from any more, as if it had begun before.
const gateScript = `#!/bin/sh
ask() { mkfifo "$0.d/$$.$1" && echo "$$ $1" > "$0.d/asks" && read -r go < "$0.d/$$.$1"; }
printf '%s' "$SSH_ORIGINAL_COMMAND" > "$0.d/$$"
ask before
case "$SSH_ORIGINAL_COMMAND" in
internal-sftp) /usr/lib/openssh/sftp-server ;;
*) { sh -c "$SSH_ORIGINAL_COMMAND"; echo $? > "$0.d/$$.code"; } | cat ;;
esac
ask after
exit "$(cat "$0.d/$$.code" 2> /dev/null || echo 0)"
`

// errand is what a command over SSH is for.
type errand string

const (
	errandLook     errand = "look"     // what the host is
	errandFiles    errand = "files"    // the agent's executable is brought
	errandTakeOver errand = "takeover" // the agent is put in charge
	errandLeave    errand = "leave"    // the agent is stopped, and its files are removed
)

func errandOf(command string) errand {
	switch {
	case command == "internal-sftp":
		return errandFiles
	case strings.Contains(command, "ironherd-agent-") && strings.Contains(command, " takeover"):
		return errandTakeOver
	case strings.Contains(command, "ironherd-agent-") && strings.Contains(command, " leave "):
		return errandLeave
	}
	return errandLook
}

// gatedHost is a host that a test can stop before each command and after it.
type gatedHost struct {
	*realHost
	name string
	// front is before its SSH server.
	front *process.Balancer
	// untouched are the files that it had in the beginning.
	untouched []string

	mu   sync.Mutex
	hook func(process.Moment, errand)
	done map[errand]int
}

// private are the directories that a gated host has for itself. The agent writes nowhere else.
var private = []string{"root", "run", "var/lib", "var/log"}

func startGatedHost(t *testing.T, n int) *gatedHost {
	t.Helper()
	script := filepath.Join(t.TempDir(), "gate")
	if err := errors.Join(os.WriteFile(script, []byte(gateScript), 0o755), os.Mkdir(script+".d", 0o700), syscall.Mkfifo(script+".d/asks", 0o600)); err != nil {
		t.Fatal(err)
	}
	h := &gatedHost{
		realHost: startHostAt(t, fmt.Sprintf("127.77.8.%d", n), "mount -t tmpfs -o mode=700 none /root && ", "ForceCommand "+script),
		name:     fmt.Sprintf("host-%d", n), done: make(map[errand]int),
	}
	asks, err := os.OpenFile(script+".d/asks", os.O_RDWR, 0) // so that it never ends
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var serving sync.WaitGroup
	serving.Go(func() {
		for lines := bufio.NewScanner(asks); lines.Scan(); {
			id, moment, _ := strings.Cut(lines.Text(), " ")
			serving.Go(func() { h.answer(ctx, script+".d/"+id, process.Moment(moment)) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = asks.Close()
		serving.Wait()
	})
	if h.front, err = process.NewBalancer(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.front.Close)
	h.front.Forward(fmt.Sprintf("%s:%d", h.address, h.port))
	h.untouched = h.files(t)
	return h
}

// answer lets a command go on, when the hook has returned.
func (h *gatedHost) answer(ctx context.Context, path string, at process.Moment) {
	command, err := os.ReadFile(path)
	if err != nil {
		return
	}
	what := errandOf(string(command))
	h.mu.Lock()
	hook := h.hook
	if at == process.After {
		h.done[what]++
	}
	h.mu.Unlock()
	if hook != nil {
		hook(at, what)
	}
	for ctx.Err() == nil { // until the host has opened it
		file, err := os.OpenFile(path+"."+string(at), os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			_, _ = file.WriteString("go\n")
			_ = file.Close()
			return
		}
		letRun(ctx, 5*time.Millisecond)
	}
}

func (h *gatedHost) stopAt(hook func(process.Moment, errand)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hook = hook
}

// times is how often an errand was run to its end.
func (h *gatedHost) times(what errand) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.done[what]
}

// files lists the host's own files.
func (h *gatedHost) files(t *testing.T) (all []string) {
	t.Helper()
	root := fmt.Sprintf("/proc/%d/root", h.pid)
	for _, directory := range private {
		err := filepath.WalkDir(filepath.Join(root, directory), func(path string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) { // it goes at this moment
				return nil
			}
			all = append(all, strings.TrimPrefix(path, root))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// processes lists what runs on the host besides its SSH server and the gate.
func (h *gatedHost) processes(t *testing.T) (all []string) {
	t.Helper()
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid_for_children", h.pid))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		// of a process that has ended: nothing
		namespace, _ := os.Readlink(filepath.Join("/proc", entry.Name(), "ns/pid"))
		command, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "comm"))
		if name := strings.TrimSpace(string(command)); namespace == own && name != "" && name != "gate" && !strings.HasPrefix(name, "sshd") {
			all = append(all, name)
		}
	}
	return all
}

// clean returns what is left of us on the host.
func (h *gatedHost) clean(t *testing.T) error {
	t.Helper()
	if files, running := h.files(t), h.processes(t); !slices.Equal(files, h.untouched) || len(running) > 0 {
		return fmt.Errorf("%s has the files %q, not %q, and runs %q", h.name, files, h.untouched, running)
	}
	return nil
}

// startRack starts gated hosts, and a control plane that has them on its list.
func startRack(ctx context.Context, t *testing.T, n int) (*process.Herd, []*gatedHost) {
	t.Helper()
	dir := shortDir(t)
	home := filepath.Join(dir, "world")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	hosts := make([]*gatedHost, n)
	var list strings.Builder
	for i := range hosts {
		h := startGatedHost(t, i+1)
		hosts[i] = h
		if err := os.WriteFile(h.key+".pub", []byte(read(t, hosts[0].key+".pub")), 0o600); err != nil {
			t.Fatal(err)
		}
		address, port, _ := strings.Cut(h.front.Address(), ":")
		fmt.Fprintf(&list, "  - id: %s\n    address: %s\n    port: %s\n    host_key: %s\n", h.name, address, port, h.hostKey)
	}
	c := listed(t, home, hosts[0].key, list.String())
	c.Policy.ProvisionInterval = time.Second
	write(t, home, c)
	herd := &process.Herd{Ironherd: ironherd, Dir: dir, Machines: n}
	t.Cleanup(func() {
		if err := stop(t, herd); err != nil {
			t.Error(err)
		}
	})
	startPlane(ctx, t, herd)
	awaitAvailable(ctx, t, herd, n)
	return herd, hosts
}

func awaitAvailable(ctx context.Context, t *testing.T, herd *process.Herd, n int) {
	t.Helper()
	if err := herd.AwaitState(ctx, string(fleet.StateAvailable), n, func(line string) { t.Log(line) }); err != nil {
		t.Fatal(err)
	}
	if all := machines(ctx, t, herd); len(all) != n {
		t.Fatalf("%d of %d machines are available", n, len(all))
	}
}

// released is a release of a host of a list, during which the control plane is killed.
type released struct {
	killed
	host *gatedHost
	// at is a moment of an errand: the point, unless it is one of those of every operation.
	at   process.Moment
	what errand
	// late: what was begun on the host when the control plane was killed goes on long after.
	late bool
	// leaves is how often the host is left, and begun how often that is begun.
	leaves, begun int
}

// TestKilledDuringReleasesOfListedHosts kills the control plane after each step of the release of a
// host that is reached over SSH alone. The next one goes on: the agent is stopped and its files are
// removed, the machine is forgotten, and nobody takes the host again until a person allows it. What
// a dead control plane had begun on the host, and goes on later, does no harm to the next machine
// (docs/invariants.md, rule 7).
func TestKilledDuringReleasesOfListedHosts(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 6*time.Minute)
	all := []*released{
		{killed: killed{point: killRequested}, leaves: 1, begun: 1},
		{killed: killed{point: killBegun}, leaves: 1, begun: 2},
		{at: process.Before, what: errandLook, leaves: 1, begun: 2},
		{at: process.After, what: errandLook, leaves: 1, begun: 2},
		{at: process.Before, what: errandFiles, leaves: 1, begun: 2},
		{at: process.Before, what: errandLeave, leaves: 2, begun: 2}, // what was begun goes on
		{at: process.After, what: errandLeave, leaves: 2, begun: 2},  // nobody heard of the end
		{killed: killed{point: killEnded}, leaves: 1, begun: 1},
		{at: process.Before, what: errandLeave, late: true, leaves: 1, begun: 2},
	}
	herd, hosts := startRack(ctx, t, len(all))
	orphan, goOn := context.WithCancel(ctx)
	for i, r := range all {
		r.host, r.verb, r.name = hosts[i], []string{"release"}, hosts[i].name
		if r.point == "" {
			r.point = killPoint(fmt.Sprintf("%s %s", r.at, r.what))
		}
		for _, m := range machines(ctx, t, herd) {
			if m.GetHostname() == r.name {
				r.id = m.GetId()
			}
		}
		if r.host.clean(t) == nil || r.host.times(errandTakeOver) != 1 {
			t.Fatalf("%s was not taken over once", r.name)
		}
	}
	for _, r := range all {
		r.killDuring(ctx, t, herd, orphan.Done())
		eventually(t, func() error { return errors.Join(endedOnce(ctx, herd, &r.killed), r.host.clean(t)) })
	}
	letRun(ctx, 3*time.Second) // some passes
	for _, r := range all {
		if n := r.host.times(errandLeave); n != r.leaves || r.host.times(errandTakeOver) != 1 {
			t.Errorf("%s: the host was left %d times, want %d, and taken over %d times", r, n, r.leaves, r.host.times(errandTakeOver))
		}
		if told := historyOf(ctx, t, herd, r.id); strings.Count(told, "operation begun") != r.begun {
			t.Errorf("%s: it is to be begun %d times:\n%s", r, r.begun, told)
		}
		if _, err := herd.Client().GetMachine(ctx, &fleetv1.GetMachineRequest{Machine: r.id}); err == nil {
			t.Errorf("%s: the machine is there", r)
		}
		if err := r.host.clean(t); err != nil {
			t.Errorf("%s: %v", r, err)
		}
	}
	if left := machines(ctx, t, herd); len(left) > 0 {
		t.Errorf("there are machines: %v", left)
	}

	// A person allows the hosts to be taken again. Then what was begun long ago goes on at one.
	names := make([]string, len(all))
	for i, r := range all {
		names[i] = r.name
	}
	cli(ctx, t, herd, "provider", "retry", "rack", "--capacity", strings.Join(names, ","), "--reason", "they are wanted again")
	awaitAvailable(ctx, t, herd, len(all))
	late := all[len(all)-1]
	goOn()
	eventually(t, func() error {
		if n := late.host.times(errandLeave); n != late.leaves+1 {
			return fmt.Errorf("the host was left %d times", n)
		}
		return nil
	})
	letRun(ctx, 2*time.Second)
	for _, r := range all {
		if n, running := r.host.times(errandTakeOver), r.host.processes(t); n != 2 || len(running) != 1 {
			t.Errorf("%s was taken over %d times, and runs %q", r.name, n, running)
		}
	}
	awaitAvailable(ctx, t, herd, len(all))
	if err := stop(t, herd); err != nil {
		t.Fatal(err)
	}
	if err := herd.CheckDatabase(ctx); err != nil {
		t.Error(err)
	}
}

// killDuring asks for the release, has the control plane killed at the point, and starts the next
// one. An orphan goes on when the channel is closed.
func (r *released) killDuring(ctx context.Context, t *testing.T, herd *process.Herd, orphan <-chan struct{}) {
	t.Helper()
	asked, dead := make(chan struct{}), make(chan struct{})
	switch r.point {
	case killRequested:
		herd.KillPlane()
		// Without the role that releases.
		herd.PlaneArgs = []string{"--set", "roles=provisioner,initializer,updater,recoverer,agent-api,operator-api"}
		startPlane(ctx, t, herd)
		herd.PlaneArgs = nil
	case killBegun:
		r.host.front.Hold(process.ToServer)
	case killEnded:
	default:
		var killing sync.Mutex
		r.host.stopAt(func(at process.Moment, what errand) {
			if at != r.at || what != r.what || !killing.TryLock() { // it stays locked
				return
			}
			select {
			case <-asked:
			case <-ctx.Done():
				return
			}
			herd.KillPlane()
			close(dead)
			if r.late {
				<-orphan
			}
		})
	}
	cli(ctx, t, herd, "machine", "release", r.name, "--reason", "a test", "--yes")
	close(asked)
	told := ""
	switch r.point {
	case killRequested:
		told = historyOf(ctx, t, herd, r.id)
		herd.KillPlane()
		if strings.Contains(told, "operation begun") {
			t.Fatalf("%s: it was begun", r)
		}
	case killBegun, killEnded:
		event := map[killPoint]string{killBegun: "operation begun", killEnded: "operation done"}[r.point]
		for !strings.Contains(told, event) {
			if told = historyOf(ctx, t, herd, r.id); ctx.Err() != nil {
				t.Fatalf("%s: the point never came:\n%s", r, told)
			}
		}
		herd.KillPlane()
		r.host.front.Let(process.ToServer)
	default:
		select {
		case <-dead:
		case <-ctx.Done():
			t.Fatalf("%s: the point never came", r)
		}
	}
	startPlane(ctx, t, herd)
}
