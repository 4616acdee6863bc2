package cli_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/cli"
)

// TestADemoBesideAnother leaves it the link by which commands find a demo: what the other one has
// printed is for that one. Its own commands name it. The link of a demo that was killed is its own.
func TestADemoBesideAnother(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	state := filepath.Join(home, ".local", "state", "ironherd")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "agent"), []byte("an agent"), 0o600); err != nil {
		t.Fatal(err)
	}
	other, link := filepath.Join(home, "other.sock"), filepath.Join(state, "demo.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: other})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	demo := func() (status, target string) {
		t.Helper()
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
		defer stop()
		out := &untilSaid{text: "/metrics", said: sync.OnceFunc(func() {
			target, _ = os.Readlink(link)
			stop()
		})}
		code := cli.Main(ctx, strings.Fields("demo --machines 1 --real-agents 0 --speed 100 --image-size 4 --agent "+filepath.Join(home, "agent")), cli.Env{
			Stdin: strings.NewReader(""), Stdout: out, Stderr: out, Environ: []string{"HOME=" + home}, Executable: "/opt/ironherd",
		})
		_, said, found := strings.Cut(out.all.String(), "end it all with Ctrl-C:\n\n")
		if code != 0 || !found {
			t.Fatalf("got %d: %s", code, &out.all)
		}
		status, _, _ = strings.Cut(strings.TrimSpace(said), "\n")
		return status, target
	}

	if status, target := demo(); target != other || !strings.HasPrefix(status, "/opt/ironherd --server unix:///") {
		t.Errorf("beside another: the link leads to %q, and it printed %q", target, status)
	}
	if target, err := os.Readlink(link); target != other {
		t.Errorf("when it had ended, the link led to %q, %v", target, err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if status, target := demo(); target == other || target == "" || status != "/opt/ironherd status" {
		t.Errorf("after one that was killed: the link leads to %q, and it printed %q", target, status)
	}
}
