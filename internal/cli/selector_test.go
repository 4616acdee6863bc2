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
	if r := run(t, nil, "__complete", "--server", h.url, "machine", "list", "--label", "ro"); !strings.HasPrefix(r.stdout, "role=database\n:") {
		t.Errorf("completion: %q", r.stdout)
	}
}

// TestLabelsThatAreNotKnown: an older control plane selects without labels. Its plan is not carried
// out, and its machines are not shown.
func TestLabelsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	for _, old := range []bool{false, true} {
		for _, command := range []string{
			"machine list --label role=database --label zone --limit 1", "machine reboot --label role=database --reason r --yes",
			"machine reboot --provider metal --label role=database --reason r --yes", "machine release --label zone --reason r --yes",
		} {
			h := newFakeServer(t)
			if h.old = old; old { // which lists all
				command = strings.Replace(command, "zone", "rack=7", 1)
			}
			r := h.run(t, strings.Fields(command)...)
			switch asked := h.listsOrPlans(); {
			case !old && (r.code != 0 || len(asked) == 0 || h.confirmed != len(h.plans)):
				t.Errorf("%s: %d, %q, asked for %q, %d confirmed", command, r.code, r.stderr, asked, h.confirmed)
			case old && (r.code != 1 && r.code != 2 || h.confirmed != 0 || r.stdout != "" || !strings.Contains(r.stderr, "too old to know --label")):
				t.Errorf("%s: %d, %q, %q, %d confirmed", command, r.code, r.stderr, r.stdout, h.confirmed)
			}
		}
	}
}

// listsOrPlans are the labels that were asked for.
func (f *fakeFleet) listsOrPlans() (labels []string) {
	for _, l := range f.lists {
		labels = append(labels, l.GetLabels()...)
	}
	for _, p := range f.plans {
		labels = append(labels, p.GetLabels()...)
	}
	return labels
}

// TestSelectorsThatMakeNoSense: what the command itself refuses.
func TestSelectorsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for command, says := range map[string]string{
		"machine list --limit -1":                                     "--limit must be from 1 to 1073741824, not -1",
		"machine list --limit 0":                                      "--limit must be from 1 to 1073741824, not 0: leave it out to mean all machines that are selected",
		"machine release --provider sim --limit 0 --reason r":         "--limit must be from 1 to 1073741824, not 0: leave it out to mean all machines that are selected",
		"machine install x --limit 0 --image i":                       "--limit and --after belong to --reinstall and --cancel",
		"machine reboot --limit 3 --reason r":                         "name machines, or select them with --provider, --state, --location and --label",
		"machine reboot x --limit 3 --reason r":                       "machines and a selector contradict each other",
		"machine reboot --location= --reason r":                       "--location must name a location",
		"machine release --provider= --state failed --reason r --yes": "--provider must name a provider",
		"machine release --provider sim --state= --reason r --yes":    "--state must name a state",
		"machine release --provider sim --after= --reason r --yes":    "--after must be the ID of a machine",
		"machine list --state=":                                       "--state must name a state",
		"machine reboot x --provider= --reason r":                     "--provider must name a provider",
		"machine reboot --label a=b=c --reason r":                     "--label: a label has a name and a value",
		"machine reboot --label --reason r":                           "--label: a label has a name and a value",
		"machine install x --location a --image i":                    "--reason, --yes, --provider, --state, --location, --label, --limit and --after belong to --reinstall and --cancel",
	} {
		if r := newFakeServer(t).run(t, strings.Fields(command)...); r.code != 2 || !strings.Contains(r.stderr, says) {
			t.Errorf("%s: %d, %q", command, r.code, r.stderr)
		}
	}
}

// TestEmptyFlagsAreRefused: a script whose variable is not set does not mean the control plane, the
// configuration or the file that counts without the flag.
func TestEmptyFlagsAreRefused(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	environ := []string{"IRONHERD_SERVER=" + h.url, "HOME=" + t.TempDir()}
	for command, flag := range map[string]string{
		"machine reboot herd-0001 --reason r --server=":          "--server",
		"machine reboot herd-0001 --reason r --config=":          "--config",
		"machine reboot herd-0001 --reason r --token-file=":      "--token-file",
		"machine reboot herd-0001 --reason r --ca-file=":         "--ca-file",
		"machine install herd-0001 --image debian --first-boot=": "--first-boot",
		"machine install herd-0001 --image debian --seen-up-ca=": "--seen-up-ca",
		"serve --config /nowhere.yaml --dir=":                    "--dir",
		"serve --config /nowhere.yaml --roles=":                  "--roles",
		"db accept-restore --config=":                            "--config",
		"demo --print-config --dir=":                             "--dir",
		"image build debian a.img --sources=":                    "--sources",
		"image build debian a.img --apt-config=":                 "--apt-config",
	} {
		r := run(t, environ, strings.Fields(command)...)
		if r.code != 2 || r.stdout != "" || r.stderr != "ironherd: "+flag+" must not be empty: leave it out if that is what is meant\n" {
			t.Errorf("%s: %d, %q, %q", command, r.code, r.stdout, r.stderr)
		}
	}
	if len(h.plans)+len(h.installs) > 0 {
		t.Errorf("asked for %v, %v", h.plans, h.installs)
	}
	// Nobody can leave out what is required.
	if r := run(t, environ, "sim", "--dir="); r.code != 2 || r.stderr != "ironherd: --dir must be set to a directory for the world\n" {
		t.Errorf("sim --dir=: %d, %q", r.code, r.stderr)
	}
	// The help says what this means: all.
	if r := run(t, environ, "machine", "retry", "herd-0001", "--process", ""); r.code != 0 {
		t.Errorf("--process: %d, %q", r.code, r.stderr)
	}
}
