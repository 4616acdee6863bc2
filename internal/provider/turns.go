package provider

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Turns hands out turns to call to all processes whose calls count against the same limit. The BMDB
// implements it. It is safe for concurrent use.
type Turns interface {
	// ReserveTurns reserves turns that nobody else gets. It may fail, and it may take its time.
	ReserveTurns(ctx context.Context, request fleet.TurnRequest) (fleet.TurnGrant, error)
}

// LimitOf names the limit of an account at a provider, from where its API is and the token that
// calls are made with: providers under two names with one token share their limit. The name is a
// digest that costs time to make, so that nobody gets the token from it, even one that was chosen
// by a person.
func LimitOf(host, token string) string {
	const rounds, size = 100_000, 16
	digest, err := pbkdf2.Key(sha256.New, token, []byte("ironherd call limit\n"+strings.ToLower(host)), rounds, size)
	if err != nil { // not with these numbers
		return ""
	}
	return hex.EncodeToString(digest)
}

const (
	// turnsAhead is how much of the limit one reservation takes at most, and one turn at least. So no
	// process keeps the others waiting for long.
	turnsAhead = time.Second
	// turnsSoon is how long before the last reserved turn the next ones are reserved, and how long
	// before a turn is due it is looked whether the provider wants to be left alone.
	turnsSoon = 100 * time.Millisecond
	// turnsFresh is for how long it is believed, at least, that the provider did not ask another
	// process for a pause.
	turnsFresh = time.Second
	// turnsPatience is how long the database may take to answer.
	turnsPatience = 4 * time.Second
	// turnsSlow is how long it takes to answer at least where people are told.
	turnsSlow = turnsFresh / 2
	// turnsForget is for how long what an answer took is remembered while nobody calls.
	turnsForget = 10 * time.Second
	// turnsRetry is how often a database that does not answer is asked again.
	turnsRetry = 5 * time.Second
	// turnsTold is for how long people are told of an outage of the database while nobody calls: its
	// end is not seen then. It is longer than a pass of a provider comes after the last one by default
	// (a minute), so that it does not end between two passes.
	turnsTold = 2 * time.Minute
	// turnsReturn is for how long after an outage of the database turns are reserved as if each
	// process still paced alone: others may not have noticed its end yet.
	turnsReturn = 2 * (turnsRetry + turnsPatience)
	// turnsShare is the part of the limit that each process takes while the database does not answer:
	// a quarter.
	turnsShare = 4
)

// turnQueue paces the calls of one provider in this process, by turns that are shared with other
// processes. Its callers wait in one line, and the first of them takes the next turn. Turns are
// reserved for all who wait at once, shortly before the last one that was reserved is due.
//
// A turn may be used for a short time after it is due (late), because timers are late. After that
// it is lost: a process that was stopped does not make up for it. No turn is used on the strength
// of what was known more than turnsFresh ago, so that a pause which the provider asks one process
// for holds the calls of all. Where the database takes long to answer, that is how long it takes to
// ask it twice: nobody can know of a pause sooner.
//
// While the database does not answer, each process takes a quarter of the limit by its own clock.
// It begins when all turns are over that were reserved before, as far as can be known, and it goes
// on reserving turns at that pace for a while afterwards. So up to four processes keep the limit
// throughout. (Where only some processes are cut off, the others do not know of it: each of those
// takes its quarter besides.)
type turnQueue struct {
	turns   Turns
	name    func() string
	spacing time.Duration
	logger  *slog.Logger
	// alone is told whether this process paces its calls by itself. It is called under the mutex.
	alone func(alone bool)
	// held says until when the provider wants no call, and hold takes in that it does.
	held func() time.Duration
	hold func(until time.Time)
	// behind is how many calls there are that cannot wait for a turn yet.
	behind func() int

	mu      sync.Mutex
	waiting []*waiter
	// reserved are the turns that nobody in this process has yet.
	reserved []time.Time
	// looked is when the newest answer of the database was asked for, and next the first turn that
	// nobody had then.
	looked, next time.Time
	// refused is when the next free turn was, if the database reserved none because that was too late
	// for all who waited; else zero.
	refused time.Time
	// busy: the database was asked, and has not answered. took is how long its answers took: those to
	// the last three reservations, newest first, each with the looks that came after it. A look may
	// be answered sooner than a reservation.
	busy bool
	took [3]time.Duration
	// eager is how many turns are reserved, at most, for calls that cannot wait for one yet (behind).
	eager int
	// pause is until when the provider wants no call, as the next question tells the database.
	pause time.Time

	// down: the database does not answer. The queue asks again at retryAt. Meanwhile this process
	// takes turns by itself, at a quarter of the limit, the next one at aloneAt. When the database
	// answers again, turns stay so far apart until wideUntil: other processes may still go alone.
	down                        bool
	retryAt, aloneAt, wideUntil time.Time
	// told ends what people are told of that, once it was not seen for a while; nil: they are told
	// nothing.
	told *time.Timer
}

