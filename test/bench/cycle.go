package main

import (
	"context"
	"errors"
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
	// ends is how a work ends; nil: it is finished.
	ends func(ctx context.Context, w *bmdb.Work) error
	// empty counts the claims that got nothing.
	empty int
}

// claim claims a batch.
func (c *cycler) claim(ctx context.Context) ([]*bmdb.Work, error) {
	claim, err := c.session.Claim(ctx, bmdb.ClaimRequest{
		Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{provider}, Limit: c.batch,
	})
	return claim.Works, err
}

// run does cycles until the time is over, or, where most is not 0, as many, and returns how many it
// did.
func (c *cycler) run(ctx context.Context, until time.Time, most int) (cycles int, err error) {
	ends := c.ends
	if ends == nil {
		ends = func(ctx context.Context, w *bmdb.Work) error { return w.Finish(ctx) }
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2)
	failed := make(chan error, 1)
	end := func(works []*bmdb.Work) {
		slots <- struct{}{}
		cycles += len(works)
		wg.Go(func() {
			if err := each(works, func(w *bmdb.Work) error { return ends(ctx, w) }); err != nil {
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
		works, err := c.claim(ctx)
		if err != nil {
			wg.Wait()
			return 0, err
		}
		if len(works) == 0 {
			c.empty++
		}
		claimed += len(works)
		held = append(held, works)
		for len(held) > 0 && (len(held)*c.batch > c.hold || len(works) == 0) {
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
	made := &subject{name: name, cycler: &cycler{db: db, session: session, batch: b.batch, hold: b.machines / 2}}
	b.say("a fleet of %d machines", machines)
	return made, made.warm(ctx, b, machines)
}

// warm works on every machine once, all at the same time, so that no cycle that is measured is the
// first of its machine.
func (s *subject) warm(ctx context.Context, b *bench, machines int) error {
	var all []*bmdb.Work
	for len(all) < machines {
		works, err := s.claim(ctx)
		if err != nil {
			return err
		}
		if len(works) == 0 {
			break
		}
		all = append(all, works...)
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

// cycles are lease cycles on the fleet.
func (s *subject) cycles(b *bench) contestant {
	return contestant{
		title: "ours", database: s.name,
		prepare: func(context.Context) error { return nil },
		work:    func(ctx context.Context) (int, error) { return s.run(ctx, time.Now().Add(b.duration), 0) },
	}
}

// riverWorkers is how many workers River has. It makes the batches of its claims as large as ours.
const riverWorkers = 100

// cycles compares lease cycles with River's jobs: with the whole life of a job, which is what a
// user of River pays for, and with its claim and completion alone.
func cycles(ctx context.Context, b *bench) error {
	ours, err := b.cycleSubject(ctx, b.machines)
	if err != nil {
		return err
	}
	whole, err := b.riverLife(ctx)
	if err != nil {
		return err
	}
	bare, err := b.river(ctx, riverWorkers)
	if err != nil {
		return err
	}
	results, err := b.takeTurns(ctx, ours.cycles(b), whole.lives(b), bare.bare(b))
	if err != nil {
		return err
	}
	what := fmt.Sprintf("lease cycle, batch %d, beside ", b.batch)
	b.compare(what+"the whole life of a job of River's", results[0], results[1], map[string]goal{
		rateFigure: atLeast(0.8), cpuFigure: atMost(1), clientFigure: oursAtMost(60, "µs"),
	})
	b.compare(what+"River's claim and completion alone", results[0], results[2], map[string]goal{cpuFigure: stretch(atMost(1.25))})
	if err := b.roundTrips(ctx, ours, bare); err != nil {
		return err
	}
	if err := errors.Join(whole.close(ctx, b), bare.close(ctx, b)); err != nil {
		return err
	}
	if err := b.sound(ctx, ours.db); err != nil {
		return err
	}
	return ours.close(ctx, b)
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
