package test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironherd/ironherd/test/pgserver"
	"github.com/ironherd/ironherd/test/process"
)

// Two control planes share a fleet through one PostgreSQL. Agents reach them through one address,
// as behind any load balancer. The test kills them in turn while they bring the fleet up. The other
// one must go on, and nothing may be done twice.
func TestTwoControlPlanes(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 4*time.Minute)
	server, err := pgserver.Start(ctx, pgserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	database, err := server.Create(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	front, err := process.NewBalancer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(front.Close)
	herd := &process.Herd{Ironherd: ironherd, Dir: shortDir(t), Machines: 40}
	if err := herd.StartWorld(ctx); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stop(t, herd); err != nil {
			t.Error(err)
		}
	}()
	useDatabase(t, herd, server.URL(database))
	if code, _, stderr := process.Run(ctx, ironherd, "db", "migrate", "--config", herd.Config()); code != 0 {
		t.Fatalf("db migrate: exit code %d: %s", code, stderr)
	}
	herd.PlaneArgs = []string{"--set", "agent_api.endpoint=" + front.Address()}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(herd.StartPlane(ctx))
	check(herd.AwaitPlane(ctx))
	front.Forward(herd.Endpoint())
	second := newSecondPlane(t, herd, front)
	check(second.start(ctx))

	for n := range 6 {
		letRun(ctx, time.Duration(2+n%3)*time.Second)
		if n%2 == 0 {
			herd.KillPlane()
			letRun(ctx, time.Second) // the other one is alone
			check(herd.StartPlane(ctx))
		} else {
			second.process.Kill()
			letRun(ctx, time.Second)
			check(second.start(ctx))
		}
		status, err := herd.Status(ctx)
		check(err)
		t.Logf("kill %d: %d devices, %d came up", n+1, status.Devices, status.InstallsVerified)
	}
	check(herd.AwaitPlane(ctx))
	check(herd.AwaitInstalled(ctx, func(line string) { t.Log(line) }))
	check(herd.Settle(ctx))
	check(second.process.Stop(ctx))
}

// useDatabase adds the database to the configuration that the world has left.
func useDatabase(t *testing.T, herd *process.Herd, url string) {
	t.Helper()
	text, err := os.ReadFile(herd.Config())
	if err == nil {
		err = os.WriteFile(herd.Config(), append(text, "\ndatabase: "+url+"\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// letRun waits while the processes run.
func letRun(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// secondPlane is another control plane of the same fleet, with a directory of its own.
type secondPlane struct {
	args    []string
	process *process.Process
}

// newSecondPlane copies what the planes of one fleet have in common: the certificates for agents
// and the SSH key for machines.
func newSecondPlane(t *testing.T, herd *process.Herd, front *process.Balancer) *secondPlane {
	t.Helper()
	first, dir := filepath.Dir(herd.Socket()), filepath.Join(shortDir(t), "second")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"agent-ca.pem", "agent-server.pem", "ssh_key"} {
		text, err := os.ReadFile(filepath.Join(first, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	listen := freeAddress(t)
	front.Forward(listen)
	return &secondPlane{args: []string{
		"serve", "--config", herd.Config(), "--log-level", "warn", "--set", "dir=" + dir, "--set", "agent_api.listen=" + listen,
		"--set", "agent_api.endpoint=" + front.Address(), "--set", "operator_api.listen=",
	}}
}

func (s *secondPlane) start(ctx context.Context) (err error) {
	if s.process, err = process.Start(ctx, ironherd, s.args...); err == nil {
		_, err = s.process.Await(ctx, "ironherd test is ready")
	}
	return err
}

// freeAddress is an address outside the range of outgoing ports, which stays free while its owner
// is dead.
func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := process.FreeAddress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return address
}
