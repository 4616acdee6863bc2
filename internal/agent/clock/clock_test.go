package clock

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// TestNotBefore: a clock that is behind counts from what was told, one that is ahead from itself.
func TestNotBefore(t *testing.T) {
	t.Parallel()
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // of every bubble
	for name, test := range map[string]struct {
		told *timestamppb.Timestamp
		want time.Time
	}{
		"nothing":          {nil, start},
		"it is behind":     {timestamppb.New(start.AddDate(26, 0, 0)), start.AddDate(26, 0, 0)},
		"an old message":   {timestamppb.New(start.AddDate(-1, 0, 0)), start},
		"the same instant": {timestamppb.New(start), start},
	} {
		synctest.Test(t, func(t *testing.T) { // each begins at the same instant
			clock := NotBefore(test.told)
			if got := clock(); !got.Equal(test.want) {
				t.Errorf("%s: %v, want %v", name, got, test.want)
			}
			time.Sleep(time.Hour)
			if got, want := clock(), test.want.Add(time.Hour); !got.Equal(want) {
				t.Errorf("%s, an hour later: %v, want %v", name, got, want)
			}
		})
	}
}

// TestWarning: an hour is what nobody is told of.
func TestWarning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // it is 2000-01-01 there
		for _, test := range []struct {
			told *timestamppb.Timestamp
			want string
		}{
			{nil, ""},
			{timestamppb.New(time.Now().Add(59 * time.Minute)), ""},
			{timestamppb.New(time.Now().Add(-59 * time.Minute)), ""},
			{
				timestamppb.New(time.Now().AddDate(26, 10, 25)),
				"the clock of this host says 2000-01-01 00:00 UTC, that of the control plane 2026-11-26 00:00: set it, and have it kept right (NTP)",
			},
			{
				timestamppb.New(time.Now().Add(-time.Hour)),
				"the clock of this host says 2000-01-01 00:00 UTC, that of the control plane 1999-12-31 23:00: set it, and have it kept right (NTP)",
			},
		} {
			if got := Warning(test.told); got != test.want {
				t.Errorf("told %v: %q, want %q", test.told, got, test.want)
			}
		}
	})
}
