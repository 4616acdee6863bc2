package fleetapi

import (
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestCountsThatStopAreNoTotals: a summary counts up to 10,000, and what is told of it says so.
// What it counts to the end is told as it is.
func TestCountsThatStopAreNoTotals(t *testing.T) {
	t.Parallel()
	db, must := openBMDB(t)
	const most = bmdb.CountedAtMost
	var providers []bmdb.ProviderRow
	for i, discrepancies := range []int{1, 0, 2, 1, most} {
		provider := fleet.ProviderRecord{Name: fleet.ProviderName("abcde"[i : i+1])}
		providers = append(providers, bmdb.ProviderRow{ProviderRecord: provider, Discrepancies: discrepancies})
	}
	for n, want := range map[int]string{
		1: "a machine shows a host key |a host does not let |1 discrepancy, so nothing new is created at a, c, d, 1 more: `ironherd discrepancy list` says|" +
			"probe is overdue for an hour, 1 is waiting: no loop ",
		most - 1: "9999 machines show host keys |9999 hosts do not let |9999 discrepancies, so nothing|" +
			"probe is overdue for an hour, 9999 are waiting: no loop ",
		most: "10000 or more machines show host keys |10000 or more hosts do not let |10000 or more discrepancies, so nothing|" +
			"probe is overdue for an hour, 10000 or more are waiting: no loop ",
	} {
		now := time.Now()
		summary := bmdb.Summary{
			At: now, Discrepancies: n, HostKeyRefused: bmdb.Counted{N: n}, LoginRefused: bmdb.Counted{N: n},
			Processes: []bmdb.ProcessSummary{{Process: fleet.ProcessProbe, Due: n, OldestDue: now.Add(-time.Hour)}},
		}
		all, err := New(db, Options{}).concerns(t.Context(), summary, providers)
		must(err)
		var texts []string
		for _, c := range all {
			texts = append(texts, c.GetText())
		}
		got := strings.Join(texts, "\n")
		for part := range strings.SplitSeq(want, "|") {
			if !strings.Contains(got, part) {
				t.Errorf("of %d, %q is missing in:\n%s", n, part, got)
			}
		}
		summary.Missing = []fleet.Role{fleet.ProcessProbe.Role()}
		if text := missing(summary)[0].GetText(); strings.Contains(text, "10000 or more times") != (n == most) {
			t.Errorf("of %d, a role that nobody has: %s", n, text)
		}
	}
	for _, c := range deaf(fleet.Environment{}, bmdb.Summary{States: map[fleet.State]int{fleet.StateAvailable: 12345}}) {
		if !strings.Contains(c.GetText(), "nothing is heard of 12345 machines") {
			t.Errorf("what is counted to the end: %s", c.GetText())
		}
	}
}
