package linear_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest/linear"
	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	provider = fleet.ProviderName("p1")
	// lease of a session, in database time; for the processes' own clocks it never ends in a test.
	lease = 10 * time.Minute
)

// scene is one database with its clients, and the history that they make.
type scene struct {
	testing.TB
	ctx      context.Context //nolint:containedctx // of the test
	db       *bmdb.DB
	shift    *bmdbtest.Shift
	machines []fleet.MachineID
	kill     func(testing.TB)
	begun    time.Time

	mu       sync.Mutex
	history  []porcupine.Operation
	sessions map[fleet.SessionID]int
	seen     map[linear.Op]bool            // leases that a client was told of
	failed   map[int][]porcupine.Operation // claims that failed, by session
	lost     int
}

func (s *scene) now() int64 { return time.Since(s.begun).Nanoseconds() }

func (s *scene) add(client int, op linear.Op, done bool, call int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = append(s.history, porcupine.Operation{ClientId: client, Input: op, Output: done, Call: call, Return: s.now()})
	if op.Kind == linear.Take {
		s.seen[linear.Op{Machine: op.Machine, Epoch: op.Epoch}] = true
	}
	if !done {
		s.lost++
	}
}

// client is one user of the database.
type client struct {
	*scene
	id      int
	random  *rand.Rand
	session *bmdb.Session
	number  int // of the session
	works   []*bmdb.Work
	// old is work of sessions that have been given up: a holder that was stopped and comes back.
	old []*bmdb.Work
	// over is work that has been finished, possibly followed by more of the same session on the same
	// machine.
	over []over
}

// over is how a work was ended.
type over struct {
	work *bmdb.Work
	how  string
}

// known repeats a call until its outcome is known: true for done, false for lost.
func (c *client) known(do func() error) bool {
	for range 100 {
		err := do()
		if err == nil {
			return true
		}
		if fleet.KindOf(err) == fleet.KindLeaseLost {
			return false
		}
		c.broken(err)
		if c.ctx.Err() != nil {
			break
		}
	}
	c.Errorf("the outcome of an operation never becomes known")
	return false
}

// broken fails the test unless the error is one that a connection that broke on purpose explains.
func (c *client) broken(err error) {
	if !errors.Is(err, errBroken) && !errors.Is(err, context.Canceled) && fleet.KindOf(err) != fleet.KindTemporary {
		c.Errorf("an operation failed by itself: %v", err)
	}
}

// renew gives the session up, without a word or by closing it, and starts another.
func (c *client) renew(say bool) {
	c.old = append(c.old, c.works...)
	c.works = nil
	if c.session != nil && say {
		call := c.now()
		session := c.session
		if !c.known(func() error { return session.Close(c.ctx, "closed") }) {
			c.Errorf("a session cannot be closed")
		}
		c.add(c.id, linear.Op{Kind: linear.Close, Session: c.number}, true, call)
	}
	call := c.now()
	for c.session = nil; c.session == nil; {
		session, err := c.db.StartSession(c.ctx, bmdb.SessionOptions{Component: fmt.Sprint("client", c.id), Host: "h", PID: 1, Lease: lease})
		if err != nil && c.ctx.Err() != nil {
			c.Errorf("a session cannot be started: %v", err)
			return
		}
		c.session = session
	}
	c.mu.Lock()
	c.number = len(c.sessions) + 1
	c.sessions[c.session.ID()] = c.number
	c.mu.Unlock()
	c.add(c.id, linear.Op{Kind: linear.Start, Session: c.number}, true, call)
}