// waiter is a call that waits for its turn.
type waiter struct {
	// wake gets something when the call should look again.
	wake chan struct{}
	// deadline is when its context ends; zero: it does not.
	deadline time.Time
}

func (w *waiter) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// late is how long after it is due a turn may be used.
func (q *turnQueue) late() time.Duration {
	return min(max(q.spacing/2, 10*time.Millisecond), turnsSoon)
}

// roundTrip is how long an answer of the database may be expected to take: less than turnsPatience,
// because a later one counts as none.
func (q *turnQueue) roundTrip() time.Duration {
	return max(q.took[0], q.took[1], q.took[2])
}

// forget drops what the answers took if nobody has called for a while.
func (q *turnQueue) forget() {
	if len(q.waiting) == 0 && time.Since(q.looked) > turnsForget {
		q.took = [3]time.Duration{}
	}
}

// soon is how long before a turn the database has to be asked, to have its answer in time.
func (q *turnQueue) soon() time.Duration { return turnsSoon + 2*q.roundTrip() }

// most is how many turns one reservation takes at most.
func (q *turnQueue) most() int { return max(int(turnsAhead/q.spacing), 1) }

// wait returns when a call may start, or when the provider wants none: the caller looks whether it
// does. It fails at once when the wait could not end in time.
func (q *turnQueue) wait(ctx context.Context) error {
	if ctx.Err() != nil {
		return fleet.ContextError(ctx)
	}
	w := &waiter{wake: make(chan struct{}, 1)}
	w.deadline, _ = ctx.Deadline()
	q.mu.Lock()
	q.forget()
	q.waiting = append(q.waiting, w)
	q.mu.Unlock()
	defer q.leave(w)
	for {
		over, after, err := q.look(ctx, w)
		if over || err != nil {
			return err
		}
		var timer <-chan time.Time
		if after > 0 {
			timer = time.After(after)
		}
		select {
		case <-w.wake:
		case <-timer:
		case <-ctx.Done():
			return fleet.ContextError(ctx)
		}
	}
}

func (q *turnQueue) leave(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, w)
	q.waiting = slices.Delete(q.waiting, i, i+1)
	if i == 0 && len(q.waiting) > 0 {
		q.waiting[0].signal()
	}
}

