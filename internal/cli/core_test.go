package cli_test

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/cli"
)

// TestServeLeavesNoCore: the kernel dumps none of the process, whatever core_pattern and the limits
// say. The process is one of its own, which has no configuration to go on with.
func TestServeLeavesNoCore(t *testing.T) {
	t.Parallel()
	const inside = "IRONHERD_TEST_CORE"
	if os.Getenv(inside) == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServeLeavesNoCore$")
		child.Env = append(os.Environ(), inside+"=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	before, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil || before != 1 {
		t.Fatalf("before: %d, %v", before, err)
	}
	var out bytes.Buffer
	cli.Main(t.Context(), []string{"serve", "--config", "/nowhere"}, cli.Env{Stdout: &out, Stderr: &out})
	if after, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || after != 0 {
		t.Errorf("while it serves: %d, %v; %s", after, err, &out)
	}
}
