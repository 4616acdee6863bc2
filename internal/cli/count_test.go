package cli_test

import (
	"strings"
	"testing"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestCountsThatStopAreNoTotals: the control plane counts up to 10,000, and whoever is shown such a
// count is told so.
func TestCountsThatStopAreNoTotals(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]map[string]string{
		fleet.CountedAtMost - 1: {
			"provider list":       "metal  equinix  0         no limit  0        9999           0 ",
			"provider show metal": "\nDiscrepancies:  9999\n",
			"recovery status": "\nRecovery is at work on 12000, due on 9999, and backs off on 9999.\n" +
				"For 700 of those on which it is due there is no room ",
		},
		fleet.CountedAtMost: {
			"provider list":       "metal  equinix  0         no limit  0        10000+         0 ",
			"provider show metal": "\nDiscrepancies:  10000+\n",
			"recovery status": "\nRecovery is at work on 12000, due on 10000+, and backs off on 10000+.\n" +
				"For 700+ of those on which it is due there is no room ",
		},
	} {
		server := newFakeServer(t)
		server.providers = []*fleetv1.Provider{{Name: "metal", Kind: "equinix", Discrepancies: n}}
		server.summary = &fleetv1.GetSummaryResponse{
			Processes: []*fleetv1.ProcessCount{{Process: "recovery", Running: 12000, Due: n, NoRoom: 700, BackingOff: n}},
		}
		for command, text := range want {
			if r := server.run(t, strings.Fields(command)...); r.code != 0 || !strings.Contains(r.stdout, text) {
				t.Errorf("%s of %d: exit code %d:\n%s\nlacks %q", command, n, r.code, r.stdout, text)
			}
		}
	}
}
