package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// report is what came of one or more upgrades with workers at work.
type report struct {
	processes, kills, acts, done int
	// migrations is how often one was begun, migrating how long the longest took.
	migrations int
	migrating  time.Duration
	// claims by version, takeovers by "version to version", ends by event, errors by "version kind
	// doing".
	claims, takeovers, ends, errors map[string]int
	// slowest is the longest from a kill to the next claim of a machine that was held.
	slowest, took time.Duration
	faults        []error
}

func newReport() report {
	return report{claims: map[string]int{}, takeovers: map[string]int{}, ends: map[string]int{}, errors: map[string]int{}}
}

// maxFaults bounds how many are told of one kind of run: one mistake makes thousands.
const maxFaults = 20

func (r *report) fault(format string, args ...any) {
	if len(r.faults) < maxFaults {
		r.faults = append(r.faults, fmt.Errorf(format, args...))
	}
}

// add adds another report.
func (r *report) add(o report) {
	r.processes += o.processes
	r.kills += o.kills
	r.acts += o.acts
	r.done += o.done
	r.migrations += o.migrations
	r.migrating = max(r.migrating, o.migrating)
	r.slowest = max(r.slowest, o.slowest)
	r.took += o.took
	for _, m := range []struct{ to, from map[string]int }{
		{r.claims, o.claims}, {r.takeovers, o.takeovers}, {r.ends, o.ends}, {r.errors, o.errors},
	} {
		for k, n := range m.from {
			m.to[k] += n
		}
	}
}

// tested fails when nobody of the one version took over from a killed process of the other.
func (r *report) tested() error {
	for _, way := range []string{before + " to " + after, after + " to " + before} {
		if r.takeovers[way] == 0 {
			return fmt.Errorf("there was no takeover from %s: the test tests nothing", way)
		}
	}
	return nil
}

// line is the report in one line.
func (r *report) line() string {
	return fmt.Sprintf("%d processes, %d killed; %s leases; %d effects, %d commits; taken over: %s; migrated in %s; errors that pass: %s; %s",
		r.processes, r.kills, counts(r.claims), r.acts, r.done, counts(r.takeovers), r.migrating.Round(time.Millisecond), counts(r.errors),
		r.took.Round(time.Second))
}

// table is the report as a table of one row.
func (r *report) table(rounds int) string {
	return fmt.Sprintf(`| upgrades | processes | SIGKILL | leases of the previous, of the new | effects | commits acknowledged | ends in history | taken over: previous to new, new to previous | slowest to be claimed again | migrations begun, longest | errors that pass | took |
|---|---|---|---|---|---|---|---|---|---|---|---|
| %d | %d | %d | %d, %d | %d | %d | %s | %d, %d | %s | %d, %s | %s | %s |`,
		rounds, r.processes, r.kills, r.claims[before], r.claims[after], r.acts, r.done, counts(r.ends), r.takeovers[before+" to "+after],
		r.takeovers[after+" to "+before], r.slowest.Round(10*time.Millisecond), r.migrations, r.migrating.Round(time.Millisecond), counts(r.errors),
		r.took.Round(time.Second))
}

// counts lists what was counted.
func counts(m map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
