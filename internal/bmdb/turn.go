package bmdb

import (
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// bogusTurn is further ahead than any turn is, or any pause that a provider may ask for. An
	// instant beyond it was written while the clock was ahead.
	bogusTurn = 2 * time.Hour
	// keepTurns is how long a limit is remembered that nobody calls under. It is longer than any
	// pause, and the token of a provider may have changed.
	keepTurns = 24 * time.Hour
)

// ReserveTurns reserves turns for calls to a provider, behind those that are reserved already,
// whoever has them. It also takes in until when the provider wants no call, and says what is known
// of that. One statement does all of this: those who ask at the same time wait for each other at
// the row of the limit. Where nothing is to be written, it only reads.
//
// Who asks keeps instants by its own clock. They are translated when the transaction reads database
// time (rule 6), so that two processes mean the same instant.
func (db *DB) ReserveTurns(ctx context.Context, r fleet.TurnRequest) (fleet.TurnGrant, error) {
	if r.Count == 0 && r.NotBefore.IsZero() {
		return read(ctx, db.view, "look at turns", func(ctx context.Context, t *transaction) (fleet.TurnGrant, error) {
			at := readTurnClock(t)
			row, err := t.q.GetTurns(ctx, r.Limit)
			if absent(err) {
				return fleet.TurnGrant{}, nil
			}
			return fleet.TurnGrant{Next: at.local(row.NextAt), NotBefore: at.local(row.NotBefore)}, err
		})
	}
	return read(ctx, db.update, "reserve turns", func(ctx context.Context, t *transaction) (fleet.TurnGrant, error) {
		at := readTurnClock(t)
		p := statement.ReserveTurnsParams{
			CallLimit: r.Limit, NotBefore: at.database(r.NotBefore), Bogus: micros(t.Now().Add(bogusTurn)),
			Took: (time.Duration(r.Count) * r.Spacing).Microseconds(),
		}
		p.Latest = p.Bogus
		if !r.Latest.IsZero() {
			p.Latest = min(p.Latest, at.database(r.Latest))
		}
		if p.Earliest = p.NotBefore; r.Count > 0 {
			p.Earliest = max(p.Earliest, micros(at.there.Add(r.Lead+at.rounded)))
		}
		if p.Earliest > p.Latest { // too late, whoever has which turns
			p.Took, p.Earliest, p.Latest = 0, p.NotBefore, p.Bogus
			r.Count = 0
		}
		row, err := t.q.ReserveTurns(ctx, p)
		if err != nil {
			return fleet.TurnGrant{}, err
		}
		grant := fleet.TurnGrant{Next: at.local(row.NextAt), NotBefore: at.local(row.NotBefore)}
		if r.Count > 0 {
			grant.First = at.local(row.FirstAt)
		}
		return grant, nil
	})
}

// turnClock is what the clock of this process and the database's said at the same moment, in whole
// microseconds, as the database counts. What the host's says beyond them would bring the turns of
// two processes nearer to each other.
type turnClock struct {
	here, there time.Time
	// rounded is a microsecond where one has begun here: no turn is before now.
	rounded time.Duration
}

// readTurnClock reads both clocks. What the host's says is of use for differences alone: how far an
// instant is from now.
func readTurnClock(t *transaction) turnClock {
	clock := turnClock{here: time.Now(), there: t.Now()}
	if over := time.Duration(clock.here.Nanosecond()) % time.Microsecond; over > 0 {
		clock.here, clock.rounded = clock.here.Add(-over), time.Microsecond
	}
	return clock
}

func (c turnClock) database(local time.Time) int64 {
	if local.IsZero() {
		return 0
	}
	return micros(c.there.Add(local.Sub(c.here)))
}

func (c turnClock) local(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return c.here.Add(instant(us).Sub(c.there))
}
