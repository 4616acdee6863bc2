package test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/test/process"
)

// TestSimulatorOverTLS: the command that `ironherd sim --tls` prints starts a control plane which
// brings the fleet up over TLS, and one that does not trust the world's authority says so.
func TestSimulatorOverTLS(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 3*time.Minute)
	herd := &process.Herd{Ironherd: ironherd, Dir: shortDir(t), Machines: 2, WorldArgs: []string{"--tls", "--real-agents", "0", "--speed", "5"}}
	if err := herd.StartWorld(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(t, herd); err != nil {
			t.Error(err)
		}
	})
	if !strings.HasPrefix(herd.URL(), "https://") {
		t.Errorf("the API is at %s", herd.URL())
	}
	address, err := process.FreeAddress(ctx)
	if err != nil {
		t.Fatal(err)
	}
	settings := []string{"--set", "agent_api.listen=" + address, "--set", "agent_api.endpoint=" + address, "--set", "operator_api.listen="}
	said, err := herd.World().Await(ctx, "Control plane:")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(strings.TrimPrefix(said, "Control plane:"))
	if len(words) != 5 || !strings.HasPrefix(words[0], "SSL_CERT_FILE=") || words[1] != "ironherd" {
		t.Fatalf("the world prints: %s", said)
	}
	words[1] = ironherd

	stranger, err := process.Start(ctx, ironherd, slices.Concat(words[2:], settings)...)
	if err != nil {
		t.Fatal(err)
	}
	herd.Attach(stranger)
	t.Cleanup(stranger.Kill)
	eventually(t, func() error {
		if log := stranger.Stderr(); !strings.Contains(log, "certificate signed by unknown authority") {
			return fmt.Errorf("the control plane does not say that it trusts nobody: %s", log)
		}
		return nil
	})
	if err := stranger.Stop(ctx); err != nil {
		t.Errorf("a control plane that cannot reach its provider does not end in order: %v", err)
	}

	plane, err := process.Start(ctx, "env", slices.Concat(words, settings)...)
	if err != nil {
		t.Fatal(err)
	}
	herd.Attach(plane)
	if err := herd.AwaitInstalled(ctx, func(now string) { t.Log(now) }); err != nil {
		t.Error(err)
	}
}
