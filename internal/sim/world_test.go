package sim_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/packethost/packngo"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/sim"
)

// TestMain is also the agent that machines execute as a process, and the world that is killed.
func TestMain(m *testing.M) {
	if os.Getenv("IRONHERD_AGENT_ROOT") != "" {
		os.Exit(agentProcess(os.Args[1:]))
	}
	if dir := os.Getenv("IRONHERD_SIM_TEST_WORLD"); dir != "" {
		worldProcess(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func TestEveryMachineBecomesReachable(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *sim.Config) { c.Machines = 5 })
	ids := r.createAll()
	addresses := map[string]bool{}
	for _, id := range ids {
		d := r.waitState(id, "active")
		address := d.GetNetworkInfo().PublicIPv4
		if !strings.HasPrefix(address, "127.20.0.") || addresses[address] {
			t.Errorf("device %s has address %q", id, address)
		}
		addresses[address] = true
		client := r.dial(address)
		if got := r.run(client, "hostname; cat /proc/sys/kernel/random/boot_id", ""); !strings.HasPrefix(got, d.Hostname+"\n") {
			t.Errorf("%s says %q", d.Hostname, got)
		}
		if _, err := dialWith(address, r.world.SSHPort(), newSigner(t)); err == nil {
			t.Errorf("%s admits a key that nobody registered", d.Hostname)
		}
		for _, file := range []string{"/sys/class/dmi/id/product_serial", "/proc/meminfo", "/sys/class/net/eno1/address"} {
			if r.run(client, "cat "+file, "") == "" {
				t.Errorf("%s is empty", file)
			}
		}
	}
	s := r.world.Status()
	if s.Devices != 5 || s.DevicesMade != 5 || s.DeviceStates["active"] != 5 || s.HostStates["provider"] != 5 || s.Boots != 5 || s.DuplicateDevices != 0 {
		t.Errorf("status %+v", s)
	}
}

func TestPowerIsPower(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *sim.Config) { c.Machines = 1 })
	id := r.createAll()[0]
	address := r.waitState(id, "active").GetNetworkInfo().PublicIPv4
	boot := func() string { return r.run(r.dial(address), "cat /proc/sys/kernel/random/boot_id", "") }
	key := r.hostKey(address)
	first := boot()
	r.upload(address, "/root/agent/a", "agent")
	r.run(r.dial(address), "echo state > /root/state; echo volatile > /run/volatile", "")

	client := r.dial(address)
	r.act(id, "reboot")
	if err := client.Wait(); err == nil {
		t.Error("the connection outlived the machine")
	}
	second := r.waitBoot(address, first)
	if got := r.run(r.dial(address), "cat /root/state; test -e /run/volatile || echo gone", ""); got != "state\ngone\n" {
		t.Errorf("after a reboot: %q", got)
	}
	r.act(id, "power_off")
	r.waitState(id, "inactive")
	if conn, err := net.Dial("tcp", net.JoinHostPort(address, strconv.Itoa(r.world.SSHPort()))); err == nil {
		_ = conn.Close()
		t.Error("a machine without power accepts connections")
	}
	r.act(id, "power_on")
	r.waitState(id, "active")
	third := r.waitBoot(address, second)
	if key2 := r.hostKey(address); key2 != key {
		t.Error("a reboot changed the host key")
	}
	r.act(id, "reinstall")
	r.waitState(id, "active")
	r.waitBoot(address, third)
	if key2 := r.hostKey(address); key2 == key {
		t.Error("a reinstall left the host key")
	}
	if got := r.run(r.dial(address), "test -e /root/state || echo gone", ""); got != "gone\n" {
		t.Error("a reinstall left files")
	}
	if _, err := r.client.Devices.Delete(id, true); err != nil {
		t.Fatal(err)
	}
	r.eventually("the machine is gone", func() bool {
		entries, err := os.ReadDir(filepath.Join(r.config.Dir, "hosts"))
		return err == nil && len(entries) == 0
	})
	if s := r.world.Status(); s.Boots != 4 || len(s.HostStates) != 0 {
		t.Errorf("status %+v", s)
	}
}

