package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
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
		err := a.await(t.Context(), &mute{left: 3}, []*awaited{a.comesUp(t.Context(), "id", "a", 2, true)}, 1)
		if took := time.Since(began); err != nil || took < 3*defaultTimeout || took > 4*defaultTimeout {
			t.Errorf("it took %s: %v", took, err)
		}
		if want := "What was asked for goes on, and so does waiting: the control plane at unix:///s.sock did not answer in time\na: installed\n"; told.String() != want {
			t.Errorf("told %q, want %q", told.String(), want)
		}
		began = time.Now()
		err = a.await(t.Context(), &mute{left: 1000}, []*awaited{a.comesUp(t.Context(), "id", "a", 2, true)}, 1)
		if took := time.Since(began); kindOf(err) != fleet.KindTimeout || strings.Contains(err.Error(), "--timeout") || took > outagePatience+2*defaultTimeout {
			t.Errorf("it took %s: %v", took, err)
		}
	})
}

// TestAnOutageEndsTheWaitForAll: the machines that are left are not asked for one by one, and not
// all of a large plan are named.
func TestAnOutageEndsTheWaitForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told bytes.Buffer
		a := &app{env: Env{Stderr: &told}}
		var pending []*awaited
		for n := range 1000 {
			name := fmt.Sprintf("m%d", n)
			pending = append(pending, a.comesUp(t.Context(), name, name, 2, false))
		}
		began := time.Now()
		err := a.await(t.Context(), &mute{left: 1 << 20}, pending, 1000)
		if took := time.Since(began); kindOf(err) != fleet.KindTimeout || took > outagePatience+2*defaultTimeout {
			t.Errorf("it took %s: %v", took, err)
		}
		if want := "Waiting also ends for 999 other machines: m1, m2, "; !strings.Contains(told.String(), want) ||
			!strings.HasSuffix(told.String(), ", m20, and 979 more\n") {
			t.Errorf("told %q", told.String())
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

// lasting is a control plane whose machines are installed after so long; those of a negative time
// fail after that.
type lasting struct {
	fleetClient
	began time.Time
	after map[string]time.Duration
	asked map[time.Time]int
}

func (l *lasting) GetMachine(_ context.Context, r *fleetv1.GetMachineRequest) (*fleetv1.GetMachineResponse, error) {
	l.asked[time.Now()]++
	m := &fleetv1.Machine{State: "installing"}
	a := &fleetv1.GetMachineResponse{Machine: m, InstallProgress: &agentv1.InstallProgress{BytesDone: int64(time.Since(l.began))}}
	switch after, since := l.after[r.GetMachine()], time.Since(l.began); {
	case after < 0 && since > -after:
		m.State, m.Reason = "failed", "its disk is broken"
	case after > 0 && since > after:
		m.State, a.InstalledGeneration = "installed", 1
	}
	return a, nil
}

// stamped writes before each line how many minutes have passed.
type stamped struct {
	strings.Builder
	began time.Time
}

func (w *stamped) Write(p []byte) (int, error) {
	fmt.Fprintf(&w.Builder, "%.0f ", time.Since(w.began).Minutes())
	return w.Builder.Write(p)
}

// TestEachEndIsToldWhenItComes: who waits for several machines is told of each when it is done or
// has failed, whatever the first one does. Only perTurn of them are asked for at once.
func TestEachEndIsToldWhenItComes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		told := &stamped{began: time.Now()}
		a := &app{env: Env{Stderr: told}}
		l := &lasting{began: time.Now(), after: map[string]time.Duration{"a": 3 * time.Hour, "b": -10 * time.Minute, "c": time.Hour}, asked: map[time.Time]int{}}
		var pending []*awaited
		for _, name := range []string{"a", "b", "c"} {
			pending = append(pending, a.comesUp(t.Context(), name, name, 1, false))
		}
		if err := a.await(t.Context(), l, pending, 3); !errors.Is(err, partly{errSilent}) {
			t.Errorf("it ends with %v", err)
		}
		want := "0 a: installing\n0 b: installing\n0 c: installing\n10 b: failed: its disk is broken\n" +
			"10 b: machine b cannot be installed: it is failed (its disk is broken)\n60 c: installed\n180 a: installed\n"
		if told.String() != want {
			t.Errorf("told\n%swant\n%s", told.String(), want)
		}
		const many = 3*perTurn + 1
		pending = nil
		for n := range many {
			l.after[strconv.Itoa(n)] = time.Nanosecond
			pending = append(pending, a.comesUp(t.Context(), strconv.Itoa(n), strconv.Itoa(n), 1, false))
		}
		clear(l.asked)
		if err := a.await(t.Context(), l, pending, many); err != nil || len(l.asked) != 4 {
			t.Errorf("%d turns, %v", len(l.asked), err)
		}
		for at, n := range l.asked {
			if n > perTurn {
				t.Errorf("%d were asked for at %s", n, at)
			}
		}
	})
}

// TestThoseLeftAreNamed: where the time to wait ends, the machines that are left are named.
func TestThoseLeftAreNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told bytes.Buffer
		a := &app{env: Env{Stderr: &told}}
		l := &lasting{began: time.Now(), after: map[string]time.Duration{"b": time.Minute}, asked: map[time.Time]int{}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var pending []*awaited
		for _, name := range []string{"a", "b", "c"} {
			pending = append(pending, a.comesUp(ctx, name, name, 1, false))
		}
		err := a.await(ctx, l, pending, 3)
		if kindOf(err) != fleet.KindTimeout || !strings.Contains(err.Error(), "machine a was not installed in time; it is installing. The install goes on") {
			t.Errorf("it ends with %v", err)
		}
		if want := "b: installed\nWaiting also ends for 1 other machine: c\n"; !strings.HasSuffix(told.String(), want) {
			t.Errorf("told %q, want %q", told.String(), want)
		}
	})
}
