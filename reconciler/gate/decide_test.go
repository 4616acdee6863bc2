package gate_test

import (
	"fmt"
	"testing"

	"github.com/ironherd/ironherd/reconciler/gate"
	"github.com/ironherd/ironherd/reconciler/release"
)

// releases are the four that everything here is about; number 0 is none.
var releases = []release.Release{
	{}, release.MustParse("v1.0.0-rc.1"), release.MustParse("v1.0.0"), release.MustParse("v1.1.0"), release.MustParse("v2.0.0"),
}

const count = 4

func status(state gate.State, version, minimum int) gate.Status {
	return gate.Status{State: state, Version: releases[version], MinimumCompatible: releases[minimum]}
}

func build(own, needs, admits int) release.Build {
	return release.Build{Release: releases[own], MinReconciler: releases[needs], MinAPIServer: releases[admits]}
}

func nodesOf(nodes []int) gate.Nodes {
	set := gate.Nodes{Revision: 7}
	for i, r := range nodes {
		set.Known = append(set.Known, gate.Node{Name: fmt.Sprintf("n%d", i+1), Release: releases[r]})
	}
	return set
}

// stored is a status in numbers. Kind: 0 none, 1 unreadable, 2 working, 3 done.
type stored struct{ kind, version, minimum int }

func (s stored) observed() gate.Observed {
	switch s.kind {
	case 0:
		return gate.Observed{}
	case 1:
		return gate.Observed{Found: true, Unreadable: "garbled", Revision: 3}
	case 2:
		return gate.Observed{Found: true, Status: status(gate.Working, s.version, s.minimum), Revision: 3}
	}
	return gate.Observed{Found: true, Status: status(gate.Done, s.version, s.minimum), Revision: 3}
}

// everyStatus lists what can be stored: version 0 only in a status that is working.
func everyStatus() []stored {
	all := []stored{{kind: 0}, {kind: 1}}
	for v := range count + 1 {
		for m := 1; m <= count; m++ {
			all = append(all, stored{2, v, m})
			if v > 0 {
				all = append(all, stored{3, v, m})
			}
		}
	}
	return all
}

func everyBuild(visit func(own, needs, admits int)) {
	for own := 1; own <= count; own++ {
		for needs := 1; needs <= own; needs++ {
			for admits := 1; admits <= own; admits++ {
				visit(own, needs, admits)
			}
		}
	}
}

func everyNodes(visit func(nodes []int)) {
	for a := 1; a <= count; a++ {
		for b := 1; b <= count; b++ {
			for c := 1; c <= count; c++ {
				visit([]int{a, b, c})
			}
		}
	}
}

// model is the table of the package comment in numbers, with who campaigns.
func model(own, admits int, s stored, nodes []int) (campaign, hold, settle, guarded bool, before, after stored) {
	campaign, hold = true, false
	for _, n := range nodes {
		campaign = campaign && n <= own
		hold = hold || n > own || n < admits
	}
	want := stored{3, own, admits}
	switch {
	case s.kind == 0:
		return campaign, false, false, false, stored{}, want
	case s == want:
		return campaign, false, true, false, stored{}, stored{}
	case s.kind == 3 && s.version <= own && s.minimum >= admits:
		return campaign, false, true, false, stored{2, s.version, s.minimum}, want
	case s.kind == 2 && s.version > 0 && s.version <= own && s.minimum >= admits:
		return campaign, false, true, false, stored{}, want
	case hold:
		return campaign, true, true, false, stored{}, stored{}
	case s.kind == 1 || s.version == 0:
		return campaign, false, true, true, stored{2, 0, own}, want
	}
	return campaign, false, true, true, stored{2, min(s.version, own), max(s.minimum, admits)}, want
}

func same(got *gate.Status, want stored) bool {
	if got == nil || want.kind == 0 {
		return got == nil && want.kind == 0
	}
	return *got == want.observed().Status
}

// TestDecideIsTheModel compares every combination of three nodes' releases, the stored status, and
// our release and minima.
func TestDecideIsTheModel(t *testing.T) {
	t.Parallel()
	compared := 0
	everyBuild(func(own, needs, admits int) {
		for _, s := range everyStatus() {
			everyNodes(func(nodes []int) {
				compared++
				campaign, hold, settle, guarded, before, after := model(own, admits, s, nodes)
				got := gate.Decide(build(own, needs, admits), s.observed(), nodesOf(nodes))
				verdict := gate.Campaign(releases[own], nodesOf(nodes))
				if verdict.OK != campaign || got.Hold != hold || got.Settle != settle || got.Guarded != guarded ||
					!same(got.Before, before) || !same(got.After, after) || got.Reason == "" || verdict.Reason == "" {
					t.Fatalf("release %d admits %d, status %+v, nodes %v:\ncampaign %v, plan %+v", own, admits, s, nodes, verdict, got)
				}
			})
		}
	})
	t.Logf("%d combinations compared", compared)
}