func TestAnInstalledSystemMustBeWhatItIsSaidToBe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		how, states string
	}{
		{how: "good", states: "installed"},
		{how: "flipped", states: "dead"},
		{how: "short", states: "dead"},
		{how: "unknown", states: "dead"},
		{how: "nothing", states: "provider"},
		{how: "damaged-area", states: "provider"},
	} {
		t.Run(c.how, func(t *testing.T) {
			t.Parallel()
			plane := newPlane(t)
			r := newRig(t, func(cfg *sim.Config) { cfg.Machines = 1 })
			id := r.createAll()[0]
			address := r.waitState(id, "active").GetNetworkInfo().PublicIPv4
			r.upload(address, "/root/agent/a", "agent")
			client := r.dial(address)
			// the machine restarts under it
			_, _ = r.try(client, "/root/agent/a install "+c.how, plane.order(t, r.world.Images()[0]))
			_ = client.Wait()
			r.eventually("the machine is "+c.states, func() bool { return r.world.Status().HostStates[c.states] == 1 })
			s := r.world.Status()
			switch c.states {
			case "installed":
				if s.InstallsVerified != 1 || s.InstallsRejected != 0 {
					t.Errorf("status %+v", s)
				}
				r.eventually("it was heard", func() bool { return r.world.Status().UpAcknowledged == 1 })
				if got := plane.heard(); len(got) != 1 || got[0].GetMachineId() != "machine-1" || string(got[0].GetSecret()) != "secret" {
					t.Errorf("heard %v", got)
				}
				if got := r.run(r.dial(address), "test -e /root/agent/a || echo gone", ""); got != "gone\n" {
					t.Error("the installed system has the agent of the one before it")
				}
				if calls := plane.refusals(); calls < 2 {
					t.Errorf("it was heard after %d refusals, so that retrying was not tried", calls)
				}
				key := r.hostKey(address)
				r.act(id, "reinstall")
				r.waitState(id, "active")
				if s := r.world.Status(); s.HostStates["provider"] != 1 || s.HostStates["installed"] != 0 || r.hostKey(address) == key {
					t.Errorf("a reinstall by the provider leaves what was installed, or its host key: %+v", s)
				}
			case "dead":
				if s.InstallsVerified != 0 || s.InstallsRejected != 1 || len(plane.heard()) != 0 {
					t.Errorf("status %+v", s)
				}
				r.silent([]string{address})
			default:
				r.waitBoot(address, "")
				if s.InstallsVerified+s.InstallsRejected != 0 {
					t.Errorf("status %+v", s)
				}
			}
		})
	}
}

func TestAgentsInThisProcessEndWithTheirMachine(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *sim.Config) { c.Machines = 1 })
	id := r.createAll()[0]
	address := r.waitState(id, "active").GetNetworkInfo().PublicIPv4
	r.upload(address, "/root/agent/a", "agent")
	if out := r.run(r.dial(address), "/root/agent/a takeover", ""); out != "taken over" {
		t.Fatalf("takeover said %q", out)
	}
	r.eventually("it runs", func() bool { return r.agents.running(address) == 1 && r.world.Status().AgentsRunning == 1 })

	// A world that is opened again starts it again, with run.
	r.restart()
	r.eventually("it runs again", func() bool { return r.agents.running(address) == 1 && r.world.Status().AgentsRunning == 1 })
	if got := r.agents.last(address); !slices.Equal(got, []string{"run"}) {
		t.Errorf("it was started with %q", got)
	}
	r.act(id, "reboot")
	r.eventually("it is gone", func() bool { return r.agents.running(address) == 0 && r.world.Status().AgentsRunning == 0 })
	if out := r.run(r.dialSoon(address), "/root/agent/a fail", ""); out != "" {
		t.Errorf("failing said %q", out)
	}
}

func TestARestartKeepsEverything(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *sim.Config) { c.Machines, c.Listen = 4, "127.0.0.1:0" })
	ids := r.createAll()
	type facts struct{ address, boot, key, hostname string }
	look := func(id string) facts {
		d := r.waitState(id, "active")
		address := d.GetNetworkInfo().PublicIPv4
		return facts{address, r.run(r.dialSoon(address), "cat /proc/sys/kernel/random/boot_id", ""), r.hostKey(address), d.Hostname}
	}
	before := map[string]facts{}
	for _, id := range ids {
		before[id] = look(id)
	}
	url, token, port, project, image := r.world.URL(), r.world.Token(), r.world.SSHPort(), r.world.ProjectID(), r.world.Images()[0]
	r.act(ids[3], "power_off")
	r.waitState(ids[3], "inactive")
	r.restart()
	if r.world.URL() != url || r.world.Token() != token || r.world.SSHPort() != port || r.world.ProjectID() != project || r.world.Images()[0] != image {
		t.Errorf("the world is at %s, SSH port %d; it was at %s, %d", r.world.URL(), r.world.SSHPort(), url, port)
	}
	for _, id := range ids[:3] {
		if now := look(id); now != before[id] {
			t.Errorf("device %s: %+v, before %+v", id, now, before[id])
		}
	}
	if s := r.world.Status(); s.HostStates["off"] != 1 || s.Boots != 4 {
		t.Errorf("status %+v", s)
	}
	if _, err := sim.Open(t.Context(), r.config); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a second world in one directory: %v", err)
	}
}

