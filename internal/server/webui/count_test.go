package webui

import (
	"strings"
	"testing"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestCountsThatStopAreNoTotals: the control plane counts up to 10,000, and the overview says so
// wherever it shows such a count, or adds to it.
func TestCountsThatStopAreNoTotals(t *testing.T) {
	t.Parallel()
	stub := smallFleet()
	stub.summary.Processes = []*fleetv1.ProcessCount{{Process: "probe", Due: 3, BackingOff: 7000}, {Process: "agent-start"}}
	for range discrepanciesShown {
		stub.discrepancies = append(stub.discrepancies, stub.discrepancies[0])
	}
	for n, wanted := range map[int64][]string{
		fleet.CountedAtMost - 1: {
			"<title>10\u202f012 to look at", ">9\u202f999 discrepancies<", "and 9\u202f899 more", "16\u202f999 waiting in backoff",
			"<td class=\"num warn\">9\u202f999</td>", "<td class=\"num \">9\u202f999</td>", "<td class=\"num bad\">9\u202f999</td>",
		},
		fleet.CountedAtMost: {
			"<title>10\u202f013+ to look at", ">10\u202f000+ discrepancies<", "and 9\u202f900+ more", "17\u202f000+ waiting in backoff",
			"<td class=\"num warn\">10\u202f000+</td>", "<td class=\"num \">10\u202f000+</td>", "<td class=\"num bad\">10\u202f000+</td>",
		},
	} {
		stub.change(func() {
			stub.summary.Discrepancies, stub.providers[0].Discrepancies = n, n
			stub.summary.Processes[1].Due, stub.summary.Processes[1].BackingOff = n, n
		})
		body := get(t, New(overWire(t, stub), Options{}), "/").Body.String()
		for _, text := range wanted {
			if !strings.Contains(body, text) {
				t.Errorf("of %d, %q is missing in:\n%s", n, text, body)
			}
		}
	}
	stub.change(func() {
		stub.summary.Discrepancies, stub.discrepancies = 0, nil
		stub.summary.Concerns = []*fleetv1.Concern{{Kind: "overdue", Subject: "probe", Count: fleet.CountedAtMost, Text: "probe is overdue"}}
	})
	if body := get(t, New(overWire(t, stub), Options{}), "/").Body.String(); !strings.Contains(body, "<title>10\u202f013+ to look at") {
		t.Errorf("what is due is counted up to 10,000, and the title is another:\n%s", body)
	}
}
