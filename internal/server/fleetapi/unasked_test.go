package fleetapi

import (
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// TestSystemsThatCannotBeAsked are a concern, which names the one of which that is so for longest.
func TestSystemsThatCannotBeAsked(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	const tail = "what is shown was found before; `ironherd machine explain m1` says why"
	for n, want := range map[int]string{
		0:                  "",
		1:                  "an installed system cannot be asked whether it is up since 11:00:00 UTC: " + tail,
		7:                  "7 installed systems cannot be asked whether they are up, the first since 11:00:00 UTC: " + tail,
		bmdb.CountedAtMost: "10000 or more installed systems cannot be asked whether they are up, the first since 11:00:00 UTC: " + tail,
	} {
		got := ""
		for _, c := range unaskedSystems(bmdb.Summary{At: now, Unasked: bmdb.Counted{N: n, First: "m1"}, UnaskedSince: now.Add(-time.Hour)}) {
			if got += c.GetText(); c.GetKind() != string(fleet.ConcernUnasked) || c.GetSubject() != "m1" || c.GetCount() != int64(n) {
				t.Errorf("%v", c)
			}
		}
		if got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

// TestASystemThatCannotBeAskedIsExplained: since when, and why, in backoff and while it is tried
// again.
func TestASystemThatCannotBeAskedIsExplained(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	const since = " The installed system cannot be asked whether it is up since 2026-11-20 12:00:00 UTC"
	for name, c := range map[string]struct {
		backoff fleet.BackoffState
		change  func(*fleet.Record)
		want    string
	}{
		"it can be":  {},
		"in backoff": {backoff: fleet.BackoffState{NotBefore: now.Add(time.Minute), Since: ago(24 * time.Hour)}, want: since + "."},
		"due again":  {backoff: fleet.BackoffState{NotBefore: now, Since: ago(24 * time.Hour)}, want: since + ": the jump host is down."},
		"tried": {
			backoff: fleet.BackoffState{NotBefore: now, Since: ago(24 * time.Hour)}, want: since + ": the jump host is down.",
			change: func(r *fleet.Record) {
				r.Holds = map[fleet.Lane]fleet.Hold{fleet.ProcessProbe.Lane(): {Process: fleet.ProcessProbe, Deadline: now.Add(time.Minute)}}
			},
		},
		"its turn did not come": {backoff: fleet.BackoffState{NotBefore: now.Add(time.Minute)}},
		"nobody wants to ask it": {
			backoff: fleet.BackoffState{NotBefore: now, Since: ago(24 * time.Hour)},
			change:  func(r *fleet.Record) { r.Quarantine = &fleet.Quarantine{At: ago(time.Hour), Reason: "smoke"} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := fleet.SeenUp{By: fleet.SeenBySSH, Watch: true}
			r := fleet.Record{
				Provided:       &fleet.Provided{Status: fleet.ProviderStatusActive},
				InstallRequest: &fleet.InstallRequest{Generation: 1, SeenUp: up},
				Installed:      &fleet.Installed{Generation: 1, Attempt: 1, At: ago(48 * time.Hour), SeenUp: up},
				Probe:          &fleet.Probe{Generation: 1, Attempt: 1, At: ago(25 * time.Hour), AnsweredAt: ago(25 * time.Hour)},
			}
			if c.backoff.NotBefore != (time.Time{}) {
				c.backoff.Cause, c.backoff.Failures = "the jump host is down", 3
				r.Backoffs = map[fleet.Process]fleet.BackoffState{fleet.ProcessProbe: c.backoff}
			}
			if c.change != nil {
				c.change(&r)
			}
			env := fleet.Environment{Policy: fleet.DefaultPolicy()}
			j := judged{record: r, env: env, plan: lifecycle.Decide(r, env, now), now: now}
			got := j.summary(j.nextStep())
			if !strings.Contains(got, c.want) || strings.Contains(got, "cannot be asked") != (c.want != "") {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
