package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/rehearsal"
)

// TestARehearsalThatEndsEarly: with a broken promise it ends before anybody knows whether all is
// well, and no answer says so.
func TestARehearsalThatEndsEarly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		report rehearsal.Report
		well   bool
		left   string
	}{
		"a broken promise": {
			report: rehearsal.Report{Violations: []rehearsal.Violation{{Invariant: "I9", At: time.Minute, Detail: "an install starts twice"}}},
			left:   "the control plane broke a promise of its own: I9 at 1m0s: an install starts twice",
		},
		"a broken promise, found in the end": {
			report: rehearsal.Report{Settled: time.Hour, Violations: []rehearsal.Violation{{Invariant: "I4", At: time.Hour, Detail: "d"}}},
			left:   "the control plane broke a promise of its own: I4 at 1h0m0s: d",
		},
		"something left":  {report: rehearsal.Report{Left: "machine m is silent"}, left: "machine m is silent"},
		"everything well": {report: rehearsal.Report{Settled: time.Hour}, well: true},
	} {
		answer := newRehearsal(rehearsal.Scenarios()[0], rehearseFlags{}, c.report)
		if answer.Well != c.well || answer.Left != c.left {
			t.Errorf("%s: well %t, left %q", name, answer.Well, answer.Left)
		}
		var table bytes.Buffer
		rehearsalTable(&screen{out: &table}, answer)
		if text := table.String(); strings.Contains(text, "Everything was well") != c.well || !strings.Contains(text, c.left) {
			t.Errorf("%s: the table says\n%s", name, text)
		}
	}
}
