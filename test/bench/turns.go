package main

import (
	"context"
	"fmt"
	"runtime/pprof"
)

// contestant is one side of a comparison, in a database of its own.
type contestant struct {
	title, database string
	// prepare makes what a round needs, before the clock starts.
	prepare func(ctx context.Context) error
	// work is what the clock is around. It returns how many operations it did.
	work func(ctx context.Context) (int, error)
	// check fails when what the database has is not so many operations. Nil: nothing to check.
	check func(ctx context.Context, ops int) error
}

// takeTurns measures rounds of each contestant in turn, so that none runs beside another, and what
// else the machine does meets all of them.
func (b *bench) takeTurns(ctx context.Context, list ...contestant) (results [][]figures, err error) {
	results = make([][]figures, len(list))
	// what was done before is counted before
	if err := pause(ctx, statisticsDelay); err != nil {
		return nil, err
	}
	for range b.rounds {
		before := make([]writes, len(list))
		for i, c := range list {
			f, err := b.turn(ctx, c, &before[i])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.title, err)
			}
			results[i] = append(results[i], f)
		}
		if err := pause(ctx, statisticsDelay); err != nil {
			return nil, err
		}
		for i, c := range list {
			after, err := b.pg.writes(ctx, c.database)
			if err != nil {
				return nil, err
			}
			results[i][len(results[i])-1].writes = after.minus(before[i])
		}
	}
	return results, nil
}

// sideLabel is the label of a profile's samples that names the contestant.
const sideLabel = "side"

// turn is one round of a contestant. before gets what its tables had been through.
func (b *bench) turn(ctx context.Context, c contestant, before *writes) (f figures, err error) {
	if err := c.prepare(ctx); err != nil {
		return f, err
	}
	if err := b.pg.settle(ctx, c.database); err != nil {
		return f, err
	}
	if *before, err = b.pg.writes(ctx, c.database); err != nil {
		return f, err
	}
	f, err = b.pg.measure(ctx, func() (ops int, err error) {
		// Go's profile of the client can be read for one side alone.
		pprof.Do(ctx, pprof.Labels(sideLabel, c.title), func(ctx context.Context) { ops, err = c.work(ctx) })
		return ops, err
	})
	if err != nil {
		return f, err
	}
	b.say("%s: %s", c.title, f)
	if err := b.sayProfile(ctx, f.ops); err != nil || c.check == nil {
		return f, err
	}
	return f, c.check(ctx, f.ops)
}

// goal is what a figure is held to. Without met it is only told.
type goal struct {
	text string
	met  func(ours, ratio float64) bool
}

// noGoal marks what is measured and not tuned for.
var noGoal = goal{text: "no goal"}

// atLeast and atMost are goals for the ratio of ours to the reference.
func atLeast(bound float64) goal {
	return goal{fmt.Sprintf("≥ %g×", bound), func(_, ratio float64) bool { return ratio >= bound }}
}

func atMost(bound float64) goal {
	return goal{fmt.Sprintf("≤ %g×", bound), func(_, ratio float64) bool { return ratio <= bound }}
}

// stretch is a goal that is wished for.
func stretch(g goal) goal { return goal{"stretch " + g.text, g.met} }

// oursAtMost is a goal for our own figure.
func oursAtMost(bound float64, unit string) goal {
	return goal{fmt.Sprintf("≤ %g %s", bound, unit), func(ours, _ float64) bool { return ours <= bound }}
}

// Names of figures, for goals.
const (
	rateFigure   = "rate"
	cpuFigure    = "database CPU"
	clientFigure = "client CPU"
)

// shown is the least that number writes as more than nothing. There is no ratio to less.
const shown = 0.005

// compare adds what two sides took per operation, and what was wanted of it.
func (b *bench) compare(what string, ours, reference []figures, goals map[string]goal) {
	line := func(name, unit string, of func(figures) float64) {
		defer func() { what = "the same" }()
		our, theirs := median(pick(ours, of)), median(pick(reference, of))
		r := row{what: what + ": " + name, goal: goals[name].text, ours: number(our) + unit, reference: number(theirs) + unit}
		if theirs >= shown {
			ratio := median(ratios(ours, reference, of))
			r.ratio = number(ratio)
			if met := goals[name].met; met != nil {
				r.met = yes(met(our, ratio))
			}
		}
		b.table.add(r)
	}
	line(rateFigure, "/s", figures.rate)
	line(cpuFigure, " µs", figures.cpuEach)
	line("CPU of background processes", " µs", figures.backgroundEach)
	line(clientFigure, " µs", figures.clientEach)
	for _, l := range []struct {
		name, unit string
		of         func(f figures) float64
	}{
		{"WAL", " B", func(f figures) float64 { return f.wal }},
		{"HOT updates", "", func(f figures) float64 { return f.writes.hot }},
		{"updates that are not HOT", "", func(f figures) float64 { return f.writes.updated - f.writes.hot }},
		{"rows inserted", "", func(f figures) float64 { return f.writes.inserted }},
		{"rows deleted", "", func(f figures) float64 { return f.writes.deleted }},
		{"index entries", "", func(f figures) float64 { return f.writes.entries }},
		{"index entries, those of partial indexes at most", "", func(f figures) float64 { return f.writes.partial }},
		{"statements", "", func(f figures) float64 { return f.statements }},
		{"buffers", "", func(f figures) float64 { return f.buffers }},
	} {
		line(l.name, l.unit, func(f figures) float64 { return f.each(l.of(f)) })
	}
}
