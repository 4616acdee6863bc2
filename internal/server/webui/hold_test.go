package webui

import (
	"regexp"
	"strings"
	"testing"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestPageSaysThatRecoveryIsStopped: it is the first line, and nothing is called well meanwhile.
func TestPageSaysThatRecoveryIsStopped(t *testing.T) {
	t.Parallel()
	stub := &stubFleet{summary: &fleetv1.GetSummaryResponse{
		Machines: 1000, States: []*fleetv1.StateCount{{State: "installed", Machines: 1000}},
		RecoveryHold: &fleetv1.RecoveryHold{
			At: stampAt("03:00:00"), Until: stampAt("04:00:00"), Actor: fleet.ActorBMDB, Cause: string(fleet.StopSilence), Reason: "900 of 1000 machines with an agent are silent: the fault is probably ours",
			Suspects: []string{"its certificate: it expired on 2026-11-01"},
		},
	}}
	body := get(t, New(overWire(t, stub), Options{}), "/").Body.String()
	held, count := strings.Index(body, "Recovery is stopped:"), strings.Index(body, "<h1><b>1")
	if held < 0 || count < held || !strings.Contains(body, "900 of 1000 machines with an agent are silent: the fault is probably ours") ||
		!strings.Contains(body, "Check its certificate: it expired on 2026-11-01") || strings.Contains(body, "Nothing needs you.") {
		t.Errorf("the page says:\n%s", body)
	}
	if !strings.Contains(body, "(ironherd,") || !strings.Contains(body, "or ironherd recovery resume") || strings.Contains(body, fleet.ActorBMDB) {
		t.Errorf("who has stopped it, and what ends that, is not told:\n%s", body)
	}
	h := stub.summary.RecoveryHold
	h.Actor, h.Cause, h.Suspects = fleet.ActorPolicy, string(fleet.StopBudget), nil
	if body := get(t, New(overWire(t, stub), Options{}), "/").Body.String(); !strings.Contains(body, "(policy,") || strings.Contains(body, "recovery resume") {
		t.Errorf("nobody can end a stop for a spent budget, and the page says:\n%s", body)
	}
	h.Cause = "" // of a release that knew none
	if body := get(t, New(overWire(t, stub), Options{}), "/").Body.String(); strings.Contains(body, "recovery resume") {
		t.Errorf("nobody can end a stop of the policy, and the page says:\n%s", body)
	}
	stub = &stubFleet{summary: &fleetv1.GetSummaryResponse{Machines: 3}}
	if body := get(t, New(overWire(t, stub), Options{}), "/").Body.String(); strings.Contains(body, "Recovery is stopped") || !strings.Contains(body, "Nothing needs you.") {
		t.Errorf("nothing is stopped, and the page says:\n%s", body)
	}
}

// TestPageSaysWhichProviderIsPaused: it is told, and is no reason to look.
func TestPageSaysWhichProviderIsPaused(t *testing.T) {
	t.Parallel()
	stub := &stubFleet{summary: &fleetv1.GetSummaryResponse{
		Machines:        3,
		PausedProviders: []*fleetv1.ProviderPause{{Provider: "metal", At: stampAt("03:00:00"), Actor: "ada", Reason: "the bill"}},
	}, providers: []*fleetv1.Provider{{Name: "metal", PausedAt: stampAt("03:00:00"), PausedBy: "ada", PausedWhy: "the bill"}}}
	body := get(t, New(overWire(t, stub), Options{}), "/").Body.String()
	text := textOf(body)
	for _, want := range []string{"metal is paused by ada since 2026-03-01 03:00:00Z", ": the bill", "Nothing needs you."} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "paused by ada since 2026-03-01 03:00:00Z"); n != 2 {
		t.Errorf("the page says %d times since when it is paused:\n%s", n, text)
	}
	if n := strings.Count(body, "(ironherd provider resume metal --reason WHY ends that)"); n != 2 {
		t.Errorf("the page says %d times what ends the pause:\n%s", n, body)
	}
}

// TestPageShowsAnOperation: what is under way, and whose turn it is.
func TestPageShowsAnOperation(t *testing.T) {
	t.Parallel()
	stub := smallFleet()
	stub.machine.Operation = &fleetv1.Operation{Number: 4, Operation: "reboot", Actor: "token ada", Reason: "it hangs"}
	body := get(t, New(overWire(t, stub), Options{}), "/machines/herd-0001").Body.String()
	if !strings.Contains(body, "reboot is under way (operation 4), asked for by token ada: it hangs") {
		t.Errorf("the page says:\n%s", body)
	}
	stub.machine.Operation.EndedAt = stampAt("03:00:00")
	if body := get(t, New(overWire(t, stub), Options{}), "/machines/herd-0001").Body.String(); strings.Contains(body, "is under way (operation") {
		t.Errorf("it has ended, and the page says:\n%s", body)
	}
}

// textOf is what a page says, without its markup.
func textOf(body string) string {
	return strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(body, " ")), " ")
}

// TestPageSaysWhatIsNotCompared: that there is no discrepancy says nothing of a provider that
// nobody has compared, as while it is paused.
func TestPageSaysWhatIsNotCompared(t *testing.T) {
	t.Parallel()
	for _, shown := range [][]*fleetv1.Discrepancy{nil, {{Provider: "metal", Kind: "list-loss"}}} {
		stub := &stubFleet{summary: &fleetv1.GetSummaryResponse{Machines: 3}, discrepancies: shown}
		const told = "rack may differ: it was never compared"
		if text := textOf(get(t, New(overWire(t, stub), Options{}), "/").Body.String()); strings.Contains(text, "may differ") {
			t.Errorf("all is compared, and the page says:\n%s", text)
		}
		stub.uncompared = []*fleetv1.Uncompared{{Provider: "rack", Why: "it was never compared"}}
		if text := textOf(get(t, New(overWire(t, stub), Options{}), "/").Body.String()); !strings.Contains(text, told) {
			t.Errorf("with %d discrepancies the page lacks %q:\n%s", len(shown), told, text)
		}
	}
}
