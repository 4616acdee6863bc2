package gate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ironherd/ironherd/reconciler/release"
)

// Node is a control-plane node and the release of the API server that may run there.
type Node struct {
	Name    string          `json:"name"`
	Release release.Release `json:"release"`
}

// Nodes is what is known of the nodes that count: those with the Kubernetes controller role.
type Nodes struct {
	Known []Node
	// Unknown names the nodes of which nothing is known but that they are there.
	Unknown []string
	// Revision of the last change that is applied here. Writes that rely on the set are conditional on
	// it.
	Revision int64
}

// Range returns the oldest and the newest release present; ours always counts.
func (n Nodes) Range(ours release.Release) (oldest, newest release.Release) {
	oldest, newest = ours, ours
	for _, node := range n.Known {
		oldest, newest = release.Min(oldest, node.Release), release.Max(newest, node.Release)
	}
	return oldest, newest
}

// Verdict is a decision and why.
type Verdict struct {
	OK bool `json:"ok"`
	// Reason is one clause in words.
	Reason string `json:"reason"`
}

func yes(format string, args ...any) Verdict {
	return Verdict{OK: true, Reason: fmt.Sprintf(format, args...)}
}

func no(format string, args ...any) Verdict { return Verdict{Reason: fmt.Sprintf(format, args...)} }

// Campaign says whether this build may lead: only the newest release present, and only when every
// release present is known.
func Campaign(ours release.Release, nodes Nodes) Verdict {
	if len(nodes.Unknown) > 0 {
		return no("the release of %s is not known and may be newer than ours", strings.Join(nodes.Unknown, ", "))
	}
	newer := named(nodes, func(r release.Release) bool { return ours.Less(r) })
	if newer != "" {
		return no("a newer release than ours, %s, is present: %s", ours, newer)
	}
	return yes("no node runs a newer release than ours, %s", ours)
}

// Plan is what a leader does, in this order.
type Plan struct {
	// Hold: no pass may begin, and nothing is written. Decide again when the nodes or the status
	// change.
	Hold bool
	// Settle: wait for the last requests of the leader before us to land, before the first pass.
	Settle bool
	// Before is announced before the first pass; nil: nothing.
	Before *Status
	// Guarded: Before must be written on condition that no node has changed since Nodes.Revision.
	Guarded bool
	// After is announced once a pass has found everything as wanted; nil: nothing.
	After *Status
	// Reason says in one clause why all this.
	Reason string
}

// Decide says what a leader of this build does. It does not ask again whether it may lead.
func Decide(build release.Build, observed Observed, nodes Nodes) Plan {
	want := Status{State: Done, Version: build.Release, MinimumCompatible: build.MinAPIServer}
	status := observed.Status
	switch {
	case !observed.Found:
		return Plan{After: &want, Reason: "there is no status yet: no API server serves"}
	case unknown(observed):
		status = Status{MinimumCompatible: build.Release}
	case status == want:
		return Plan{Settle: true, Reason: "the status is as we want it"}
	case !build.Release.Less(status.Version) && !status.MinimumCompatible.Less(build.MinAPIServer):
		plan := Plan{Settle: true, After: &want, Reason: "every API server that the status admits works with our base resources"}
		if status.State != Working {
			status.State = Working
			plan.Before = &status
		}
		return plan
	}
	why := incompatible(build, observed)
	if blocker := blockers(build, nodes); blocker != "" {
		return Plan{Hold: true, Settle: true, Reason: why + "; " + blocker}
	}
	restricted := Status{
		State:             Working,
		Version:           release.Min(status.Version, build.Release),
		MinimumCompatible: release.Max(status.MinimumCompatible, build.MinAPIServer),
	}
	return Plan{
		Settle: true, Before: &restricted, Guarded: true, After: &want,
		Reason: why + "; no node is newer than ours or older than what we admit: restrict first",
	}
}

// unknown says whether the status tells nothing of who serves: it cannot be read, or was written in
// place of one that could not.
func unknown(observed Observed) bool {
	return observed.Unreadable != "" || observed.Status.Version.IsZero()
}

// incompatible says why the status admits API servers that would not work with our base resources.
func incompatible(build release.Build, observed Observed) string {
	status := observed.Status
	switch {
	case observed.Unreadable != "":
		return "the status cannot be read (" + observed.Unreadable + ") and may have admitted anybody"
	case unknown(observed):
		return "the status before this one could not be read and may have admitted anybody"
	case build.Release.Less(status.Version):
		return fmt.Sprintf("the status's version %s is above our release %s: it admits API servers that may need more than our base resources give",
			status.Version, build.Release)
	}
	return fmt.Sprintf("the status admits API servers from %s on, our base resources only those from %s on",
		status.MinimumCompatible, build.MinAPIServer)
}

// blockers names the nodes that a change of what is admitted has to wait for; empty: none.
func blockers(build release.Build, nodes Nodes) string {
	var parts []string
	if len(nodes.Unknown) > 0 {
		parts = append(parts, "of unknown release: "+strings.Join(nodes.Unknown, ", "))
	}
	if newer := named(nodes, func(r release.Release) bool { return build.Release.Less(r) }); newer != "" {
		parts = append(parts, "newer than "+build.Release.String()+": "+newer)
	}
	if older := named(nodes, func(r release.Release) bool { return r.Less(build.MinAPIServer) }); older != "" {
		parts = append(parts, "older than "+build.MinAPIServer.String()+": "+older)
	}
	if len(parts) == 0 {
		return ""
	}
	return "waiting for nodes " + strings.Join(parts, "; ")
}

// named lists the nodes whose release is as asked for, at most some of them.
func named(nodes Nodes, which func(release.Release) bool) string {
	const most = 5
	var names []string
	for _, n := range nodes.Known {
		if which(n.Release) {
			names = append(names, fmt.Sprintf("%s (%s)", n.Name, n.Release))
		}
	}
	slices.SortFunc(names, cmp.Compare)
	if len(names) > most {
		names = append(names[:most], fmt.Sprintf("and %d more", len(names)-most))
	}
	return strings.Join(names, ", ")
}