// server is an API server: its release and what it needs. Its needs are never above its release.
type server struct{ own, needs int }

func servers() (all []server) {
	for own := 1; own <= count; own++ {
		for needs := 1; needs <= own; needs++ {
			all = append(all, server{own, needs})
		}
	}
	return all
}

// admits: s lets the API server start. works: it works with the base resources of release own,
// which admit releases from minimum on.
func (s stored) admits(x server) bool {
	return s.kind >= 2 && x.own >= s.minimum && x.needs <= s.version
}

func works(x server, own, minimum int) bool { return x.own >= minimum && x.needs <= own }

// TestDecideKeepsThePromise knows nothing of how it is decided, only what is promised of API
// servers.
func TestDecideKeepsThePromise(t *testing.T) {
	t.Parallel()
	everyBuild(func(own, needs, admits int) {
		for _, s := range everyStatus() {
			everyNodes(func(nodes []int) {
				plan := gate.Decide(build(own, needs, admits), s.observed(), nodesOf(nodes))
				for _, x := range servers() {
					if fault := broken(plan, x, own, admits, s, nodes); fault != "" {
						t.Fatalf("release %d admits %d, status %+v, nodes %v, server %+v: %s: %+v", own, admits, s, nodes, x, fault, plan)
					}
				}
			})
		}
	})
}

func broken(plan gate.Plan, x server, own, admits int, s stored, nodes []int) string {
	if plan.Hold {
		if plan.Before != nil || plan.After != nil {
			return "writes while it holds"
		}
		return ""
	}
	unknown := s.kind == 1 || s.kind == 2 && s.version == 0
	present := false
	for _, n := range nodes {
		present = present || n == x.own
	}
	mayServe := s.admits(x) || unknown
	if plan.Guarded {
		mayServe = mayServe && present
	}
	if mayServe && !works(x, own, admits) {
		return "serves beside base resources that it does not work with"
	}
	if plan.Before != nil {
		admitted := admitsStatus(*plan.Before, x)
		if both := s.admits(x) && works(x, own, admits); admitted != both {
			return fmt.Sprintf("what is announced before admits it: %v; both sides accept it: %v", admitted, both)
		}
	}
	if plan.After != nil && admitsStatus(*plan.After, x) != works(x, own, admits) {
		return "what is announced afterwards is not what our base resources admit"
	}
	return ""
}

// admitsStatus asks the gate itself.
func admitsStatus(s gate.Status, x server) bool {
	own := gate.Own{Found: true, Readable: true, Controller: true, Release: releases[x.own]}
	return gate.Serve(build(x.own, x.needs, 1), own, gate.Observed{Found: true, Status: s, Revision: 9}).OK
}

// TestServeIsTheModel compares who may start: every status, every API server, every record.
func TestServeIsTheModel(t *testing.T) {
	t.Parallel()
	for _, s := range everyStatus() {
		for _, x := range servers() {
			for record := range count + 1 {
				for flags := range 8 {
					own := gate.Own{Found: flags&1 != 0, Readable: flags&2 != 0, Controller: flags&4 != 0, Release: releases[record]}
					want := flags == 7 && record == x.own && s.admits(x)
					got := gate.Serve(build(x.own, x.needs, 1), own, s.observed())
					if got.OK != want || got.Reason == "" {
						t.Fatalf("status %+v, server %+v, record %+v: %+v, want %v", s, x, own, got, want)
					}
				}
			}
		}
	}
}

func TestUnknownNodesBlock(t *testing.T) {
	t.Parallel()
	nodes := nodesOf([]int{1, 1, 1})
	nodes.Unknown = []string{"n4"}
	if v := gate.Campaign(releases[4], nodes); v.OK || v.Reason != "the release of n4 is not known and may be newer than ours" {
		t.Errorf("%+v", v)
	}
	plan := gate.Decide(build(2, 1, 1), stored{3, 4, 4}.observed(), nodes)
	if !plan.Hold || plan.Before != nil {
		t.Errorf("%+v", plan)
	}
}
