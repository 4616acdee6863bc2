package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/rehearsal"
)

// TestARehearsalThatEndsEarly: with a broken promise it ends before anybody knows whether all is
// well, and no answer says so.
func TestARehearsalThatEndsEarly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		report   rehearsal.Report
		scenario string
		well     bool
		left     string
	}{
		"a broken promise": {
			report: rehearsal.Report{Violations: []rehearsal.Violation{{Invariant: "I9", At: time.Minute, Detail: "an install starts twice"}}},
			left:   "the control plane broke a promise of its own: I9 at 1m0s: an install starts twice",
		},
		"a broken promise, found in the end": {
			report: rehearsal.Report{Settled: time.Hour, Violations: []rehearsal.Violation{{Invariant: "I4", At: time.Hour, Detail: "d"}}},
			left:   "the control plane broke a promise of its own: I4 at 1h0m0s: d",
		},
		"something left":                     {report: rehearsal.Report{Left: "machine m is silent"}, left: "machine m is silent"},
		"everything well":                    {report: rehearsal.Report{Settled: time.Hour}, well: true},
		"reinstalled, of a fault of its own": {report: rehearsal.Report{Settled: time.Hour, Restarts: map[string]int{"reinstall": 2}}, well: true},
		"reinstalled, and nothing was wrong": {
			scenario: "agents-cut-off", report: rehearsal.Report{Settled: time.Hour, Restarts: map[string]int{"reinstall": 2}},
			left: "what was on disks is lost although nothing was wrong with the machines: reinstalls 2, machines given back 0",
		},
		"given back, and nothing was wrong": {
			scenario: "listener-down",
			report:   rehearsal.Report{Settled: time.Hour, Released: 1, States: map[fleet.State]int{fleet.StateQuarantined: 1}},
			left: "what was on disks is lost although nothing was wrong with the machines: reinstalls 0, machines given back 1; " +
				"1 machine waits for somebody: 1 quarantined",
		},
		"rebooted, and nothing was wrong": {
			scenario: "agents-cut-off", report: rehearsal.Report{Settled: time.Hour, Restarts: map[string]int{"reboot": 2}}, well: true,
		},
	} {
		scenario, err := rehearsal.FindScenario(cmp.Or(c.scenario, "lose-rack"))
		if err != nil {
			t.Fatal(err)
		}
		answer := newRehearsal(scenario, rehearseFlags{}, c.report)
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

// TestTheCommandOfARehearsal has all that the answer depends on, besides the configuration.
func TestTheCommandOfARehearsal(t *testing.T) {
	t.Parallel()
	f := rehearseFlags{scenario: "deploy", seed: 7, machines: 12, controllers: 3, hours: 0.5}
	want := "ironherd rehearse --config /etc/i.yaml --scenario deploy --seed 7 --machines 12 --control-planes 3 --hours 0.5"
	if got := f.command("/etc/i.yaml"); got != want {
		t.Errorf("got %s", got)
	}
}

// TestProgressOfARehearsal is told of long ones alone.
func TestProgressOfARehearsal(t *testing.T) {
	t.Parallel()
	var said []string
	at := time.Time{}
	tell := progressOf(func() time.Time { return at }, func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) })
	for i := range 5 {
		at = at.Add(5 * time.Second)
		tell(i > 2, time.Duration(i)*time.Hour)
	}
	want := []string{"1h0m0s are rehearsed, and the fleet is not there and well yet", "3h0m0s of the scenario are rehearsed"}
	if !slices.Equal(said, want) {
		t.Errorf("said %q", said)
	}
}
