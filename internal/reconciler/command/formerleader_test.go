package command_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAFormerLeaderCountsNothing: what a leader's last pass has found is no longer served as if it
// were so when somebody else leads.
func TestAFormerLeaderCountsNothing(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	dir := t.TempDir()
	file, manifests := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "manifests")
	if err := errors.Join(os.WriteFile(file, []byte(emptyServer(t, "uid")), 0o600), os.Mkdir(manifests, 0o700), os.Symlink(dir, filepath.Join(manifests, "link"))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, stderr, code := p.start(ctx, "run", "--kubeconfig", file, "--manifests", manifests, "--listen", "127.0.0.1:0")
	await(t, "it listens", func() bool { return strings.Contains(stderr.String(), "listening") })
	address := listens(stderr.String())
	says := func(lines ...string) func() bool {
		return func() bool {
			_, body := get(t, address, "/metrics")
			for _, line := range lines {
				if !strings.Contains(body, "\nironherd_reconciler_"+line+"\n") {
					return false
				}
			}
			return true
		}
	}
	await(t, "a pass that has found a fault", says("leading 1", "failures 1"))
	if says("objects 0")() {
		t.Error("nothing is wanted")
	}
	p.put(p.layout().Node("new"), `{"roles":["kubernetes-controller"],"release":"v9.9.9"}`)
	await(t, "that it leads no longer", says("leading 0"))
	if !says("objects 0", "failures 0", "failures_required 0", "paused 0", "deleting 0", "unhealthy 0")() {
		_, body := get(t, address, "/metrics")
		t.Errorf("it counts what it found as the leader:\n%s", body)
	}
	cancel()
	code()
}
