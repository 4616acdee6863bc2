package model_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest/model"
	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	provider = fleet.ProviderName("p1")
	actor    = "op@example"
)

// stopped is an engine whose database time is what the test says.
type stopped struct {
	bmdb.Engine
	now *time.Time
}

type stoppedTx struct {
	bmdb.Tx
	now time.Time
}

func (t stoppedTx) Now() time.Time { return t.now }

func (e stopped) fn(fn func(ctx context.Context, tx bmdb.Tx) error) func(ctx context.Context, tx bmdb.Tx) error {
	return func(ctx context.Context, tx bmdb.Tx) error { return fn(ctx, stoppedTx{tx, *e.now}) }
}

func (e stopped) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.Engine.Update(ctx, e.fn(fn))
}

func (e stopped) Extend(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.Engine.Extend(ctx, e.fn(fn))
}

func (e stopped) View(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.Engine.View(ctx, e.fn(fn))
}

func (e stopped) Peek(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.Engine.Peek(ctx, e.fn(fn))
}

// system is one engine under test. Its answers are in terms of the model: sessions and machines by
// their numbers.
type system struct {
	*rapid.T
	ctx      context.Context //nolint:containedctx // of the test
	name     string
	faults   *bmdbtest.Faults
	db       *bmdb.DB
	machines []fleet.MachineID
	sessions []*bmdb.Session
	works    map[model.Work]*bmdb.Work
}

func newSystem(t *rapid.T, name string, engine bmdb.Engine, machines []fleet.MachineID, now *time.Time) *system {
	s := &system{T: t, ctx: t.Context(), name: name, machines: machines, works: make(map[model.Work]*bmdb.Work)}
	s.faults = &bmdbtest.Faults{Engine: engine}
	s.must(engine.Migrate(s.ctx))
	db, err := bmdb.Open(s.ctx, stopped{s.faults, now}, bmdb.Options{Jitter: func() float64 { return 0.5 }})
	s.must(err)
	s.db = db
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	s.must(bmdbtest.Stock(s.ctx, db, provider, machines, nil))
	return s
}

func (s *system) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", s.name, err)
	}
}

// ok turns the outcome of an operation into an answer: done, or refused for the reason that was
// expected.
func (s *system) ok(err error, refused fleet.Kind) string {
	s.Helper()
	switch {
	case err == nil:
		return "ok"
	case fleet.KindOf(err) == refused:
		return refused.String()
	}
	s.Fatalf("%s: %v", s.name, err)
	return ""
}

func (s *system) start(lease time.Duration) {
	session, err := s.db.StartSession(s.ctx, bmdb.SessionOptions{Component: "c", Host: "h", PID: 1, Lease: lease})
	s.must(err)
	s.sessions = append(s.sessions, session)
}

func (s *system) session(id fleet.SessionID) int {
	return slices.IndexFunc(s.sessions, func(x *bmdb.Session) bool { return x.ID() == id })
}

// taken is the answer of a claim.
type taken struct {
	works  []model.Work
	answer string
	lost   bool
}

func (s *system) claim(session, limit int, loseReply bool) taken {
	if loseReply {
		s.faults.LoseReply()
	}
	c, err := s.sessions[session].Claim(s.ctx, bmdb.ClaimRequest{
		Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{provider}, Limit: limit,
	})
	if s.faults.Clear() > 0 {
		if err == nil {
			s.Fatalf("%s: the reply was lost and nobody noticed", s.name)
		}
		return taken{works: s.unknown(session), answer: "reply lost", lost: true}
	}
	a := taken{answer: s.ok(err, fleet.KindLeaseLost)}
	for _, w := range c.Works {
		l := model.Work{Machine: slices.Index(s.machines, w.Subject.Machine), Session: session, Epoch: int(w.Epoch)}
		a.works = append(a.works, l)
		s.works[l] = w
	}
	return a
}

