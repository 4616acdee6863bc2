package webui

import (
	"slices"
	"testing"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestConcernsLeadToWhatSaysMore: each kind of concern leads to the place where more is said of it,
// and nowhere if there is none. States and discrepancies are on the page themselves.
func TestConcernsLeadToWhatSaysMore(t *testing.T) {
	t.Parallel()
	want := map[fleet.ConcernKind]string{
		"late": "/machines?state=one", "host-key": "/machines/one", "refusal": "/machines/one", "unasked": "/machines/one",
		"provider": "#providers", "role": "#sessions", "overdue": "#processes",
		"listener": "", "database": "", "restored": "", "finding": "", "duty": "", "certificate": "", "token": "",
	}
	for _, kind := range fleet.ConcernKinds() {
		summary := &fleetv1.GetSummaryResponse{Concerns: []*fleetv1.Concern{{Kind: string(kind), Subject: "one", Text: "what it is"}}}
		link, shown := want[kind]
		got := overview{summary: summary}.concerns()
		if !shown && !slices.Contains([]fleet.ConcernKind{fleet.ConcernState, fleet.ConcernDiscrepancy}, kind) {
			t.Errorf("where does %s lead?", kind)
		}
		if shown != (len(got) == 1) || shown && got[0] != (concern{"what it is", link}) {
			t.Errorf("%s: %v, want %q", kind, got, link)
		}
	}
}
