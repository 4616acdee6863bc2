package command_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestABlockedLeaderIsTold: while the leader holds it runs no pass, so no pass fails. A metric of
// its own says that nothing is kept.
func TestABlockedLeaderIsTold(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	p.put(p.layout().Node("old"), `{"roles":["kubernetes-controller"],"release":"v0.0.9"}`)
	p.put(p.layout().Status(), `{"state":"done","version":"v0.0.9","minimumCompatible":"v0.0.9"}`)
	ctx, cancel := context.WithCancel(t.Context())
	_, stderr, code := p.start(ctx, "run", "--kubeconfig", file, "--listen", "127.0.0.1:0", "--min-api-server", "v0.1.0")
	await(t, "it listens", func() bool { return strings.Contains(stderr.String(), "listening") })
	address := listens(stderr.String())
	metric := func(line string) func() bool {
		return func() bool {
			_, body := get(t, address, "/metrics")
			return strings.Contains(body, "ironherd_reconciler_"+line+"\n")
		}
	}
	await(t, "that it leads", metric("leading 1"))
	await(t, "that it is blocked", metric("blocked 1"))
	if !metric("last_pass_failed 0")() || !metric("last_pass_timestamp_seconds 0")() {
		t.Error("a pass was run")
	}
	p.run(0, "node", "remove", "old", "--stopped")
	await(t, "that it goes on", metric("blocked 0"))
	await(t, "that passes are run", metric("last_pass_failed 1"))
	cancel()
	code()
}
