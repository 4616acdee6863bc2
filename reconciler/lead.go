package reconciler

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/gate"
)

// eachTerm calls serve with each leadership, under a context that ends with the leadership. It
// ignores an error that serve returns after that end.
func (s *Service) eachTerm(ctx context.Context, serve func(context.Context, *election.Leadership) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for l := range s.leadership.Watch(ctx) {
		if l == nil {
			continue
		}
		bound, unbind := l.Bind(ctx)
		err := serve(bound, l)
		over := bound.Err() != nil
		unbind()
		if err != nil && !over {
			return err
		}
	}
	return nil
}

// watchResources runs the applier's watches while we lead.
func (s *Service) watchResources(ctx context.Context) error {
	return s.eachTerm(ctx, func(ctx context.Context, _ *election.Leadership) error { return s.applier.Run(ctx) })
}

// lead carries out what the gate decides while we lead.
func (s *Service) lead(ctx context.Context) error {
	return s.eachTerm(ctx, func(ctx context.Context, l *election.Leadership) error {
		t := s.newTerm(l)
		for ctx.Err() == nil {
			if err := t.round(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// term is what is known and done during one leadership.
type term struct {
	*Service
	leadership *election.Leadership
	logger     *slog.Logger
	begun      time.Time
	// reason is that of the last plan that was logged.
	reason string
	// mayNotAsk tells that the last answer of the API server was that we may not ask which cluster it
	// is of, and that we have gone on without it.
	mayNotAsk     bool
	troubleWriter troubleWriter
	// deletionWriter tells what deletions finalizers hold up.
	deletionWriter deletionWriter

	// revision is that of the known status, and at a revision of etcd at which it was so.
	revision, at int64

	// given are the overrides that the last pass was given. overridesChanged is closed when they are
	// no longer so; unfollow ends what would close it.
	given            etcd.Snapshot
	overridesChanged <-chan struct{}
	unfollow         context.CancelFunc
}

func (s *Service) newTerm(l *election.Leadership) *term {
	return &term{
		Service: s, leadership: l, logger: s.config.Logger.With(slog.Int64("term", l.Term)), begun: time.Now(),
		troubleWriter:  troubleWriter{notice: notice{key: s.config.Layout.Trouble()}},
		deletionWriter: deletionWriter{notice{key: s.config.Layout.Deletions()}},
	}
}

// setState changes what the service shows to people, unless the leadership is over.
func (t *term) setState(change func(*State)) {
	t.change(func(state *State) {
		if state.Term == t.leadership.Term {
			change(state)
		}
	})
}

// round decides once, and carries the decision out until the nodes or the status are no longer what
// it was made from.
func (t *term) round(ctx context.Context) error {
	view, err := readStatus(ctx, t.client, t.config.Layout)
	if err != nil {
		return err
	}
	observed := view.Observed
	t.revision, t.at = observed.Revision, view.At
	nodes, ok := t.nodes.Get()
	if !ok {
		return fleet.Errorf(fleet.KindTemporary, "the nodes have not been read yet")
	}
	plan := gate.Decide(t.config.Build, observed, nodes.Gate())
	t.logPlan(ctx, plan)
	if plan.Hold {
		t.troubleWriter.none(ctx, t)
		t.deletionWriter.none(ctx, t)
		t.setState(func(state *State) { state.PassError = "" }) // no pass fails
		t.awaitChange(ctx, nodes.Revision)
		return nil
	}
	return t.retryConflict(ctx, t.carryOut(ctx, plan, nodes.Revision))
}

// carryOut carries out a plan, in order. It returns nil when the leadership ends, and KindConflict
// when the nodes or the status are no longer what the plan was made from.
func (t *term) carryOut(ctx context.Context, plan gate.Plan, nodes int64) error {
	if err := t.awaitCluster(ctx); err != nil {
		return err
	}
	if plan.Before != nil {
		if err := t.write(ctx, announcement{status: *plan.Before, guarded: plan.Guarded, nodes: nodes}); err != nil {
			return err
		}
	}
	if !t.settle(ctx, plan) {
		return nil
	}
	if err := t.reach(ctx, plan.After); err != nil || ctx.Err() != nil {
		return err
	}
	return t.maintain(ctx)
}

// conflictPause is the pause after a conflict. What we know of the nodes may have to catch up
// before the next decision.
const conflictPause = 100 * time.Millisecond

// retryConflict returns nil after a conflict, so that another round decides. It returns any other
// error as it is.
func (t *term) retryConflict(ctx context.Context, err error) error {
	if fleet.KindOf(err) != fleet.KindConflict && !errors.Is(err, election.ErrDeposed) {
		return err
	}
	t.logger.InfoContext(ctx, "deciding again", slog.Any("err", err))
	sleep(ctx, conflictPause)
	return nil
}

// sleep returns true when d has passed, and false when ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (t *term) logPlan(ctx context.Context, plan gate.Plan) {
	doing, blocked := plan.Reason, ""
	if plan.Hold {
		doing, blocked = "holding: "+doing, plan.Reason
	}
	t.setState(func(state *State) { state.Doing, state.Blocked = doing, blocked })
	if doing == t.reason {
		return
	}
	t.reason = doing
	attrs := []any{slog.String("reason", plan.Reason), slog.Bool("hold", plan.Hold)}
	if plan.Before != nil {
		attrs = append(attrs, slog.String("before", plan.Before.String()))
	}
	if plan.After != nil {
		attrs = append(attrs, slog.String("after", plan.After.String()))
	}
	t.logger.InfoContext(ctx, "decided", attrs...)
}

// write announces a status in place of the known one.
func (t *term) write(ctx context.Context, a announcement) error {
	a.instead = t.revision
	revision, err := announce(ctx, t.client, t.config.Layout, t.leadership, a)
	if err != nil {
		return err
	}
	t.revision, t.at = revision, revision
	t.logger.InfoContext(ctx, "announced", slog.String("status", a.status.String()))
	t.config.Observer.Announced(a.status)
	return nil
}

// settle waits, once per leadership, until the last requests of the leader before us have landed.
// It need not wait in the first term if there is no status: nobody led before, and no API server
// serves without a status. It returns false if ctx ended.
func (t *term) settle(ctx context.Context, plan gate.Plan) bool {
	if t.settledTerm() == t.leadership.Term {
		return true
	}
	if (plan.Settle || t.leadership.Term > 1) && !sleep(ctx, time.Until(t.begun.Add(t.config.Settle))) {
		return false
	}
	t.mu.Lock()
	t.settled = t.leadership.Term
	t.mu.Unlock()
	return true
}

func (s *Service) settledTerm() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settled
}

// awaitChange returns when a node or the status is no longer what the decision was made from.
func (t *term) awaitChange(ctx context.Context, nodes int64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sets, changed := t.nodes.Watch(ctx), t.statusChanged(ctx)
	for {
		select {
		case set := <-sets:
			if set.Revision != nodes {
				return
			}
		case <-changed:
			return
		case <-ctx.Done():
			return
		}
	}
}

// statusChanged returns a channel that receives once, when the status is no longer the known one.
func (t *term) statusChanged(ctx context.Context) <-chan struct{} {
	changed, revision, at := make(chan struct{}, 1), t.revision, t.at
	go func() {
		for view := range t.status.Watch(ctx) {
			if view.At > at && view.Revision != revision {
				changed <- struct{}{}
				return
			}
		}
	}()
	return changed
}