// look says whether the wait of a call is over, or how long to wait before the next look; zero:
// until it is woken.
func (q *turnQueue) look(ctx context.Context, w *waiter) (over bool, after time.Duration, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held() > 0 {
		return true, 0, nil
	}
	now := time.Now()
	q.expire(now)
	q.reserve(ctx, now)
	place := slices.Index(q.waiting, w)
	if due := q.due(place, now); !w.deadline.IsZero() && due.After(w.deadline) {
		return false, 0, fleet.Errorf(fleet.KindTimeout, "the next call may start in %s, which is too late: %w",
			due.Sub(now).Round(time.Millisecond), context.DeadlineExceeded)
	}
	switch {
	case place > 0:
		return false, 0, nil
	case q.down && q.aloneAt.After(now):
		return false, q.aloneAt.Sub(now), nil
	case q.down:
		q.aloneAt = now.Add(turnsShare * q.spacing)
		return true, 0, nil
	case len(q.reserved) == 0:
		return false, 0, nil
	}
	turn, soon := q.reserved[0], q.soon()
	fresh := max(turnsFresh, soon)
	if known := turn.Sub(q.looked); known > fresh-soon {
		// Looks that are quicker than reservations are not one behind the other.
		lookIn := max(turn.Add(-soon).Sub(now), q.looked.Add(q.roundTrip()).Sub(now))
		switch {
		case lookIn > 0 && turn.After(now):
			return false, min(lookIn, turn.Sub(now)), nil
		case lookIn <= 0 && !q.busy:
			q.ask(ctx, 0)
		}
		if known > fresh {
			return false, 0, nil
		}
	}
	if turn.After(now) {
		return false, turn.Sub(now), nil
	}
	q.reserved = q.reserved[1:]
	return true, 0, nil
}

// due is when the call at that place has its turn, as far as is known; zero: it is not.
func (q *turnQueue) due(place int, now time.Time) time.Time {
	switch {
	case q.down:
		at := q.aloneAt
		if at.Before(now) {
			at = now
		}
		return at.Add(time.Duration(place) * turnsShare * q.spacing)
	case place < len(q.reserved):
		return q.reserved[place]
	}
	return q.refused
}

// expire drops the turns that it is too late for.
func (q *turnQueue) expire(now time.Time) {
	for len(q.reserved) > 0 && q.reserved[0].Add(q.late()).Before(now) {
		q.reserved = q.reserved[1:]
		q.eager /= 2
	}
}

// reserve asks for the turns that are missing, when it is time to.
func (q *turnQueue) reserve(ctx context.Context, now time.Time) {
	switch missing := len(q.waiting) + min(q.behind(), q.eager) - len(q.reserved); {
	case q.busy:
	case q.down:
		if !q.retryAt.After(now) {
			q.ask(ctx, 1)
		}
	case missing <= 0:
	case !q.refused.IsZero() && len(q.reserved) >= len(q.waiting): // too late for those behind, too
	case len(q.reserved) == 0 || q.reserved[len(q.reserved)-1].Sub(now) <= q.soon():
		q.ask(ctx, min(missing, q.most()))
	}
}

var errNoAnswer = errors.New("no answer came in time")

// ask asks the database for turns. The answer comes while others wait, and whoever asked may give
// up meanwhile. q.mu is held.
func (q *turnQueue) ask(ctx context.Context, count int) {
	now := time.Now()
	r := fleet.TurnRequest{
		// However slow this process is, it puts off the turns of others by turnsPatience at most.
		Limit: q.name(), Spacing: q.spacing, Count: count, Lead: min(turnsSoon+q.roundTrip(), turnsPatience),
		Latest: q.latest(), NotBefore: q.pause,
	}
	if q.down || now.Before(q.wideUntil) {
		r.Spacing *= turnsShare
	}
	q.busy = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), turnsPatience)
	late := time.AfterFunc(turnsPatience, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.failed(ctx, errNoAnswer)
	})
	go func() {
		defer cancel()
		grant, err := q.turns.ReserveTurns(ctx, r)
		late.Stop()
		q.mu.Lock()
		defer q.mu.Unlock()
		q.busy = false
		if q.hold(grant.NotBefore); err != nil {
			q.failed(ctx, err)
			return
		}
		q.answered(ctx, r, grant, now)
	}()
}

// latest is when the last of those who wait gives up; zero: one of them does not.
func (q *turnQueue) latest() (latest time.Time) {
	for _, w := range q.waiting {
		if w.deadline.IsZero() {
			return time.Time{}
		}
		if w.deadline.After(latest) {
			latest = w.deadline
		}
	}
	return latest
}