func (c *client) claim() {
	call := c.now()
	claim, err := c.session.Claim(c.ctx, bmdb.ClaimRequest{
		Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{provider}, Limit: 1 + c.random.IntN(3),
	})
	for _, w := range claim.Works {
		c.add(c.id, c.op(linear.Take, w), true, call)
		c.works = append(c.works, w)
	}
	if err == nil {
		return
	}
	number := c.number
	if fleet.KindOf(err) == fleet.KindLeaseLost {
		c.add(c.id, linear.Op{Kind: linear.Refused, Session: number}, false, call)
		c.renew(false)
	} else {
		c.broken(err)
		c.extend()
		if c.number == number {
			c.renew(true)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed[number] = append(c.failed[number], porcupine.Operation{ClientId: c.id, Call: call, Return: c.now()})
}

func (c *client) op(kind linear.Kind, w *bmdb.Work) linear.Op {
	c.mu.Lock()
	defer c.mu.Unlock()
	return linear.Op{
		Kind: kind, Session: c.sessions[w.Session], Machine: slices.Index(c.machines, w.Subject.Machine), Epoch: int(w.Epoch),
	}
}

func (c *client) extend() {
	call := c.now()
	session := c.session
	done := c.known(func() error { return session.Extend(c.ctx) })
	c.add(c.id, linear.Op{Kind: linear.Extend, Session: c.number}, done, call)
	if !done {
		c.renew(false)
	}
}

func (c *client) note(w *bmdb.Work) {
	call := c.now()
	done := c.known(func() error { return w.Note(c.ctx, bmdb.RecordHistory("note", "")) })
	c.add(c.id, c.op(linear.Note, w), done, call)
}

// hows are the ways to end work, the usual ones more than once.
var hows = []string{"finish", "finish", "finish", "finish", "cancel", "cancel", "cancel", "cancel", "fail"}

func (c *client) how() string { return hows[c.random.IntN(len(hows))] }

func (c *client) finish(w *bmdb.Work, how string) {
	call := c.now()
	done := c.known(func() error {
		switch how {
		case "fail":
			return w.Fail(c.ctx, bmdb.Failure{Cause: "drawn", Backoff: fleet.Backoff{Initial: time.Second}})
		case "cancel":
			return w.Cancel(c.ctx, "drawn")
		}
		return w.Finish(c.ctx)
	})
	c.add(c.id, c.op(linear.Finish, w), done, call)
}

// remember keeps a work that was ended.
func (c *client) remember(w *bmdb.Work, how string) {
	c.over = append(c.over[max(0, len(c.over)-5):], over{w, how})
}

// finishSome ends several works at once, and tries to end otherwise what has been ended already,
// possibly on a machine that the same session has taken again: ends that arrive together are
// committed together, and each must be judged for itself.
func (c *client) finishSome() {
	var wg sync.WaitGroup
	for _, o := range c.over[max(0, len(c.over)-2):] {
		how := "finish"
		if o.how == how {
			how = "cancel"
		}
		wg.Go(func() { c.finish(o.work, how) })
	}
	// more would take porcupine too long to put into an order
	together := c.works[:min(len(c.works), 3)]
	c.works = c.works[len(together):]
	for _, w := range together {
		how := c.how()
		wg.Go(func() { c.finish(w, how) })
		defer c.remember(w, how)
	}
	wg.Wait()
}

// one makes one random operation.
func (c *client) one() {
	draw := c.random.IntN(100)
	switch {
	case draw < 3:
		call := c.now()
		c.shift.Advance(lease + time.Minute)
		c.add(c.id, linear.Op{Kind: linear.Advance}, true, call)
	case draw == 3:
		c.kill(c.TB)
	case draw < 6:
		if _, err := c.db.CollectSessions(c.ctx); err != nil && c.ctx.Err() != nil {
			c.Error(err)
		}
	case draw < 9:
		c.renew(draw == 6)
	case draw < 25:
		c.extend()
	case draw < 29 && len(c.over) > 0:
		c.note(c.over[c.random.IntN(len(c.over))].work)
	case draw < 35 && len(c.old) > 0:
		w := c.old[c.random.IntN(len(c.old))]
		if c.random.IntN(2) == 0 {
			c.note(w)
			return
		}
		c.old = slices.DeleteFunc(c.old, func(o *bmdb.Work) bool { return o == w })
		how := c.how()
		c.finish(w, how)
		c.remember(w, how)
	case draw < 38 && len(c.works) > 0:
		c.finishSome()
	case draw < 65 && len(c.works) > 0:
		i := c.random.IntN(len(c.works))
		w := c.works[i]
		if c.random.IntN(4) == 0 {
			c.note(w)
			return
		}
		c.works = slices.Delete(c.works, i, i+1)
		how := c.how()
		c.finish(w, how)
		c.remember(w, how)
	default:
		c.claim()
	}
}
