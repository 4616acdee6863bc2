package cli_test

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/cli"
)

// TestAHangupEndsADemo: a simulated world, a demo and a rehearsal end in order when
// their terminal is closed, and leave nothing.
func TestAHangupEndsADemo(t *testing.T) { //nolint:paralleltest // it hangs up on all of this process
	hangups := make(chan os.Signal, 8)
	signal.Notify(hangups, syscall.SIGHUP) // else a fault ends the process of the tests
	defer signal.Stop(hangups)
	home, dir := t.TempDir(), t.TempDir()
	agent, file := filepath.Join(dir, "agent"), filepath.Join(dir, "ironherd.yaml")
	for name, text := range map[string]string{agent: "an agent", file: rehearsable, filepath.Join(dir, "hosts.yaml"): "hosts: []\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for _, test := range []struct {
		args, ready string
		code        int
	}{
		{"sim --machines 1 --image-size 4 --dir " + filepath.Join(dir, "world"), "Control plane", 0},
		{"demo --machines 1 --image-size 4 --agent " + agent, "The page: ", 0},
		{"rehearse --scenario deploy --config " + file, "rehearsing deploy", 130},
	} {
		out := &untilSaid{text: test.ready, said: sync.OnceFunc(func() {
			if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
				t.Error(err)
			}
		})}
		code := cli.Main(ctx, strings.Fields(test.args), cli.Env{
			Stdin: strings.NewReader(""), Stdout: out, Stderr: out, Environ: []string{"HOME=" + home}, Executable: filepath.Join(dir, "ironherd"),
		})
		if code != test.code || ctx.Err() != nil {
			t.Fatalf("%s: it ended with %d (%v): %s", test.args, code, ctx.Err(), &out.all)
		}
	}
	if left, err := os.ReadDir(filepath.Join(home, ".local/state/ironherd")); err != nil || len(left) > 0 {
		t.Errorf("the demo left %v, %v", left, err)
	}
}
