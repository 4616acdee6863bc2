package sim_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packethost/packngo"
	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/sim"
)

// agentProcess plays the agent as a process: what the machine executes is this test's executable.
func agentProcess(args []string) int {
	root := os.Getenv("IRONHERD_AGENT_ROOT")
	switch args[0] {
	case "takeover":
		input, _ := io.ReadAll(os.Stdin)
		self, err := os.Executable()
		if err != nil {
			return 1
		}
		cmd := exec.Command(self, "run")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return 1
		}
		fmt.Printf("taken over with %q, %d variables", input, len(os.Environ()))
		fmt.Fprint(os.Stderr, "to stderr")
	case "run":
		if err := os.WriteFile(filepath.Join(root, "run/agent"), []byte(fmt.Sprint(os.Getpid())), 0o600); err != nil {
			return 1
		}
		<-time.After(time.Hour) // it is killed before
	case "reboot":
		if err := os.WriteFile(filepath.Join(root, "proc/sysrq-trigger"), []byte("b"), 0); err != nil {
			return 1
		}
		<-time.After(time.Hour) // it is killed before
	case "exit":
		return 42
	case "hang":
		fmt.Print("hanging")
		<-time.After(time.Hour) // it is killed before
	}
	return 0
}

func executable(tb testing.TB) string {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	return self
}

// processes counts the processes that run on machines below a directory.
func processes(t *testing.T, dir string) (n int) {
	t.Helper()
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range environments {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), "IRONHERD_AGENT_ROOT="+dir) {
			n++
		}
	}
	return n
}

func TestRealProcesses(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *sim.Config) {
		c.Machines, c.RealAgents = 1, 1
		c.Preload = map[string]string{"/root/agent/a": executable(t)}
	})
	id := r.createAll()[0]
	address := r.waitState(id, "active").GetNetworkInfo().PublicIPv4
	client := r.dial(address)
	if out, err := r.try(client, "/root/agent/a exit", ""); err == nil || !strings.Contains(err.Error(), "status 42") {
		t.Errorf("exit code: %q, %v", out, err)
	}
	if out := r.run(client, "/root/agent/a takeover", "input"); out != `taken over with "input", 2 variables` {
		t.Errorf("takeover said %q", out)
	}
	r.eventually("it runs", func() bool {
		info, err := os.Stat(r.root() + "/run/agent")
		return err == nil && info.Size() > 0 && processes(t, r.config.Dir) == 1 && r.world.Status().AgentsRunning == 1
	})
	pid := r.run(client, "cat /run/agent", "")

	// Signals.
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	out, err := session.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start("/root/agent/a hang"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	if err := session.Signal("TERM"); err != nil {
		t.Fatal(err)
	}
	if err := session.Wait(); err == nil || !strings.Contains(err.Error(), "signal TERM") {
		t.Errorf("after a signal: %v", err)
	}

	// Opened again, the world starts the agent again.
	r.restart()
	if n := processes(t, r.config.Dir); n > 1 {
		t.Errorf("%d processes after a restart", n)
	}
	r.eventually("it runs again", func() bool {
		text, err := os.ReadFile(r.root() + "/run/agent")
		return err == nil && len(text) > 0 && string(text) != pid && processes(t, r.config.Dir) == 1
	})

	// The machine restarts itself.
	boot := r.run(r.dialSoon(address), "cat /proc/sys/kernel/random/boot_id", "")
	_, _ = r.try(r.dial(address), "/root/agent/a reboot", "")
	r.waitBoot(address, boot)
	if n := processes(t, r.config.Dir); n != 0 {
		t.Errorf("%d processes after a reboot", n)
	}
	r.run(r.dial(address), "/root/agent/a takeover", "")
	r.close()
	if n := processes(t, r.config.Dir); n != 0 {
		t.Errorf("%d processes after the end of the world", n)
	}
}

// root is the file system of the machine in the first slot.
func (r *rig) root() string {
	roots, err := filepath.Glob(filepath.Join(r.config.Dir, "hosts", "00000-*"))
	if err != nil || len(roots) != 1 {
		r.t.Fatalf("machines: %v, %v", roots, err)
	}
	return roots[0]
}

// killedWorld is the configuration of a world that lives in a process of its own.
func killedWorld(dir string) sim.Config {
	self, _ := os.Executable()
	return sim.Config{
		Dir: dir, Seed: 9, Machines: 6, Speed: 100, RealAgents: 1, Agent: (&agents{}).run,
		Images: []sim.ImageSpec{{Name: "small", Size: 4 << 20}}, Preload: map[string]string{"/root/agent/a": self},
	}
}

