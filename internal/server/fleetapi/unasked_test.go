package fleetapi

import (
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
)

// TestSystemsThatCannotBeAsked are a concern, which names the one of which that is so for longest.
func TestSystemsThatCannotBeAsked(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	const tail = "what is shown was found before; `ironherd machine explain m1` says why"
	for n, want := range map[int]string{
		0: "",
		1: "an installed system cannot be asked whether it is up since 11:00:00 UTC: " + tail,
		7: "7 installed systems cannot be asked whether they are up, the first since 11:00:00 UTC: " + tail,
	} {
		got := ""
		for _, c := range unasked(bmdb.Summary{At: now, Unasked: n, FirstUnasked: "m1", UnaskedSince: now.Add(-time.Hour)}) {
			if got += c.GetText(); c.GetKind() != concernUnasked || c.GetSubject() != "m1" || c.GetCount() != int64(n) {
				t.Errorf("%v", c)
			}
		}
		if got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