// TestADirectoryThatIsNotOursToMake: the system lets nobody make this one, not even root.
func TestADirectoryThatIsNotOursToMake(t *testing.T) {
	t.Parallel()
	_, err := sim.Open(t.Context(), sim.Config{Dir: "/sys/herd/world", Machines: 1, RealAgents: 1})
	if err == nil || !strings.HasPrefix(err.Error(), "directory of the world: mkdir /sys/herd: ") || !strings.HasSuffix(err.Error(), ": name one that can be made") {
		t.Errorf("got %v", err)
	}
}

func TestFaultsFireAndAreCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *sim.Config) {
		c.Machines = 2
		c.Faults = "ssh-refused=#1,agent-start=#1+2,lost-reply=#1"
	})
	if _, err := r.create(0); err == nil {
		t.Error("the first creation was answered")
	}
	devices, _, err := r.client.Devices.List(r.world.ProjectID(), nil)
	if err != nil || len(devices) != 1 {
		t.Fatalf("devices %v, %v", devices, err)
	}
	address := r.waitState(devices[0].ID, "active").GetNetworkInfo().PublicIPv4
	if _, err := dialWith(address, r.world.SSHPort(), r.key); err == nil {
		t.Error("the first connection was accepted")
	}
	r.upload(address, "/root/agent/a", "agent")
	client := r.dial(address)
	if out, err := r.try(client, "/root/agent/a takeover", ""); err == nil {
		t.Errorf("the first start: %q, %v", out, err)
	}
	if out, err := r.try(client, "/root/agent/a takeover", ""); err != nil || out == "taken over" {
		t.Errorf("the second start: %q, %v", out, err)
	}
	if out, err := r.try(client, "/root/agent/a takeover", ""); err != nil || out != "taken over" {
		t.Errorf("the third start: %q, %v", out, err)
	}
	r.restart()
	counts := map[string][2]int{}
	for _, c := range r.world.Status().Faults {
		counts[string(c.Fault)] = [2]int{c.Opportunities, c.Fired}
	}
	for fault, fired := range map[string]int{"ssh-refused": 1, "agent-start": 2, "lost-reply": 1} {
		if counts[fault][1] != fired {
			t.Errorf("%s: %v, want %d fired", fault, counts[fault], fired)
		}
	}
}

func TestStatusAndImagesOverHTTP(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for url, want := range map[string]int{
		r.world.StatusURL(): 200, r.world.Images()[0].URL: 200, r.world.Images()[0].URL + "x": 404, r.world.URL() + "/user": 401,
	} {
		response, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %s, want %d", url, response.Status, want)
		}
	}
}

func TestBadConfigurations(t *testing.T) {
	t.Parallel()
	err := sim.Config{
		Machines: -1, SSHPort: 1 << 20, Speed: -1, RealAgents: -1, Faults: "nonsense=1%",
		Images: []sim.ImageSpec{{Name: "a/b", Size: 1}}, Preload: map[string]string{"relative": "x"},
		Durations: &sim.Durations{Boot: sim.Range{Min: time.Second, Max: time.Millisecond}},
	}.Validate()
	for _, want := range []string{"directory", "machines", "SSH port", "speed", "real agents", "nonsense", "a/b", "relative", "duration boot"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in\n%v", want, err)
		}
	}
}

func TestMoreMachinesThanFilesMayBeOpen(t *testing.T) {
	t.Parallel()
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	open := func(machines uint64) error {
		w, err := sim.Open(t.Context(), sim.Config{Dir: dir, Machines: int(machines), Agent: (&agents{}).run, Images: []sim.ImageSpec{{Name: "i", Size: 4 << 20}}})
		if err == nil {
			err = w.Close()
		}
		return err
	}
	if half := files.Cur / 2; half < 1<<23 { // more have no addresses
		err := open(half)
		if want := fmt.Sprintf("this process may have %d: raise the limit (`ulimit -n`)", files.Cur); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("half as many machines as files may be open: %v", err)
		}
	}
	if err := open(3); err != nil {
		t.Errorf("the directory cannot be used after that: %v", err)
	}
}