// worldProcess is that process. It says when it is ready, and lives until it is killed.
func worldProcess(dir string) {
	w, err := sim.Open(context.Background(), killedWorld(dir))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := os.WriteFile(filepath.Join(dir, "ssh-port"), []byte(fmt.Sprint(w.SSHPort())), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ready", w.URL(), w.Token())
	_ = w.Run(context.Background())
}

// TestKilledWorlds kills a world, SIGKILL, at moments that nobody has chosen, and finds everything
// there that was acknowledged.
func TestKilledWorlds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var url string
	start := func() (*exec.Cmd, *packngo.Client) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), executable(t))
		cmd.Env = append(os.Environ(), "IRONHERD_SIM_TEST_WORLD="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		words := strings.Fields(line)
		if err != nil || len(words) != 3 || words[0] != "ready" || url != "" && words[1] != url {
			t.Fatalf("the world says %q (%v), it was at %s", line, err, url)
		}
		url = words[1]
		client, err := packngo.NewClientWithBaseURL("test", words[2], nil, url+"/")
		if err != nil {
			t.Fatal(err)
		}
		return cmd, client
	}
	made := map[string]bool{}
	for life := range 6 {
		cmd, client := start()
		projects, _, err := client.Projects.List(nil)
		if err != nil {
			t.Fatal(err)
		}
		kill := time.AfterFunc(time.Duration(20+60*life)*time.Millisecond, func() { _ = cmd.Process.Kill() })
		for err == nil { // until the world dies, or is full
			var d *packngo.Device
			d, _, err = client.Devices.Create(&packngo.DeviceCreateRequest{
				Hostname: "m", OS: "debian_13", ProjectID: projects[0].ID, Plan: "c3.small.x86", Metro: "any",
			})
			if err == nil {
				made[d.ID] = true
			}
		}
		_ = cmd.Wait()
		kill.Stop()
	}
	r := &rig{t: t, config: killedWorld(dir)}
	r.open()
	defer r.close()
	devices, _, err := r.client.Devices.List(r.world.ProjectID(), &packngo.ListOptions{SortBy: "id"})
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, d := range devices {
		there[d.ID] = true
	}
	for id := range made {
		if !there[id] {
			t.Errorf("device %s was acknowledged and is gone", id)
		}
	}
	if extra := len(there) - len(made); extra < 0 || extra > 6 {
		t.Errorf("%d devices were acknowledged, %d are there", len(made), len(there))
	}
	for id := range there {
		r.waitState(id, "active")
	}
	if s := r.world.Status(); s.Boots != len(there) || s.HostStates["provider"] != len(there) {
		t.Errorf("status %+v", s)
	}
}

// TestAgentsOutliveAKilledWorld: the process of an agent goes on while the world is dead, and is
// not started twice.
func TestAgentsOutliveAKilledWorld(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), executable(t))
	cmd.Env = append(os.Environ(), "IRONHERD_SIM_TEST_WORLD="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(line, err)
	}
	words := strings.Fields(line)
	client, err := packngo.NewClientWithBaseURL("test", words[2], nil, words[1]+"/")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, config: killedWorld(dir), client: client, key: newSigner(t)}
	address, port := r.firstMachine()
	shell, err := dialWith(address, port, r.key)
	if err != nil {
		t.Fatal(err)
	}
	if out := r.run(shell, "/root/agent/a takeover", ""); !strings.HasPrefix(out, "taken over") {
		t.Fatalf("takeover said %q", out)
	}
	pid := ""
	for limit := time.Now().Add(2 * time.Minute); pid == "" && time.Now().Before(limit); {
		text, _ := os.ReadFile(r.root() + "/run/agent")
		pid = string(text)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	_ = shell.Close()
	if n := processes(t, dir); n != 1 {
		t.Errorf("%d processes while the world is dead, want 1", n)
	}
	left := exec.CommandContext(t.Context(), "sleep", "60")
	left.Env = []string{"IRONHERD_AGENT_ROOT=" + dir + "/hosts/00009-deleted"}
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	r.open()
	if err := left.Wait(); err == nil || t.Context().Err() != nil {
		t.Errorf("a process of a machine that is gone ended with %v", err)
	}
	r.dialSoon(address)
	if text, _ := os.ReadFile(r.root() + "/run/agent"); string(text) != pid || processes(t, dir) != 1 {
		t.Errorf("agent %q (%d processes), it was %q", text, processes(t, dir), pid)
	}
	r.close()
	if n := processes(t, dir); n != 0 {
		t.Errorf("%d processes after the end of the world", n)
	}
}

// firstMachine makes the machine in the first slot, which runs real processes, without a world in
// this process to ask.
func (r *rig) firstMachine() (address string, port int) {
	r.t.Helper()
	projects, _, err := r.client.Projects.List(nil)
	if err != nil {
		r.t.Fatal(err)
	}
	project := projects[0].ID
	_, _, err = r.client.SSHKeys.Create(&packngo.SSHKeyCreateRequest{Label: "test", Key: string(ssh.MarshalAuthorizedKey(r.key.PublicKey())), ProjectID: project})
	if err != nil {
		r.t.Fatal(err)
	}
	reservations, _, err := r.client.HardwareReservations.List(project, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, reservation := range reservations {
		d, _, err := r.client.Devices.Create(&packngo.DeviceCreateRequest{
			Hostname: "m", OS: "debian_13", ProjectID: project, HardwareReservationID: reservation.ID,
		})
		for err == nil && d.State != "active" {
			d, _, err = r.client.Devices.Get(d.ID, nil)
		}
		if err != nil {
			r.t.Fatal(err)
		}
		if address = d.GetNetworkInfo().PublicIPv4; address == "127.24.0.2" {
			break
		}
		if _, err := r.client.Devices.Delete(d.ID, true); err != nil {
			r.t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(r.config.Dir, "ssh-port"))
	if err == nil {
		port, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return address, port
}
