package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestAnOutageThatDoesNotEnd: a command that waits gives up when nothing is answered for ten
// minutes, and an answer in between begins them anew.
func TestAnOutageThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told bytes.Buffer
		a := &app{env: Env{Stderr: &told}}
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		lost := fleet.Errorf(fleet.KindTemporary, "nobody answers")
		lasted := func() time.Duration {
			began := time.Now()
			for a.askAgain(t.Context(), ticker, lost) {
				if time.Since(began) > time.Hour {
					t.Fatal("it never gives up")
				}
			}
			return time.Since(began)
		}
		for range 2 {
			if d := lasted(); d < outagePatience || d > outagePatience+2*time.Second {
				t.Errorf("it gave up after %s", d)
			}
			if d := lasted(); d != 0 {
				t.Errorf("the next machine was waited for another %s", d)
			}
			a.askAgain(t.Context(), ticker, nil)
		}
		if n := strings.Count(told.String(), "nobody answers"); n != 2 {
			t.Errorf("told %d times: %s", n, told.String())
		}
	})
}

// mute is a control plane that takes questions and gives no answer, until it was asked so often.
type mute struct {
	fleetClient
	left int
}

// answers waits for the end of the question, as a client does.
func (m *mute) answers(ctx context.Context) error {
	if m.left--; m.left < 0 {
		return nil
	}
	<-ctx.Done()
	return explainUnreachable(ctx, "unix:///s.sock", connect.NewError(connect.CodeDeadlineExceeded, ctx.Err()))
}

func (m *mute) GetMachine(ctx context.Context, _ *fleetv1.GetMachineRequest) (*fleetv1.GetMachineResponse, error) {
	if err := m.answers(ctx); err != nil {
		return nil, err
	}
	return &fleetv1.GetMachineResponse{Machine: &fleetv1.Machine{State: "installed"}, InstalledGeneration: 2}, nil
}

func (m *mute) CreatePlan(ctx context.Context, _ *fleetv1.CreatePlanRequest) (*fleetv1.CreatePlanResponse, error) {
	if err := m.answers(ctx); err != nil {
		return nil, err
	}
	return &fleetv1.CreatePlanResponse{Plan: &fleetv1.Plan{Id: "p", Machines: []*fleetv1.PlannedMachine{{Name: "a"}}}}, nil
}

func (m *mute) ConfirmPlan(ctx context.Context, _ *fleetv1.ConfirmPlanRequest) (*fleetv1.ConfirmPlanResponse, error) {
	return nil, m.answers(ctx)
}

func (m *mute) InstallMachine(ctx context.Context, _ *fleetv1.InstallMachineRequest) (*fleetv1.InstallMachineResponse, error) {
	return nil, m.answers(ctx)
}

// TestAQuestionWithoutAnAnswerIsAskedAgain: a connection over which nothing comes any more does not
// end a wait, nor keep it for good, and is told. --timeout would not help.
func TestAQuestionWithoutAnAnswerIsAskedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told bytes.Buffer
		a := &app{env: Env{Stderr: &told}}
		began := time.Now()
		err := a.waitInstalled(t.Context(), &mute{left: 3}, "id", "a", 2)
		if took := time.Since(began); err != nil || took < 3*defaultTimeout || took > 4*defaultTimeout {
			t.Errorf("it took %s: %v", took, err)
		}
		if want := "What was asked for goes on, and so does waiting: the control plane at unix:///s.sock did not answer in time\na: installed\n"; told.String() != want {
			t.Errorf("told %q, want %q", told.String(), want)
		}
		began = time.Now()
		err = a.waitInstalled(t.Context(), &mute{left: 1000}, "id", "a", 2)
		if took := time.Since(began); kindOf(err) != fleet.KindTimeout || strings.Contains(err.Error(), "--timeout") || took > outagePatience+2*defaultTimeout {
			t.Errorf("it took %s: %v", took, err)
		}
	})
}

// TestAskingIsBoundedWithWait: a plan or an install that is asked for, and of which nothing is
// heard, ends a command that waits without --timeout.
func TestAskingIsBoundedWithWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &app{env: Env{Stderr: &bytes.Buffer{}, Stdout: &bytes.Buffer{}}}
		var timeout time.Duration
		output := formatTable
		f := &verbFlags{wait: true, timeout: &timeout, output: &output}
		for what, ask := range map[string]func() error{
			"a plan": func() error {
				return a.carryOutOne(t.Context(), &mute{left: 1}, &fleetv1.CreatePlanRequest{}, f, true)
			},
			"an install": func() error {
				return a.install(t.Context(), &mute{left: 1}, []string{"a"}, &fleetv1.InstallMachineRequest{}, f, true)
			},
		} {
			began := time.Now()
			if err := ask(); kindOf(err) != fleet.KindTimeout || time.Since(began) != confirmTimeout {
				t.Errorf("%s: it took %s: %v", what, time.Since(began), err)
			}
		}
	})
}
