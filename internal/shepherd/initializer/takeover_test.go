package initializer_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/sim/sshhost"
)

// History has what a takeover that succeeded tells of the one before, and its warnings, bounded and
// fit to be shown.
func TestHistoryKeepsWhatATakeoverTells(t *testing.T) {
	t.Parallel()
	warnings := []string{"no name \x1b[31mserver is known", strings.Repeat("x", 1000)}
	for n := range 20 {
		warnings = append(warnings, fmt.Sprintf("warning %d", n))
	}
	for name, test := range map[string]struct {
		returned *agentv1.ReturnedTakeover
		warnings []string
		want     []string // of history, newest last
	}{
		"nothing": {nil, nil, nil},
		"returned": {
			&agentv1.ReturnedTakeover{TakeoverGeneration: 7, Cause: "no route\nto host"}, nil,
			[]string{"returned to the old system: takeover generation 7: no routeto host"},
		},
		"returned, and warnings": {
			&agentv1.ReturnedTakeover{TakeoverGeneration: 7, Cause: "no route"}, warnings[:2],
			[]string{
				"returned to the old system: takeover generation 7: no route", "takeover warning: no name [31mserver is known",
				"takeover warning: " + strings.Repeat("x", 300) + "…",
			},
		},
		"more warnings than are kept": {nil, warnings[2:], []string{
			"takeover warning: warning 0", "takeover warning: warning 1", "takeover warning: warning 2", "takeover warning: warning 3",
			"takeover warning: warning 4", "takeover warning: warning 5", "takeover warning: warning 6", "takeover warning: warning 7",
			"takeover warning: warning 8", "takeover warning: 11 more warnings were left out",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.sources[0].Config.Takeover = initializer.TakeoverKexec
			b.agent = func(init *agentv1.TakeoverInit, p sshhost.Program) sshhost.Status {
				return answer(p, &agentv1.TakeoverResponse{Init: init, Returned: test.returned, Outcome: &agentv1.TakeoverResponse_Success{
					Success: &agentv1.TakeoverSuccess{PublicKey: make([]byte, 32), BootId: "boot-1", Mode: init.GetMode(), Warnings: test.warnings},
				}})
			}
			if outcome, ok := b.start().(shepherd.Finish); !ok {
				t.Fatalf("got %T %+v", outcome, outcome)
			}
			if mode := b.inits[0].GetMode(); mode != agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC {
				t.Errorf("the agent was told %s", mode)
			}
			page, err := b.db.History(t.Context(), b.machine, 100)
			check(t, err)
			var got []string
			for _, row := range page {
				if row.Event == fleet.EventTakeoverReturned || row.Event == fleet.EventTakeoverWarning {
					got = append(got, string(row.Event)+": "+row.Detail)
				}
			}
			slices.Reverse(got)
			if !slices.Equal(got, test.want) {
				t.Errorf("history: %q", got)
			}
		})
	}
}

// An agent that is older than kexec takes the machine over in place, whatever it is told. That is
// no takeover.
func TestTakeoverInAnotherMode(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.sources[0].Config.Takeover = initializer.TakeoverKexec
	if outcome, ok := b.start().(shepherd.Fail); !ok || !strings.Contains(outcome.Err.Error(), "in place and not by kexec") {
		t.Errorf("got %+v", outcome)
	}
	if started := b.record().AgentStarted; started != nil {
		t.Errorf("recorded %+v", started)
	}
}

// TestFirstUseIsToldOnce: also where the host has seen a newer takeover generation, so that another
// one is minted.
func TestFirstUseIsToldOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.attest()
	b.sources[0].Config.TrustFirstUse = true
	b.agent = func(init *agentv1.TakeoverInit, p sshhost.Program) sshhost.Status {
		if init.GetTakeoverGeneration() > 45 {
			return takesOver(init, p)
		}
		return answer(p, &agentv1.TakeoverResponse{Init: init, Outcome: &agentv1.TakeoverResponse_Failure{
			Failure: &agentv1.TakeoverFailure{Message: "seen", Superseded: true, SeenGeneration: 45},
		}})
	}
	if outcome, ok := b.start().(shepherd.Finish); !ok {
		t.Fatalf("got %T %+v\n%s", outcome, outcome, b.log.String())
	}
	page, err := b.db.History(t.Context(), b.machine, 100)
	check(t, err)
	told := 0
	for _, row := range page {
		if row.Event == fleet.EventHostKeyTrusted {
			told++
		}
	}
	if logged := strings.Count(b.log.String(), "trusted on first use"); told != 1 || logged != 1 || b.record().TakeoverGeneration != 46 {
		t.Errorf("history tells it %d times, the log %d times; takeover generation %d", told, logged, b.record().TakeoverGeneration)
	}
}

// TestAMachineIsNotToldToCallItself: a list can get its first host of another address while the
// control plane runs with an endpoint that is only for itself.
func TestAMachineIsNotToldToCallItself(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.fake.Change(b.device.ID, func(e *provider.Entry) bool { e.Address = netip.MustParseAddr("192.0.2.7"); return true })
	failed, ok := b.start().(shepherd.Fail)
	if !ok || fleet.KindOf(failed.Err) != fleet.KindInvalid || !strings.Contains(failed.Err.Error(), "machines are told to call 127.0.0.1:7443, where each finds itself: set agent_api.endpoint") {
		t.Errorf("got %+v", failed.Err)
	}
	if record := b.record(); record.TakeoverGeneration != 0 {
		t.Errorf("takeover generation %d", record.TakeoverGeneration)
	}
}
