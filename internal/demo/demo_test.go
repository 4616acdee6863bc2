package demo_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/demo"
	"github.com/ironherd/ironherd/internal/fleet"
)

func TestMain(m *testing.M) {
	if os.Getenv("IRONHERD_AGENT_ROOT") != "" {
		os.Exit(agentProcess(os.Args[1:]))
	}
	if dir := os.Getenv("IRONHERD_DEMO_TEST"); dir != "" {
		os.Exit(demoProcess(dir))
	}
	goleak.VerifyTestMain(m)
}

// options are those of a fleet whose agents all run in this process: what is uploaded is never
// executed, and only has to be a file.
func options(t *testing.T) demo.Options {
	t.Helper()
	agent := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(agent, []byte("#!/bin/true\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return demo.Options{Machines: 6, Seed: 1, Speed: 10, ImageSize: 8 << 20, AgentExecutable: agent, Version: "test"}
}

// installed runs a demo until all its machines are installed.
func installed(t *testing.T, o demo.Options) demo.Summary {
	t.Helper()
	var summary demo.Summary
	views := 0
	run(t, o, func(ctx context.Context, d *demo.Demo, client fleetv1connect.FleetServiceClient) (err error) {
		summary, err = d.WaitInstalled(ctx, client, func(v demo.View) { views++ })
		return err
	})
	if views == 0 {
		t.Error("nothing was shown")
	}
	return summary
}

// run runs a demo until what is done beside it returns.
func run(t *testing.T, o demo.Options, beside func(context.Context, *demo.Demo, fleetv1connect.FleetServiceClient) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	d, err := demo.Open(ctx, o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	socket := strings.TrimPrefix(d.Addresses().Socket, "unix://")
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	client := fleetv1connect.NewFleetServiceClient(&http.Client{Transport: transport}, "http://fleet")
	if err := d.Run(ctx, func(ctx context.Context) error { return beside(ctx, d, client) }); err != nil {
		t.Fatal(err)
	}
}

func TestInstallsAFleet(t *testing.T) {
	t.Parallel()
	o := options(t)
	s := installed(t, o)
	w := s.World
	if s.Installed != 6 || w.Devices != 6 || w.InstallsVerified != 6 || w.InstallsRejected+w.InstalledMoreThanOnce+w.DuplicateDevices != 0 {
		t.Errorf("%+v", s)
	}
	if w.Uploads != 6 {
		t.Errorf("the agent was uploaded %d times", w.Uploads)
	}
	var phases []string
	for _, p := range s.Phases {
		phases = append(phases, p.Phase)
		if p.Count != 6 || p.P50 > p.P95 || p.P95 > p.P99 || p.P99 > p.Max || p.Max <= 0 {
			t.Errorf("phase %+v", p)
		}
	}
	if strings.Join(phases, " ") != "provision agent-start report install" {
		t.Errorf("phases %v", phases)
	}
}

// TestPreloadedAgent also holds world and initializer to one path of the agent.
func TestPreloadedAgent(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.PreloadAgent = true
	if s := installed(t, o); s.World.Uploads != 0 || s.Installed != 6 {
		t.Errorf("%d uploads, %d installed", s.World.Uploads, s.Installed)
	}
}

// TestGoesOn runs a demo in a directory, ends it, and runs it again: everything is as it was.
func TestGoesOn(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Dir, o.Machines = filepath.Join(t.TempDir(), "d"), 2
	if s := installed(t, o); s.World.InstallsVerified != 2 {
		t.Errorf("%+v", s)
	}
	if s := installed(t, o); s.Installed != 2 || s.World.Devices != 2 || s.World.InstallsVerified != 2 || s.World.AgentStarts != 0 {
		t.Errorf("%+v", s)
	}
}

func TestLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.RealAgents = 1
	d, err := demo.Open(t.Context(), o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	dir := d.Dir()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Speed = 0.1
	d, err := demo.Open(t.Context(), o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	client := fleetv1connect.NewFleetServiceClient(http.DefaultClient, "http://127.0.0.1:1")
	err = d.Run(t.Context(), func(ctx context.Context) error {
		ctx, cancel := context.WithDeadline(ctx, time.Now())
		defer cancel()
		_, err := d.WaitInstalled(ctx, client, func(demo.View) {})
		return err
	})
	if fleet.KindOf(err) != fleet.KindTimeout {
		t.Errorf("got %v", err)
	}
}

// TestAnAddressInUse: a demo has no configuration, so the flag is named, and no key.
func TestAnAddressInUse(t *testing.T) {
	t.Parallel()
	other, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	o := options(t)
	o.Listen = other.Addr().String()
	d, err := demo.Open(t.Context(), o, slog.New(slog.DiscardHandler))
	if err == nil {
		_ = d.Close()
	}
	want := "operator API: address " + o.Listen + " is in use by another process: stop that process, or set --listen to another address"
	if fleet.KindOf(err) != fleet.KindInUse || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	o := options(t)
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	o.Machines, o.Speed, o.ImageSize, o.Faults, o.AgentExecutable = -1, -1, 5<<20+1, "rain=5%", "/nowhere"
	err := o.Validate()
	if fleet.KindOf(err) != fleet.KindInvalid {
		t.Fatalf("got %v", err)
	}
	for _, flag := range []string{"--machines", "--speed", "--image-size", "--faults", "--agent"} {
		if !strings.Contains(err.Error(), flag) {
			t.Errorf("%s is missing in %v", flag, err)
		}
	}
}

// TestSettingsCanBeWritten: the demo's configuration is one that anybody could have written.
func TestSettingsCanBeWritten(t *testing.T) {
	t.Parallel()
	o := options(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-long-token"), 0o600); err != nil {
		t.Fatal(err)
	}
	world := demo.WorldAddress{URL: "http://127.0.0.1:1/metal/v1", TokenFile: token, ProjectID: "7b1d6e0a-5f2c-4c7e-9a51-0c8f4a6f7d11", SSHPort: 22}
	world.Image.URL, world.Image.Digest, world.Image.Compression = "http://127.0.0.1:1/i", "sha256:"+strings.Repeat("0", 64), "zstd"
	for _, machines := range []int{12, 2000} {
		c := demo.Settings(filepath.Join(t.TempDir(), "herd"), o.AgentExecutable, machines, world)
		c.AgentAPI.Endpoint = "127.0.0.1:7443"
		c.Initializer.Endpoint = c.AgentAPI.Endpoint
		text, err := config.Encode(c, "")
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		loaded, err := config.Load(config.Sources{File: file})
		if err != nil {
			t.Errorf("%v in\n%s", err, text)
		} else if len(loaded.Images) != 1 || loaded.Images[0].Name != "demo" || loaded.Images[0].Digest != world.Image.Digest {
			t.Errorf("people cannot ask for the image by name: %+v", loaded.Images)
		}
		// every agent calls from 127.0.0.1
		if a := loaded.AgentAPI; a.MaxConnectionsPerAddress != 0 || a.MaxUnadmittedPerAddress != a.MaxUnadmitted {
			t.Errorf("the agents are taken for one: %d connections, %d of %d unadmitted", a.MaxConnectionsPerAddress, a.MaxUnadmittedPerAddress, a.MaxUnadmitted)
		}
	}
}
