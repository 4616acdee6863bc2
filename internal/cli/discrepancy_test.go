package cli_test

import (
	"context"
	"strings"
	"testing"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

// agreeing is a fleet without a discrepancy.
type agreeing struct {
	*fakeFleet
	uncompared []*fleetv1.Uncompared
}

func (f *agreeing) ListDiscrepancies(context.Context, *fleetv1.ListDiscrepanciesRequest) (*fleetv1.ListDiscrepanciesResponse, error) {
	return &fleetv1.ListDiscrepanciesResponse{Uncompared: f.uncompared}, nil
}

// TestWhatIsNotComparedDoesNotAgree: that there is no discrepancy says nothing of a provider that
// nobody has compared since the database came back.
func TestWhatIsNotComparedDoesNotAgree(t *testing.T) {
	t.Parallel()
	for want, uncompared := range map[string][]*fleetv1.Uncompared{
		"Providers and database agree.\n": nil,
		"Nothing is known to differ.\nProvider rack may differ: it was never compared (`ironherd provider show rack --server URL`)\n": {{Provider: "rack", Why: "it was never compared"}},
	} {
		f := &agreeing{fakeFleet: &fakeFleet{}, uncompared: uncompared}
		h := serveFake(t, f.fakeFleet, f)
		want = strings.ReplaceAll(want, "URL", h.url)
		if r := h.run(t, "discrepancy", "list"); r.stdout != want || r.code != 0 {
			t.Errorf("%d: %q %s, want %q", r.code, r.stdout, r.stderr, want)
		}
	}
}