func TestClosedWithoutARun(t *testing.T) {
	t.Parallel()
	w, err := sim.Open(t.Context(), sim.Config{Dir: t.TempDir(), Agent: (&agents{}).run, Images: []sim.ImageSpec{{Name: "i", Size: 4 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err != nil {
		t.Errorf("a closed world: %v", err)
	}
}

// A child between its fork and its exec has a copy of each descriptor.
func TestClosedWorldIsFreeWhileACopyOfItsLockIsOpen(t *testing.T) {
	t.Parallel()
	config := sim.Config{Dir: t.TempDir(), Agent: (&agents{}).run, Images: []sim.ImageSpec{{Name: "i", Size: 4 << 20}}}
	w, err := sim.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	copied := -1
	for fd := range 1 << 10 {
		if name, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); name == filepath.Join(config.Dir, "lock") {
			if copied, err = unix.Dup(fd); err != nil {
				t.Fatal(err)
			}
		}
	}
	if copied < 0 {
		t.Fatal("the lock is not open")
	}
	defer func() { _ = unix.Close(copied) }()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := sim.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestUserDataBringsTheHostKey of the provider's system, as cloud-init does; what cannot be read,
// and an image that ignores it, leave the machine with a key of its own.
func TestUserDataBringsTheHostKey(t *testing.T) {
	t.Parallel()
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	good := "#cloud-config\nssh_keys:\n  ed25519_private: |\n    " + strings.ReplaceAll(strings.TrimSpace(string(pem.EncodeToMemory(block))), "\n", "\n    ") + "\n"
	for name, test := range map[string]struct {
		userData, faults string
		brought          bool
	}{
		"cloud-config": {good, "", true},
		"none":         {"", "", false},
		"a script":     {"#!/bin/sh\n", "", false},
		"no key":       {"#cloud-config\nssh_keys: {ed25519_private: x}\n", "", false},
		"no YAML":      {"#cloud-config\n\t{", "", false},
		"ignored":      {good, "user-data-ignored=100%", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *sim.Config) { c.Machines, c.Faults = 1, test.faults })
			reservations, _, err := r.client.HardwareReservations.List(r.world.ProjectID(), nil)
			if err != nil {
				t.Fatal(err)
			}
			d, _, err := r.client.Devices.Create(&packngo.DeviceCreateRequest{
				Hostname: "m", OS: "debian_13", ProjectID: r.world.ProjectID(), HardwareReservationID: reservations[0].ID, UserData: test.userData,
			})
			if err != nil {
				t.Fatal(err)
			}
			address := r.waitState(d.ID, "active").GetNetworkInfo().PublicIPv4
			r.dialSoon(address)
			for range 2 {
				if got := r.hostKey(address) == string(signer.PublicKey().Marshal()); got != test.brought {
					t.Errorf("the machine shows the key of its user data: %v", got)
				}
				r.restart()
				r.dialSoon(address)
			}
		})
	}
}

// TestBrokenMachines: what breaks stays broken, also over a kill of the world, until the one thing
// is done that mends it.
func TestBrokenMachines(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *sim.Config) {
		c.Machines = 4
		c.Faults = "host-hangs=#1:50ms,host-frozen=#1:50ms,host-disk-lost=#1:50ms,host-dies=#1:50ms"
	})
	var addresses []string
	ids := r.createAll()
	for _, id := range ids {
		addresses = append(addresses, r.waitState(id, "active").GetNetworkInfo().PublicIPv4)
	}
	broken := func(n int) func() bool { return func() bool { return r.world.Status().HostStates["dead"] == n } }
	r.eventually("all are broken", broken(4))
	r.silent(addresses)
	r.restart()
	r.eventually("all are broken still", broken(4))
	r.silent(addresses)
	for _, step := range []struct {
		what   string
		does   []string
		broken int
	}{
		{"a reboot mends the one that hangs", []string{"reboot"}, 3},
		{"power mends the one that is frozen", []string{"power_off", "power_on"}, 2},
		{"a reinstall mends the one without a disk", []string{"reinstall"}, 1},
		{"nothing mends the dead one", []string{"reinstall", "power_off", "power_on", "reboot"}, 1},
	} {
		for _, action := range step.does {
			for _, id := range ids {
				r.act(id, action)
				want := "active"
				if action == "power_off" {
					want = "inactive"
				}
				r.waitState(id, want)
			}
		}
		r.eventually(step.what, func() bool {
			s := r.world.Status().HostStates
			return s["dead"] == step.broken && s["provider"] == 4-step.broken
		})
	}
}
