package cli_test

import (
	"strings"
	"testing"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

// TestStatus: a fleet in trouble is in testdata; these have none.
func TestStatus(t *testing.T) {
	t.Parallel()
	for want, summary := range map[string]*fleetv1.GetSummaryResponse{
		"There are no machines.\n": {},
		"There are no machines.\nNeeds a look:\n  provider metal fails\n": {
			Concerns: []*fleetv1.Concern{{Kind: "provider", Subject: "metal", Count: 1, Text: "provider metal fails"}},
		},
		"1 machine: 1 installed.\nNothing needs you.\n": {
			Machines: 1, States: []*fleetv1.StateCount{{State: "installed", Machines: 1}, {State: "silent"}},
			Processes: []*fleetv1.ProcessCount{{Process: "recovery"}},
		},
		"1 machine: 1 installed.\nRecovery is stopped by anna since 2026-11-21 10:00:00Z: a switch. ironherd recovery resume --server URL ends that.\n": {
			Machines: 1, States: []*fleetv1.StateCount{{State: "installed", Machines: 1}},
			RecoveryHold: &fleetv1.RecoveryHold{At: at(10, 0), Actor: "anna", Reason: "a switch"},
		},
		"1 machine: 1 installed.\nmetal is paused by anna since 2026-11-21 10:00:00Z: the bill. ironherd provider resume metal --reason WHY --server URL ends that.\nNothing else needs you.\n": {
			Machines: 1, States: []*fleetv1.StateCount{{State: "installed", Machines: 1}},
			PausedProviders: []*fleetv1.ProviderPause{{Provider: "metal", At: at(10, 0), Actor: "anna", Reason: "the bill."}},
		},
		"20000 machines: 20000 installed.\nNothing needs you.\n\nPROCESS   RUNNING  DUE     BACKING OFF\nrecovery  0        10000+  9999\nprobe     12000    3       10000+\n": {
			Machines: 20000, States: []*fleetv1.StateCount{{State: "installed", Machines: 20000}},
			Processes: []*fleetv1.ProcessCount{{Process: "recovery", Due: 10000, BackingOff: 9999}, {Process: "probe", Running: 12000, Due: 3, BackingOff: 10000}},
		},
	} {
		server := newFakeServer(t)
		server.summary = summary
		if r := server.run(t, "status"); r.code != 0 || strings.ReplaceAll(r.stdout, server.url, "URL") != want {
			t.Errorf("exit code %d: %s\nwant %s", r.code, r.stdout, want)
		}
	}
}
