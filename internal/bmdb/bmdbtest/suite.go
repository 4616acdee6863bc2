// Package bmdbtest is the suite that every engine of the BMDB passes. It speaks to the engine only
// through package bmdb and the Engine seam, so that it says what the protocol promises and not how
// one engine keeps it.
//
// Database time is moved, not waited for: the suite wraps the engine in Shift. What is judged by
// the process's own clocks (the trust window) is waited for by its event.
package bmdbtest

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironherd/ironherd/internal/bmdb"
)

// Run runs the suite. open returns a fresh, empty database, with the schema or without; Run closes
// it.
func Run(t *testing.T, open func(t *testing.T) bmdb.Engine) {
	t.Helper()
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range group.tests {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(newWorld(t, func() bmdb.Engine { return open(t) }))
				})
			}
		})
	}
	for _, c := range randomTests {
		t.Run("random/"+c.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(r *rapid.T) {
				c.run(newWorld(r, func() bmdb.Engine { return open(t) }), r)
			})
		})
	}
}

type test struct {
	name string
	run  func(w *world)
}

var groups = []struct {
	name  string
	tests []test
}{
	{"engine", slices.Concat(engineTests, sourceTests)},
	{"session", sessionTests},
	{"claim", claimTests},
	{"slot", slotTests},
	{"place", placeTests},
	{"work", workTests},
	{"intent", intentTests},
	{"agent", agentTests},
	{"install", installTests},
	{"leave", leaveTests},
	{"release", releaseTests},
	{"probe", probeTests},
	{"unit", unitTests},
	{"newer", newerTests},
	{"operator", operatorTests},
	{"plan", slices.Concat(planTests, planStopTests, markTests, othersTests)},
	{"operation", slices.Concat(operationTests, ladderTests, stepTests)},
	{"list", listTests},
	{"select", selectTests},
	{"fault", faultTests},
	{"lease", leaseTests},
	{"agenda", agendaTests},
	{"fact", factTests},
	{"hands", handsTests},
	{"silence", slices.Concat(silenceTests, unservedTests, listenerTests, suspectTests)},
	{"turn", turnTests},
	{"role", roleTests},
	{"bound", boundTests},
}

// Names returns what Run runs, without the random tests: GROUP/TEST, as `go test -run` has them.
func Names() (names []string) {
	for _, group := range groups {
		for _, c := range group.tests {
			names = append(names, strings.ReplaceAll(group.name+"/"+c.name, " ", "_"))
		}
	}
	return names
}