// failed takes in that the database does not answer.
func (q *turnQueue) failed(ctx context.Context, err error) {
	now := time.Now()
	q.retryAt = now.Add(turnsRetry)
	q.tellAlone()
	if q.down {
		return
	}
	q.down, q.reserved, q.refused = true, nil, time.Time{}
	if q.aloneAt = now; q.next.After(now) {
		q.aloneAt = q.next
	}
	q.aloneAt = q.aloneAt.Add(turnsShare * max(turnsAhead, q.spacing, q.roundTrip()))
	q.logger.WarnContext(ctx, "the database hands out no turns to call: this process takes a quarter of the limit",
		slog.Duration("spacing", turnsShare*q.spacing), slog.Any("err", err))
	q.wakeAll()
}

// tellAlone tells people that this process paces alone, from now on for turnsTold.
func (q *turnQueue) tellAlone() {
	if q.told != nil {
		q.told.Reset(turnsTold)
		return
	}
	q.alone(true)
	q.told = time.AfterFunc(turnsTold, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		switch {
		case q.told == nil:
		case len(q.waiting) > 0: // they see whether it is over
			q.told.Reset(turnsTold)
		default:
			q.untellAlone()
		}
	})
}

// untellAlone ends that.
func (q *turnQueue) untellAlone() {
	if q.told != nil {
		q.told.Stop()
		q.told = nil
		q.alone(false)
	}
}

// answered takes in what the database said. An answer that took longer than turnsPatience counts as
// none, by the clock: in a process that was stopped, it may come before the timer of ask.
func (q *turnQueue) answered(ctx context.Context, r fleet.TurnRequest, grant fleet.TurnGrant, asked time.Time) {
	now := time.Now()
	took := now.Sub(asked)
	if took >= turnsPatience {
		q.failed(ctx, errNoAnswer)
		return
	}
	q.looked, q.next = asked, grant.Next
	if r.Count > 0 {
		q.took = [3]time.Duration{took, q.took[0], q.took[1]}
	} else {
		q.took[0] = max(q.took[0], took)
	}
	if q.down {
		q.down, q.wideUntil = false, now.Add(turnsReturn)
		q.untellAlone()
		q.logger.InfoContext(ctx, "the database hands out turns to call again")
	}
	if r.Count > 0 {
		q.refused = time.Time{}
		if grant.First.IsZero() {
			q.refused = grant.Next
		}
		if r.Count > len(q.waiting) {
			q.eager = min(2*q.eager, q.most())
		}
		q.eager = max(q.eager, 1)
	}
	for n := range r.Count {
		if !grant.First.IsZero() {
			q.reserved = append(q.reserved, grant.First.Add(time.Duration(n)*r.Spacing))
		}
	}
	if !q.pause.After(r.NotBefore) {
		q.pause = time.Time{}
	} else {
		q.ask(ctx, 0)
	}
	q.wakeAll()
}

// tell passes on, to all processes, that the provider wants no call for a while.
func (q *turnQueue) tell(ctx context.Context, until time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forget()
	if until.After(q.pause) {
		q.pause = until
	}
	if !q.busy && !q.down {
		q.ask(ctx, 0)
	}
	q.wakeAll()
}

func (q *turnQueue) wakeAll() {
	for _, w := range q.waiting {
		w.signal()
	}
}

// pacing says how the calls are paced, in one clause.
func (q *turnQueue) pacing() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forget()
	if q.told != nil || q.down && len(q.waiting) > 0 {
		return fmt.Sprintf("one call each %s by this process alone, a quarter of the limit: the database hands out no turns", turnsShare*q.spacing)
	}
	text := fmt.Sprintf("one call each %s at most, of all control planes together", q.spacing)
	if slow := q.roundTrip(); slow >= turnsSlow {
		text += fmt.Sprintf(": the database took up to %s lately to hand out turns", slow.Round(100*time.Millisecond))
	}
	return text
}
