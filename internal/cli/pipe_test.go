package cli_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/cli"
)

// readNoMore is set in a process of this test whose output is read no more.
const readNoMore = "IRONHERD_TEST_READ_NO_MORE"

// TestADemoThatNobodyReads ends in order, and leaves nothing: as with
// `ironherd demo 2>&1 | head -1`.
func TestADemoThatNobodyReads(t *testing.T) {
	if home := os.Getenv(readNoMore); home != "" {
		code := cli.Main(t.Context(), strings.Fields("demo --machines 1 --image-size 4 --real-agents 0 --agent "+filepath.Join(home, "agent")), cli.Env{
			Stdin: strings.NewReader(""), Stdout: os.Stdout, Stderr: os.Stderr, Environ: []string{"HOME=" + home}, Executable: filepath.Join(home, "ironherd"),
		})
		if err := os.WriteFile(filepath.Join(home, "ended"), nil, 0o600); err != nil || code != 0 {
			os.Exit(1)
		}
		return
	}
	t.Parallel()
	home, temporary := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "agent"), []byte("an agent"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestADemoThatNobodyReads$")
	child.Env = append(os.Environ(), readNoMore+"="+home, "TMPDIR="+temporary)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	child.Stdout, child.Stderr = write, write
	if err := errors.Join(child.Start(), write.Close()); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(read).ReadString('\n'); err != nil {
		t.Errorf("%q, %v", line, err)
	}
	if err := read.Close(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // the testing package's own last words end it
	if _, err := os.Stat(filepath.Join(home, "ended")); err != nil {
		t.Errorf("it did not end in order: %v, %s", err, child.ProcessState)
	}
	for _, dir := range []string{temporary, filepath.Join(home, ".local/state/ironherd")} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("it left %v, %v", left, err)
		}
	}
}
