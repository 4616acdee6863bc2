package cli_test

import (
	"slices"
	"strings"
	"testing"
)

// TestListAsksForWhatIsSelected: the list of machines takes the same selector, and stops at its
// limit.
func TestListAsksForWhatIsSelected(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	r := h.run(t, "machine", "list", "--state", "silent", "--provider", "metal", "--location", "rack 4", "--limit", "1", "-o", "json")
	if r.code != 0 || strings.Count(r.stdout, `"id":`) != 1 || len(h.lists) != 1 {
		t.Fatalf("%d, %q: %s", r.code, r.stderr, r.stdout)
	}
	if l := h.lists[0]; l.GetProvider() != "metal" || !slices.Equal(l.GetStates(), []string{"silent"}) ||
		!slices.Equal(l.GetLocations(), []string{"rack 4"}) || l.GetPageSize() != 1 {
		t.Errorf("asked for %v", l)
	}
	if r := run(t, nil, "__complete", "--server", h.url, "machine", "reboot", "--location", ""); !strings.Contains(r.stdout, machine().GetLocation()+"\n") {
		t.Errorf("completion: %q", r.stdout)
	}
}

// TestSelectorsThatMakeNoSense: what the command itself refuses.
func TestSelectorsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for command, says := range map[string]string{
		"machine list --limit -1":                             "--limit must be from 1 to 1073741824, not -1",
		"machine list --limit 0":                              "--limit must be from 1 to 1073741824, not 0: leave it out to mean all machines that are selected",
		"machine release --provider sim --limit 0 --reason r": "--limit must be from 1 to 1073741824, not 0: leave it out to mean all machines that are selected",
		"machine install x --limit 0 --image i":               "--limit, --after and --output belong to --reinstall and --cancel",
		"machine reboot --limit 3 --reason r":                 "name machines, or select them with --provider, --state and --location",
		"machine reboot x --limit 3 --reason r":               "machines and a selector contradict each other",
		"machine reboot --location= --reason r":               "--location must name a location",
		"machine install x --location a --image i":            "--reason, --yes, --provider, --state, --location, --limit, --after and --output belong to --reinstall and --cancel",
	} {
		if r := newFakeServer(t).run(t, strings.Fields(command)...); r.code != 2 || !strings.Contains(r.stderr, says) {
			t.Errorf("%s: %d, %q", command, r.code, r.stderr)
		}
	}
}
