package fleetapi_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
	"github.com/ironherd/ironherd/internal/trust"
)

// ahead is a clock that is a day ahead of the one of whoever asks.
type ahead struct{}

func (ahead) Now() time.Time { return time.Now().Add(24 * time.Hour) }

func (ahead) AfterFunc(d time.Duration, f func()) trust.Timer { return time.AfterFunc(d, f) }

func (ahead) Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// TestWhatLastsEndsByTheClockOfTheDatabase, whatever the clock of whoever asks says.
func TestWhatLastsEndsByTheClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	o := newFixtureBy(t, trust.NewSimulatedClock(ahead{}))
	id := o.machines(1)[0]
	client := o.client(token.Operator)
	off := timestamppb.New(time.Now().Add(time.Hour))
	expect := func(what string, until time.Time) {
		t.Helper()
		if left := until.Sub(ahead{}.Now()); left < 59*time.Minute || left > time.Hour {
			t.Errorf("%s ends in %s, by the clock of the database", what, left)
		}
	}
	pause := &fleetv1.PauseRecoveryRequest{Reason: "the switch", Until: off, Lasts: durationpb.New(time.Hour)}
	response, err := client.PauseRecovery(t.Context(), pause)
	o.must(err)
	expect("the stop, as it is told,", response.GetUntil().AsTime())
	summary, err := o.db.Summary(t.Context())
	o.must(err)
	expect("the stop", *summary.RecoveryHold.Until)
	plan := &fleetv1.CreatePlanRequest{
		Verb: string(fleet.VerbBeginMaintenance), Machines: []string{"host-0"}, Reason: "r", Until: off, Lasts: durationpb.New(time.Hour), ConfirmHarmless: true,
	}
	_, err = client.CreatePlan(t.Context(), plan)
	o.must(err)
	expect("the maintenance", *o.record(id).Maintenance.Until)

	for _, lasts := range []*durationpb.Duration{{}, durationpb.New(-time.Hour), {Seconds: 1 << 60}, {Seconds: 1, Nanos: -1}} {
		pause.Lasts, plan.Lasts = lasts, lasts
		_, err := client.PauseRecovery(t.Context(), pause)
		_, planErr := client.CreatePlan(t.Context(), plan)
		for _, err := range []error{err, planErr} {
			if code(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "lasts must be a positive duration") {
				t.Errorf("lasts %v: %v", lasts, err)
			}
		}
	}
	pause.Until, pause.Lasts = nil, nil
	if response, err := client.PauseRecovery(t.Context(), pause); err != nil || response.GetUntil() != nil {
		t.Errorf("without an end: %v, %v", response, err)
	}
	_, err = client.ResumeRecovery(t.Context(), &fleetv1.ResumeRecoveryRequest{})
	o.must(err)
	pause.Until, plan.Until, plan.Lasts = timestamppb.New(ahead{}.Now().Add(time.Hour)), timestamppb.New(ahead{}.Now().Add(time.Hour)), nil
	_, err = client.PauseRecovery(t.Context(), pause)
	_, planErr := client.CreatePlan(t.Context(), plan)
	for _, err := range []error{err, planErr} {
		if code(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "give a duration (--for) in place of an instant") {
			t.Errorf("until an instant, by clocks that differ: %v", err)
		}
	}
}

// TestAnotherStopIsTold: who pauses or resumes recovery is told of the stop of somebody else.
func TestAnotherStopIsTold(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	client := o.client(token.Operator)
	in := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(d)) }
	pause := &fleetv1.PauseRecoveryRequest{Reason: "the switch", Until: in(time.Hour)}
	if response, err := client.PauseRecovery(t.Context(), pause); err != nil || !response.GetUntil().AsTime().Equal(pause.GetUntil().AsTime()) {
		t.Errorf("until an instant: %v, %v", response, err)
	}
	longer := &fleetv1.PauseRecoveryRequest{Reason: "the power", Until: in(2 * time.Hour)}
	response, err := o.client(token.Admin).PauseRecovery(t.Context(), longer)
	o.must(err)
	if want := "the power; also stopped by token operator until " + fleet.Instant(pause.GetUntil().AsTime()) + ": the switch"; response.GetReason() != want {
		t.Errorf("another's stop: %q, want %q", response.GetReason(), want)
	}
	resumed, err := client.ResumeRecovery(t.Context(), &fleetv1.ResumeRecoveryRequest{})
	o.must(err)
	if want := "token admin until " + fleet.Instant(longer.GetUntil().AsTime()) + ": the power; also stopped by token operator until "; !strings.HasPrefix(resumed.GetEnded(), want) {
		t.Errorf("whose stop is ended: %q, want %q", resumed.GetEnded(), want)
	}
}
