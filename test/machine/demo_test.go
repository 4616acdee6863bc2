package machine

import (
	"encoding/json"
	"testing"

	"github.com/ironherd/ironherd/test/process"
)

// `ironherd demo --vm 1` takes a stock Debian to an installed one, and says so.
func TestDemo(t *testing.T) {
	onDemand(t)
	t.Parallel()
	ctx := bounded(t, limit)
	code, stdout, stderr := process.Run(ctx, built.ironherd, "demo", "--vm", "1", "--until", "installed", "--timeout", limit.String(), "-o", "json")
	if code != 0 {
		t.Fatalf("exit code %d:\n%s\n%s", code, stdout, stderr)
	}
	var summary struct{ Machines, Installed int }
	if err := json.Unmarshal([]byte(stdout), &summary); err != nil || summary.Installed != 1 {
		t.Errorf("%v in %s", err, stdout)
	}
	t.Logf("%s", stdout)
}
