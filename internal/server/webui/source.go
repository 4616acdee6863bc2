package webui

import (
	"context"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/server/webui/live"
)

// source is where views get their answers from. Questions that several views share are asked once
// for all of them.
type source struct {
	client    fleetv1connect.FleetServiceClient
	ours      func(context.Context) context.Context
	summary   *live.Question[*fleetv1.GetSummaryResponse]
	providers *live.Question[[]*fleetv1.Provider]
	sessions  *live.Question[[]*fleetv1.Session]
	version   *live.Question[*fleetv1.GetVersionResponse]
}

func newSource(client fleetv1connect.FleetServiceClient, opts live.Options) *source {
	s := &source{client: client, ours: opts.Ours}
	if s.ours == nil {
		s.ours = func(ctx context.Context) context.Context { return ctx }
	}
	s.summary = live.NewQuestion(opts, opts.Interval, forAll(s, summarize(client)))
	s.providers = live.NewQuestion(opts, opts.Interval, forAll(s, func(ctx context.Context) ([]*fleetv1.Provider, error) {
		response, err := client.ListProviders(ctx, &fleetv1.ListProvidersRequest{})
		return response.GetProviders(), err
	}))
	s.sessions = live.NewQuestion(opts, opts.Interval, forAll(s, func(ctx context.Context) ([]*fleetv1.Session, error) {
		response, err := client.ListSessions(ctx, &fleetv1.ListSessionsRequest{})
		return response.GetSessions(), err
	})).Costly()
	s.version = live.NewQuestion(opts, time.Minute, forAll(s, func(ctx context.Context) (*fleetv1.GetVersionResponse, error) {
		return client.GetVersion(ctx, &fleetv1.GetVersionRequest{})
	}))
	return s
}

// forAll returns the question as one that no caller is behind.
func forAll[T any](s *source, ask func(ctx context.Context) (T, error)) func(ctx context.Context) (T, error) {
	return func(ctx context.Context) (T, error) { return ask(s.ours(ctx)) }
}

// phaseInterval is how often phases are computed at most. That reads the facts of thousands of
// machines, so they are asked for more rarely where it takes long, as what is costly is.
const phaseInterval = 2 * time.Second

// summarize returns the question for the summary. Its answers always carry phases, which may be
// older than the rest.
func summarize(client fleetv1connect.FleetServiceClient) func(ctx context.Context) (*fleetv1.GetSummaryResponse, error) {
	var phases []*fleetv1.PhaseDuration
	var next time.Time
	return func(ctx context.Context) (*fleetv1.GetSummaryResponse, error) {
		start := time.Now()
		ask := !start.Before(next)
		response, err := client.GetSummary(ctx, &fleetv1.GetSummaryRequest{Phases: ask})
		if ask {
			next = time.Now().Add(max(phaseInterval, live.CostlyShare*time.Since(start)))
		}
		if err != nil {
			return nil, err
		}
		if ask {
			phases = response.GetPhases()
		}
		response.Phases = phases
		return response, nil
	}
}
