package reconciler

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/gate"
	"github.com/ironherd/ironherd/reconciler/node"
)

// watchReleases decides whether this node may lead, and again whenever a node changes. It also
// registers this node if it has no record, because the others would overlook it.
func (s *Service) watchReleases(ctx context.Context) error {
	for set := range s.nodes.Watch(ctx) {
		if !slices.ContainsFunc(set.Nodes, func(n node.Node) bool { return n.Name == s.config.Node }) {
			record := node.Record{Roles: []string{node.Controller}, Release: s.config.Build.Release}
			wrote, err := s.registry.Ensure(ctx, s.config.Node, record)
			if err != nil {
				return err
			}
			if wrote {
				s.config.Logger.InfoContext(ctx, "registered this node", slog.String("node", s.config.Node),
					slog.String("release", record.Release.String()))
			}
		}
		verdict := gate.Campaign(s.config.Build.Release, set.Gate())
		if before, ok := s.verdict.Get(); ok && before == verdict {
			continue
		}
		s.config.Logger.InfoContext(ctx, "whether we may lead", slog.Bool("may", verdict.OK), slog.String("reason", verdict.Reason))
		s.verdict.Set(verdict)
	}
	return nil
}

// elect campaigns whenever this node may lead, and gives the leadership up at once when it no
// longer may.
func (s *Service) elect(ctx context.Context) error {
	for s.awaitVerdictChange(ctx, false) == nil { // this node may lead now
		allowed, cancel := context.WithCancelCause(ctx)
		go func() { cancel(s.awaitVerdictChange(allowed, true)) }()
		err := s.campaign(allowed)
		forbidden := allowed.Err() != nil
		cancel(nil)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the candidacy was stopped
		case err != nil && !forbidden:
			return err // the caller pauses, tells why, and begins again
		}
	}
	return nil
}

var errNotAllowed = errors.New("this node may no longer lead")

// awaitVerdictChange waits until the verdict is no longer as given. It returns nil when this node
// may lead now, errNotAllowed when it no longer may, and the cause of ctx when that has ended.
func (s *Service) awaitVerdictChange(ctx context.Context, as bool) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	for verdict := range s.verdict.Watch(watching) {
		switch {
		case verdict.OK == as:
		case as:
			return errNotAllowed
		default:
			return nil
		}
	}
	return context.Cause(ctx)
}

// campaign stands for election once, and holds the leadership until that is over.
func (s *Service) campaign(ctx context.Context) error {
	fault := s.awaitProbe(ctx)
	l, err := election.Campaign(ctx, election.Config{
		Client: s.client, Prefix: s.config.Layout.Election(), TTL: s.config.TTL, Logger: s.config.Logger, Fault: &s.fault,
		Candidate: election.Candidate{Name: s.config.Node, Build: s.config.Build, Fault: fault},
	})
	if err != nil {
		return err
	}
	logger := s.config.Logger.With(slog.Int64("term", l.Term))
	logger.InfoContext(ctx, "elected")
	s.change(func(state *State) { state.Term, state.Doing = l.Term, "beginning" })
	s.leadership.Set(l)
	select {
	case <-l.Done():
	case <-ctx.Done():
	}
	s.leadership.Set(nil)
	s.change(func(state *State) { *state = State{} })
	err = l.Resign(ctx)
	why := l.Why()
	if errors.Is(why, election.ErrResigned) {
		why = context.Cause(ctx)
	}
	logger.InfoContext(ctx, "no longer leading", slog.Any("reason", why))
	if err != nil {
		logger.WarnContext(ctx, "the successor has to wait for our lease to end", slog.Any("err", err))
	}
	return nil
}
