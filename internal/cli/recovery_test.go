package cli_test

import (
	"strings"
	"testing"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

// TestRecoveryThatWaitsDoesNotRun: it is told for which of the concerns recovery waits, also where
// nobody has stopped it.
func TestRecoveryThatWaitsDoesNotRun(t *testing.T) {
	t.Parallel()
	const runs = "Recovery runs."
	for want, concerns := range map[string][]*fleetv1.Concern{
		runs: {
			{Kind: "state", Subject: "silent", Text: "2 silent"},
			{Kind: "certificate", Subject: "operator-api", Text: "it has expired"},
			{Kind: "role", Subject: "prober", Text: "no live control plane has the role prober"},
		},
		"No silence of an agent counts: no agent listener is up.\nRecovery runs.":                                            {{Kind: "listener", Text: "no agent listener is up"}},
		"Recovery waits: no live control plane has the role recoverer.":                                                      {{Kind: "role", Subject: "recoverer", Text: "no live control plane has the role recoverer"}},
		"Recovery waits: see `ironherd machine list --server URL`.":                                                          {{Kind: "restored", Text: "see `ironherd machine list`"}},
		"Recovery waits: the disk is full.\nNo silence of an agent counts: callers wait.":                                    {{Kind: "database", Text: "the disk is full"}, {Kind: "listener", Subject: "room", Text: "callers wait"}},
		"Recovery is stopped by anna since 2026-11-21 10:00:00Z: a switch. ironherd recovery resume --server URL ends that.": {{Kind: "database", Text: "the disk is full"}},
	} {
		server := newFakeServer(t)
		server.summary = &fleetv1.GetSummaryResponse{Concerns: concerns}
		if strings.HasPrefix(want, "Recovery is stopped") {
			server.summary.RecoveryHold = &fleetv1.RecoveryHold{At: at(10, 0), Actor: "anna", Reason: "a switch"}
		}
		r := server.run(t, "recovery", "status")
		got, _, _ := strings.Cut(strings.ReplaceAll(r.stdout, server.url, "URL"), "\n0 machines silent")
		if r.code != 0 || got != want || !strings.Contains(want, runs) && strings.Contains(r.stdout, runs) {
			t.Errorf("exit code %d: %q\nwant %q", r.code, got, want)
		}
	}
}
