package webui

import (
	"context"
	"errors"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/server/webui/live"
)

// source is where views get their answers from. Questions that several views share are asked once
// for all of them.
type source struct {
	client    fleetv1connect.FleetServiceClient
	summary   *live.Question[*fleetv1.GetSummaryResponse]
	providers *live.Question[[]*fleetv1.Provider]
	sessions  *live.Question[[]*fleetv1.Session]
	version   *live.Question[*fleetv1.GetVersionResponse]
}

func newSource(client fleetv1connect.FleetServiceClient, opts live.Options) *source {
	s := &source{client: client}
	s.summary = live.NewQuestion(opts.Interval, opts.Timeout, summarize(client))
	s.providers = live.NewQuestion(opts.Interval, opts.Timeout, func(ctx context.Context) ([]*fleetv1.Provider, error) {
		response, err := client.ListProviders(ctx, &fleetv1.ListProvidersRequest{})
		return response.GetProviders(), err
	})
	s.sessions = live.NewQuestion(opts.Interval, opts.Timeout, paced(func(ctx context.Context) ([]*fleetv1.Session, error) {
		response, err := client.ListSessions(ctx, &fleetv1.ListSessionsRequest{})
		return response.GetSessions(), err
	}))
	s.version = live.NewQuestion(time.Minute, opts.Timeout, func(ctx context.Context) (*fleetv1.GetVersionResponse, error) {
		return client.GetVersion(ctx, &fleetv1.GetVersionRequest{})
	})
	return s
}

// Computing phases reads the facts of thousands of machines, and what sessions hold is looked for
// in every machine. Both are asked for more rarely where that takes long, so that this page never
// causes more than a twentieth of one core's work with either.
const (
	phaseInterval = 2 * time.Second
	costlyShare   = 20
	// failedWait is how long a failure stands at most for what would be answered now.
	failedWait = 30 * time.Second
)

// paced returns a question of which an older answer does for costlyShare as long as it took, and an
// older failure likewise. So a view must not fail with it: all else may be answered again by then.
func paced[T any](ask func(ctx context.Context) (T, error)) func(ctx context.Context) (T, error) {
	var last T
	var failed error
	var next time.Time
	return func(ctx context.Context) (T, error) {
		start := time.Now()
		if start.Before(next) {
			return last, failed
		}
		answer, err := ask(ctx)
		if errors.Is(ctx.Err(), context.Canceled) {
			return answer, err
		}
		wait := costlyShare * time.Since(start)
		if err != nil {
			wait = min(wait, failedWait)
		}
		last, failed, next = answer, err, time.Now().Add(wait)
		return answer, err
	}
}

// summarize returns the question for the summary. Its answers always carry phases, which may be
// older than the rest.
func summarize(client fleetv1connect.FleetServiceClient) func(ctx context.Context) (*fleetv1.GetSummaryResponse, error) {
	var phases []*fleetv1.PhaseDuration
	var next time.Time
	return func(ctx context.Context) (*fleetv1.GetSummaryResponse, error) {
		start := time.Now()
		ask := !start.Before(next)
		response, err := client.GetSummary(ctx, &fleetv1.GetSummaryRequest{Phases: ask})
		if ask && !errors.Is(ctx.Err(), context.Canceled) {
			next = time.Now().Add(max(phaseInterval, costlyShare*time.Since(start)))
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
