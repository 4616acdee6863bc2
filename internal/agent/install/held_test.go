package install

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// TestHeldDisk is the last fence: what a disk holds of this machine is overwritten only by a newer
// install, or by the running system that wrote it itself.
func TestHeldDisk(t *testing.T) {
	t.Parallel()
	image := testImage(9, 3*mebibyte)
	type id struct {
		generation int64
		attempt    int32
	}
	tests := map[string]struct {
		machine  string // whom the install on the disk is of
		held     id
		wanted   id
		first    id // that wrote since the host booted
		unbooted bool
		refused  bool
	}{
		"the same install":                       {"m", id{3, 1}, id{3, 1}, id{}, false, true},
		"the same, although it wrote before":     {"m", id{3, 1}, id{3, 1}, id{3, 1}, false, true},
		"an earlier attempt of another boot":     {"m", id{3, 1}, id{3, 2}, id{}, false, true},
		"the same once more":                     {"m", id{3, 1}, id{3, 3}, id{3, 2}, false, true},
		"a later attempt than is asked for":      {"m", id{3, 4}, id{3, 1}, id{}, false, true},
		"an earlier attempt of this very system": {"m", id{3, 1}, id{3, 2}, id{2, 1}, false, false},
		"its first attempt":                      {"m", id{3, 2}, id{3, 3}, id{3, 2}, false, false},
		"a higher install":                       {"m", id{4, 1}, id{3, 1}, id{3, 1}, false, true},
		"a higher one of this very system":       {"m", id{4, 1}, id{3, 1}, id{4, 1}, false, true},
		"a lower install":                        {"m", id{2, 9}, id{3, 1}, id{3, 1}, false, false},
		"of another machine":                     {"other", id{9, 1}, id{3, 1}, id{3, 1}, false, false},
		"it was not finished":                    {"m", id{3, 1}, id{3, 2}, id{}, true, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			area, err := EncodeFirstBoot(&agentv1.FirstBoot{Token: &agentv1.BootToken{
				MachineId: test.machine, InstallGeneration: test.held.generation, Attempt: test.held.attempt,
			}})
			if err != nil {
				t.Fatal(err)
			}
			target, err := openDisk(m.root, "sda", diskSize)
			if err != nil {
				t.Fatal(err)
			}
			defer target.close()
			if err := target.write(area, FirstBootOffset(diskSize)); err != nil {
				t.Fatal(err)
			}
			if test.unbooted {
				if err := target.makeZero(0, mebibyte); err != nil {
					t.Fatal(err)
				}
			}
			before := m.content(t)
			request := requestFor(serveBytes(t, image), image)
			request.InstallGeneration, request.Attempt = test.wanted.generation, test.wanted.attempt
			options := m.options()
			options.MachineID, options.FirstGeneration, options.FirstAttempt = "m", test.first.generation, test.first.attempt
			report := Run(t.Context(), request, options)
			if !test.refused {
				if !report.GetOk() || report.GetHeldInstallGeneration() != 0 {
					t.Errorf("report: %v", report)
				}
				return
			}
			if report.GetOk() || !strings.Contains(report.GetError(), "/dev/sda holds install generation") ||
				report.GetHeldInstallGeneration() != test.held.generation || report.GetHeldAttempt() != test.held.attempt {
				t.Errorf("report: %v", report)
			}
			if !bytes.Equal(m.content(t), before) {
				t.Error("the disk was touched")
			}
		})
	}
}

// TestNothingIsWrittenUnlessItMayBegin: an agent that was superseded must not write.
func TestNothingIsWrittenUnlessItMayBegin(t *testing.T) {
	t.Parallel()
	image := testImage(9, 3*mebibyte)
	m := newMachine(t)
	options := m.options()
	options.Begin = func() error { return errors.New("a newer takeover") }
	report := Run(t.Context(), requestFor(serveBytes(t, image), image), options)
	if report.GetOk() || !strings.Contains(report.GetError(), "a newer takeover") || !bytes.Equal(m.content(t), m.old) {
		t.Errorf("report: %v", report)
	}
}
