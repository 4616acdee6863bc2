package cli_test

import (
	"context"
	"strings"
	"testing"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

// upSince answers with a machine whose install has come up, and which is in another state by now.
type upSince struct {
	*fakeFleet
	state, reason string
}

func (f upSince) GetMachine(context.Context, *fleetv1.GetMachineRequest) (*fleetv1.GetMachineResponse, error) {
	m := machine()
	m.State, m.Reason, m.InstallGeneration = f.state, f.reason, 2
	return &fleetv1.GetMachineResponse{Machine: m, InstalledGeneration: 2, Decisions: []*fleetv1.Decision{
		{Process: "install", Verdict: "not-wanted", Reason: "installed (generation 2)"},
	}}, nil
}

// TestInstallHasComeUpWhateverCameThen: who waits for an install is told that it has come up, also
// where the machine went into another state before they looked.
func TestInstallHasComeUpWhateverCameThen(t *testing.T) {
	t.Parallel()
	for state, reason := range map[string]string{
		"maintenance": "maintenance by ada", "off": "switched off by ada", "silent": "nothing was heard", "quarantined": "by ada", "releasing": "by ada", "installed": "generation 2",
	} {
		f := &fakeFleet{}
		h := serveFake(t, f, upSince{f, state, reason})
		r := h.run(t, append([]string{"machine", "install", "herd-0001", "--wait"}, installArgs...)...)
		if r.code != 0 || !strings.HasSuffix(r.stderr, "herd-0001: "+state+": "+reason+"\n") {
			t.Errorf("%s: %d, %q", state, r.code, r.stderr)
		}
	}
}
