package agenda_test

import (
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/agenda"
	"github.com/ironherd/ironherd/internal/fleet"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// TestRaiseAgainstDue: a floor rises only when nothing became due since the look began that found
// nothing below. What becomes due in the future is above every floor that such a look may set, and
// does not keep it from rising; but it lowers a floor that is above it.
func TestRaiseAgainstDue(t *testing.T) {
	t.Parallel()
	const process, provider = fleet.ProcessAgentStart, fleet.ProviderName("p1")
	old := now.Add(-time.Hour)
	for name, c := range map[string]struct {
		entry agenda.Entry
		at    time.Time // when it is due
		now   time.Time // of the commit that made it so
		floor time.Time // afterwards
	}{
		"due already":          {agenda.Entry{Process: process, Provider: provider}, now.Add(-time.Second), now, old},
		"due at once":          {agenda.Entry{Process: process, Provider: provider}, now, now, old},
		"in the future":        {agenda.Entry{Process: process, Provider: provider}, now.Add(time.Second), now, now},
		"by an unknown clock":  {agenda.Entry{Process: process, Provider: provider}, now.Add(time.Second), time.Time{}, old},
		"at any provider":      {agenda.Entry{Process: process}, now, now, old},
		"at another provider":  {agenda.Entry{Process: process, Provider: "p2"}, now, now, now},
		"of another process":   {agenda.Entry{Process: fleet.ProcessRecovery, Provider: provider}, now, now, now},
		"below the floor, too": {agenda.Entry{Process: process, Provider: provider}, old.Add(-time.Second), now, old.Add(-time.Second)},
	} {
		heads := agenda.New()
		d := heads.Head(process, []fleet.ProviderName{provider}, 0)
		_, changes := d.Floor(0)
		d.Raise(old, changes)
		_, changes = d.Floor(time.Second) // a look begins
		heads.Due(map[agenda.Entry]time.Time{c.entry: c.at}, c.now)
		d.Raise(now, changes)
		if floor, _ := d.Floor(time.Second); !floor.Equal(c.floor) {
			t.Errorf("%s: the floor is %s, want %s", name, floor, c.floor)
		}
	}
}

// TestWhoIsWoken: whoever claims the work of some providers waits for theirs alone, and who claims
// none at all waits for any.
func TestWhoIsWoken(t *testing.T) {
	t.Parallel()
	const process = fleet.ProcessInstall
	for name, c := range map[string]struct {
		claims [][]fleet.ProviderName
		woken  bool
	}{
		"nobody claims":          {nil, true},
		"for all":                {[][]fleet.ProviderName{nil}, true},
		"for this one":           {[][]fleet.ProviderName{{"p2"}, {"p1"}}, true},
		"for another one":        {[][]fleet.ProviderName{{"p2"}}, false},
		"for two that are other": {[][]fleet.ProviderName{{"p2", "p3"}}, false},
	} {
		heads := agenda.New()
		wake := heads.Wake(process)
		for _, providers := range c.claims {
			heads.Head(process, providers, 0)
		}
		heads.Due(map[agenda.Entry]time.Time{{Process: process, Provider: "p1"}: now}, now)
		if woken := len(wake) == 1; woken != c.woken {
			t.Errorf("%s: woken %t", name, woken)
		}
	}
}

// TestDueBelowARisenFloor: what becomes due below the floor lowers it, also where it is in the
// future by the clock of the commit.
func TestDueBelowARisenFloor(t *testing.T) {
	t.Parallel()
	heads := agenda.New()
	d := heads.Head(fleet.ProcessInstall, nil, 0)
	_, changes := d.Floor(0)
	d.Raise(now, changes)
	at := now.Add(-time.Minute)
	heads.Due(map[agenda.Entry]time.Time{{Process: fleet.ProcessInstall}: at}, at.Add(-time.Second))
	if floor, _ := d.Floor(time.Second); !floor.Equal(at) {
		t.Errorf("the floor is %s, want %s", floor, at)
	}
	if floor, _ := d.Floor(agenda.ScanEvery); !floor.IsZero() {
		t.Errorf("after %s the floor is %s, want the bottom", agenda.ScanEvery, floor)
	}
}

// TestPause: it doubles with each look in vain, up to the longest, and is the first one again when
// something was found.
func TestPause(t *testing.T) {
	t.Parallel()
	d := agenda.New().Head(fleet.ProcessInstall, nil, 0)
	want := agenda.FirstPause
	for range 100 {
		if got := d.Pause(); got != want || d.Idle() != (want != agenda.FirstPause) {
			t.Fatalf("pause %s, want %s; idle: %t", got, want, d.Idle())
		}
		d.Found(false)
		want = min(2*want, agenda.LongestPause)
	}
	d.Found(true)
	if got := d.Pause(); got != agenda.FirstPause || d.Idle() {
		t.Errorf("pause %s after something was found; idle: %t", got, d.Idle())
	}
}