// unknown returns what the database says the session holds and the session does not know.
func (s *system) unknown(session int) (works []model.Work) {
	held, err := bmdbtest.Held(s.ctx, s.db, s.sessions[session].ID())
	s.must(err)
	for _, h := range held {
		l := model.Work{Machine: slices.Index(s.machines, h.Subject.Machine), Session: session, Epoch: int(h.Epoch)}
		if s.works[l] == nil {
			works = append(works, l)
		}
	}
	return works
}

// finish ends work. Where the reply is lost, the caller repeats what it did, and then it knows.
func (s *system) finish(l model.Work, event string, loseReply bool) string {
	if loseReply {
		s.faults.LoseReply()
	}
	err := s.end(l, event)
	if s.faults.Clear() > 0 {
		if err == nil {
			s.Fatalf("%s: the reply was lost and nobody noticed", s.name)
		}
		err = s.end(l, event)
	}
	return s.ok(err, fleet.KindLeaseLost)
}

func (s *system) end(l model.Work, event string) error {
	w := s.works[l]
	switch event {
	case model.Finished:
		return w.Finish(s.ctx)
	case model.Failed:
		return w.Fail(s.ctx, bmdb.Failure{Cause: "drawn", Backoff: fleet.Backoff{Initial: first, Exponent: 2, Maximum: most}})
	}
	return w.Cancel(s.ctx, "drawn")
}

func (s *system) takeOver(l model.Work) string {
	var g fleet.TakeoverGeneration
	if a := s.ok(s.works[l].Note(s.ctx, bmdb.MintTakeover(0, &g)), fleet.KindLeaseLost); a != "ok" {
		return a
	}
	return s.ok(s.works[l].Finish(s.ctx, bmdb.SetAgentStarted(fleet.AgentStarted{TakeoverGeneration: g, PublicKey: []byte("k")})),
		fleet.KindLeaseLost)
}

// ended returns which sessions have.
func (s *system) ended() (ended []int) {
	list, err := s.db.Sessions(s.ctx, true)
	s.must(err)
	for _, row := range list {
		if i := s.session(row.ID); i >= 0 && !row.EndedAt.IsZero() {
			ended = append(ended, i)
		}
	}
	slices.Sort(ended)
	return ended
}

// machine reads what the database says of a machine and of each work on it, in the terms of the
// model. What nobody has come across yet is told apart by the caller: the work of a dead holder
// whose end is not written.
func (s *system) machine(i int) (m model.Machine, works []model.Row) {
	r, err := s.db.Machine(s.ctx, s.machines[i])
	s.must(err)
	m = model.Machine{
		Holder: model.Nobody, Quarantined: r.Quarantine != nil, HasAgent: r.AgentStarted != nil, Takeover: int(r.TakeoverGeneration),
		Interval: r.Backoffs[fleet.ProcessAgentStart].Interval, NotBefore: r.Backoffs[fleet.ProcessAgentStart].NotBefore,
	}
	if h, held := r.Holds[fleet.LaneHost]; held {
		m.Holder, m.Epoch = s.session(h.Session), int(h.Epoch)
	}
	rows, err := s.db.History(s.ctx, s.machines[i], 1000)
	s.must(err)
	for _, row := range slices.Backward(rows) {
		switch event := string(row.Event); event {
		case model.Started, model.Finished, model.Failed, model.Cancelled, model.Expired, model.Revoked:
			if row.Why == "" || row.At.Before(row.StartedAt) {
				s.Fatalf("%s: machine %d has in its history an end without a reason to start, or before the start: %+v", s.name, i, row)
			}
			works = append(works, model.Row{Epoch: int(row.Epoch), Event: event, StartedAt: row.StartedAt})
		default:
			if !row.StartedAt.IsZero() {
				s.Fatalf("%s: machine %d has in its history the start of work in a row that is not about any: %+v", s.name, i, row)
			}
		}
	}
	return m, works
}

func (s *system) sound() {
	findings, err := s.db.Check(s.ctx)
	s.must(err)
	if len(findings) > 0 {
		s.Fatalf("%s is not sound: %s", s.name, fmt.Sprint(findings))
	}
}
