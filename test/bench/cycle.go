package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
)

// cycler does lease cycles: it claims a batch, and while the works of an earlier one end, each for
// itself, claims the next. Works are held while so many others are claimed: what ends is due again
// at once, before what waited for longer, and it is not the point to work on the same machines many
// times a second. At most two batches are ending at a time, as in a loop whose slots are given back
// when an end is acknowledged.
type cycler struct {
	db      *bmdb.DB
	session *bmdb.Session
	batch   int
	hold    int
	// ends is how a work ends.
	ends func(ctx context.Context, w *bmdb.Work) error
	// empty counts the claims that got nothing.
	empty int
}

func finish(ctx context.Context, w *bmdb.Work) error { return w.Finish(ctx) }

// run does cycles until the time is over, or, where most is not 0, as many, and returns how many it
// did.
func (c *cycler) run(ctx context.Context, until time.Time, most int) (cycles int, err error) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2)
	failed := make(chan error, 1)
	end := func(works []*bmdb.Work) {
		slots <- struct{}{}
		cycles += len(works)
		wg.Go(func() {
			if err := each(works, func(w *bmdb.Work) error { return c.ends(ctx, w) }); err != nil {
				select {
				case failed <- err:
				default:
				}
			}
			<-slots
		})
	}
	var held [][]*bmdb.Work
	for claimed := 0; time.Now().Before(until) && (most == 0 || claimed < most); {
		claim, err := c.session.Claim(ctx, bmdb.ClaimRequest{
			Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{provider}, Limit: c.batch,
		})
		if err != nil {
			wg.Wait()
			return 0, err
		}
		if len(claim.Works) == 0 {
			c.empty++
		}
		claimed += len(claim.Works)
		held = append(held, claim.Works)
		for len(held) > 0 && (len(held)*c.batch > c.hold || len(claim.Works) == 0) {
			end(held[0])
			held = held[1:]
		}
	}
	for _, works := range held {
		end(works)
	}
	wg.Wait()
	select {
	case err := <-failed:
		return 0, err
	default:
		return cycles, nil
	}
}

// subject is a fleet in a database of its own, and somebody who does cycles on it.
type subject struct {
	name string
	*cycler
}

// cycleSubject makes one.
func (b *bench) cycleSubject(ctx context.Context, machines int) (*subject, error) {
	s, err := b.server(ctx)
	if err != nil {
		return nil, err
	}
	name, err := s.Create(ctx, "")
	if err != nil {
		return nil, err
	}
	db, err := open(ctx, s.URL(name), postgres.Options{}, true)
	if err != nil {
		return nil, err
	}
	if err := makeFleet(ctx, db, machines); err != nil {
		return nil, err
	}
	session, err := startSession(ctx, db, "initializer")
	if err != nil {
		return nil, err
	}
	made := &subject{name: name, cycler: &cycler{db: db, session: session, batch: b.batch, hold: b.machines / 2, ends: finish}}
	b.say("a fleet of %d machines", machines)
	return made, made.warm(ctx, b, machines)
}

// warm claims every machine once, all held at the same time, so that each has its lane, and takes
// the statistics of that.
func (s *subject) warm(ctx context.Context, b *bench, machines int) error {
	var all []*bmdb.Work
	for len(all) < machines {
		c, err := s.session.Claim(ctx, bmdb.ClaimRequest{
			Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{provider}, Limit: b.batch,
		})
		if err != nil {
			return err
		}
		if len(c.Works) == 0 {
			break
		}
		all = append(all, c.Works...)
	}
	if err := each(all, func(w *bmdb.Work) error { return w.Finish(ctx) }); err != nil {
		return err
	}
	return b.pg.settle(ctx, s.name)
}

func (s *subject) close(ctx context.Context, b *bench) error {
	if err := s.db.Close(); err != nil {
		return err
	}
	return b.pg.Drop(ctx, s.name)
}

// round measures one round of cycles.
func (s *subject) round(ctx context.Context, b *bench) (figures, error) {
	if err := b.pg.settle(ctx, s.name); err != nil {
		return figures{}, err
	}
	f, err := b.pg.measure(ctx, func() (int, error) { return s.run(ctx, time.Now().Add(b.duration), 0) })
	if err != nil {
		return f, err
	}
	b.say("ours: %s", f)
	return f, b.sayProfile(ctx, f.ops)
}

// cycles compares lease cycles with River's jobs.
func cycles(ctx context.Context, b *bench) error {
	ours, err := b.cycleSubject(ctx, b.machines)
	if err != nil {
		return err
	}
	references, err := b.rivers(ctx, b.batch, 2000)
	if err != nil {
		return err
	}
	our, theirs := []figures(nil), make([][]figures, len(references))
	for range b.rounds {
		f, err := ours.round(ctx, b)
		if err != nil {
			return err
		}
		our = append(our, f)
		for i, r := range references {
			f, err := r.round(ctx, b)
			if err != nil {
				return err
			}
			theirs[i] = append(theirs[i], f)
		}
	}
	for i, r := range references {
		b.compare(fmt.Sprintf("lease cycle, batch %d, beside River with %d workers", b.batch, r.workers), our, theirs[i], 1, 1.25)
		ratio := median(ratios(our, theirs[i], figures.wholeEach))
		b.table.add(row{
			what: "the same: database CPU, with the insertion of River's jobs (by COPY, 5,000 at a time)", ours: number(median(pick(our, figures.cpuEach))) + " µs",
			reference: number(median(pick(theirs[i], figures.wholeEach))) + " µs", ratio: number(ratio),
		})
	}
	if err := b.roundTrips(ctx, ours, references[0]); err != nil {
		return err
	}
	for _, r := range references {
		if err := r.close(ctx, b); err != nil {
			return err
		}
	}
	if err := b.sound(ctx, ours.db); err != nil {
		return err
	}
	return ours.close(ctx, b)
}

// compare adds what two sides took: at least so much of its rate (0: no goal), at most so much of
// its processor time.
func (b *bench) compare(what string, ours, reference []figures, rate, cpu float64) {
	line := func(name, unit string, of func(figures) float64, goal string, met func(ratio float64) string) {
		ratio := median(ratios(ours, reference, of))
		b.table.add(row{
			what: what + ": " + name, goal: goal, ours: number(median(pick(ours, of))) + unit, reference: number(median(pick(reference, of))) + unit,
			ratio: number(ratio), met: met(ratio),
		})
	}
	none := func(float64) string { return "" }
	goal, met := "", none
	if rate > 0 {
		goal, met = fmt.Sprintf("≥ %.2g×", rate), func(r float64) string { return yes(r >= rate) }
	}
	line("rate", "/s", figures.rate, goal, met)
	line("database CPU", " µs", figures.cpuEach, fmt.Sprintf("≤ %.3g×", cpu), func(r float64) string { return yes(r <= cpu) })
	line("client CPU", " µs", figures.clientEach, "", none)
	line("statements", "", func(f figures) float64 { return f.each(f.statements) }, "", none)
	line("buffers", "", func(f figures) float64 { return f.each(f.buffers) }, "", none)
	line("WAL", " B", func(f figures) float64 { return f.each(f.wal) }, "", none)
}

// sound runs the database's own check.
func (b *bench) sound(ctx context.Context, db *bmdb.DB) error {
	findings, err := db.Check(ctx)
	if err != nil {
		return err
	}
	for _, f := range findings[:min(len(findings), 10)] {
		b.say("not sound: %s %s: %s", f.Invariant, f.Subject, f.Detail)
	}
	if len(findings) > 0 {
		return fmt.Errorf("the database is not sound: %d findings", len(findings))
	}
	return nil
}
