package reconciler

import (
	"context"
	"log/slog"
	"time"

	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/release"
)

// Publisher is an Applier that can show in the cluster how things stand, for people who look there.
type Publisher interface {
	// Publish shows a standing together with what the Applier knows of its objects. The service
	// calls it every few seconds while this node leads, and calls never overlap. With nothing new to
	// show it makes no request. Nothing is decided from what it shows, and an error is logged and
	// has no other consequence.
	Publish(ctx context.Context, s Standing) error
}

// Standing is how things stand, as the leader sees it.
type Standing struct {
	// Leader is the name of the node that leads, and Release what it runs.
	Leader  string
	Release release.Release
	// Status is what is announced, in words.
	Status string
	// Doing says in one clause what the leader does. Blocked is why it waits before it may change
	// anything; empty: it does not.
	Doing, Blocked string
	// PassError is why the last pass did not find everything as wanted; empty: it did.
	PassError string
}

// publishInterval is the time between two calls of Publish.
const publishInterval = 5 * time.Second

// publish calls the publisher while we lead.
func (s *Service) publish(ctx context.Context, publisher Publisher) error {
	return s.eachTerm(ctx, func(ctx context.Context, l *election.Leadership) error {
		failing := false
		tick := time.NewTicker(publishInterval)
		defer tick.Stop()
		for {
			if standing, known := s.standing(l.Term); known {
				err := publisher.Publish(ctx, standing)
				switch {
				case ctx.Err() != nil:
				case err != nil && !failing:
					s.config.Logger.WarnContext(ctx, "people of the cluster are not shown how things stand", slog.Any("err", err))
				case err == nil && failing:
					s.config.Logger.InfoContext(ctx, "people of the cluster are shown again how things stand")
				}
				failing = err != nil
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
		}
	})
}

// standing returns how things stand in a term; false before anything was decided in it, and while
// etcd and the API server may be of two clusters.
func (s *Service) standing(term int64) (Standing, bool) {
	state := s.State()
	if state.Term != term || state.Doing == "" || !s.sameKnown() {
		return Standing{}, false
	}
	standing := Standing{
		Leader: s.config.Node, Release: s.config.Build.Release, Doing: state.Doing, Blocked: state.Blocked, PassError: state.PassError, Status: "none yet",
	}
	switch {
	case state.Status.Unreadable != "":
		standing.Status = "unreadable: " + state.Status.Unreadable
	case state.Status.Found:
		standing.Status = state.Status.Status.String()
	}
	return standing, true
}
