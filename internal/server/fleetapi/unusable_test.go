package fleetapi

import (
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestEntriesThatAreLeftAloneAreAConcern: nothing ends one but a person, so each provider that has
// some is named, with their number and the reason of the first, until a pass has found none.
func TestEntriesThatAreLeftAloneAreAConcern(t *testing.T) {
	t.Parallel()
	db, must := openBMDB(t)
	s := New(db, Options{Logger: discardLog})
	must(db.RegisterProvider(t.Context(), "rack", "static", 0))
	session, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: fleet.RoleProvisioner.Component(), Lease: time.Hour})
	must(err)
	claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessProvision, Limit: 1})
	must(err)
	work := claim.Works[0]
	told := func() (got string) {
		t.Helper()
		summary, err := db.Summary(t.Context())
		must(err)
		all, err := s.concerns(t.Context(), summary, providersOf(t, db))
		must(err)
		for _, c := range all {
			if c.GetKind() == string(fleet.ConcernProvider) && c.GetSubject() == "rack" {
				got += c.GetText()
			}
		}
		return got
	}
	const many = "provider rack: more than 100 entries of its list are left alone until somebody puts them right, the first one because of: no; `ironherd provider show rack` tells more"
	for result, want := range map[string]string{
		"1 used, 0 free": "",
		"1 used, 0 free, 1 unusable\nline 7: host \"b\" has no address":                         "provider rack: 1 entry of its list is left alone until somebody puts it right: line 7: host \"b\" has no address",
		"0 used, 0 free, 2 unusable\nline 7: no\nline 9: neither":                               "provider rack: 2 entries of its list are left alone until somebody puts them right, the first one because of: line 7: no; `ironherd provider show rack` tells more",
		"120 used, 120 unusable" + strings.Repeat("\nno", bmdb.UnusableNamed) + "\nand 20 more": many,
	} {
		must(work.Note(t.Context(), bmdb.SetPassResult(result)))
		if got := told(); got != want {
			t.Errorf("told is %q, want %q", got, want)
		}
	}
	must(db.PauseProvider(t.Context(), "ada", "rack", "the bill"))
	const before = " until somebody puts it right, as of the last pass, before the pause: line 7: no address"
	must(work.Note(t.Context(), bmdb.SetPassResult("1 used, 0 free, 1 unusable\nline 7: no address")))
	if got := told(); !strings.HasSuffix(got, before) {
		t.Errorf("while it is paused, told is %q, want %q", got, before)
	}
	must(work.Note(t.Context(), bmdb.SetPassResult("1 used, 0 free, 2 unusable\nline 7: no\nline 9: neither")))
	if got := told(); !strings.Contains(got, "puts them right, as of the last pass, before the pause, the first one") {
		t.Errorf("while it is paused, told is %q", got)
	}
}
