package lifecycle_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironherd/ironherd/internal/lifecycle"
)

// decided is what the rules of number lifecycle.Rules decide of the records that the test draws.
const decided = "014e416f5b965034fc6443dac8464d67de8e425fac52124e74913478acaf16a6"

// TestRulesHaveANumber: rules that decide otherwise have another number.
func TestRulesHaveANumber(t *testing.T) {
	t.Parallel()
	plans := rapid.Custom(func(t *rapid.T) lifecycle.Plan {
		return lifecycle.Decide(drawRecord(t), drawEnvironment(t), at(float64(rapid.IntRange(0, 200).Draw(t, "now"))))
	})
	sum := sha256.New()
	for seed := range 10_000 {
		plan := plans.Example(seed)
		_, _ = fmt.Fprintln(sum, plan.State)
		for _, d := range plan.Decisions {
			_, _ = fmt.Fprintln(sum, d.Process, d.Verdict, d.DueAt.UnixMicro())
		}
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != decided {
		t.Errorf("rules number %d decide otherwise than they did: raise lifecycle.Rules, unless this test draws other records, and write down %s", lifecycle.Rules, got)
	}
}
