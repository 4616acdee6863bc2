package fleetapi

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
)

// TestPlansOfOneKeepNobodyWaiting: however many plans for several machines are made, one of them
// asks the database at a time. Meanwhile questions are answered, and the same token can stop what
// it has begun: one machine, several, and recovery. Others have their turn between its plans. Who
// waits for too long is told to ask again.
func TestPlansOfOneKeepNobodyWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, engine := slowService(t)
		defer s.db.Close()
		plan := func(verb fleet.Verb, machines ...string) func(context.Context) error {
			req := &fleetv1.CreatePlanRequest{Verb: string(verb), Reason: "the rack moves", Machines: machines}
			if len(machines) == 0 {
				req.Labels = []string{"nosuch"}
			}
			return func(ctx context.Context) error {
				_, err := s.CreatePlan(ctx, req)
				return err
			}
		}
		slowly := func(call func(context.Context) error) func(context.Context) error {
			return func(ctx context.Context) error { return call(context.WithValue(ctx, slow{}, true)) }
		}
		const many = 100
		var crowd sync.WaitGroup
		var mu sync.Mutex
		var failed []error
		flood := func(holder string, call func(context.Context) error) {
			for range many {
				crowd.Go(func() {
					err := as(t, holder, slowly(call))
					mu.Lock()
					defer mu.Unlock()
					failed = append(failed, err)
				})
			}
		}
		served := func(what string, call func(context.Context) error) {
			t.Helper()
			// There is no such machine, as somebody finds out who has looked for it.
			if err := as(t, "greedy", call); err != nil && connect.CodeOf(err) != connect.CodeNotFound {
				t.Errorf("%s: %v", what, err)
			}
		}
		list := func(ctx context.Context) error {
			_, err := s.ListMachines(ctx, &fleetv1.ListMachinesRequest{})
			return err
		}
		held := func(what string, want int) {
			t.Helper()
			if n := engine.held(); n != want {
				t.Errorf("%s: %d reads are under way, want %d", what, n, want)
			}
		}
		stop := func() {
			t.Helper()
			for _, verb := range []fleet.Verb{fleet.VerbWithdraw, fleet.VerbCancelInstall, fleet.VerbQuarantine, fleet.VerbBeginMaintenance} {
				served(string(verb)+" of several machines", plan(verb))
			}
		}
		flood("greedy", plan(fleet.VerbReboot))
		held("plans of one token", 1)
		flood("greedy", plan(fleet.VerbReboot, "a", "b"))
		held("plans of one token for machines that it names, too", 1)
		stop()
		flood("greedy too", plan(fleet.VerbReboot))
		held("plans of two tokens", 1)
		stop()
		served("a question", list)
		made := false
		crowd.Go(func() {
			_ = as(t, "other", plan(fleet.VerbReboot))
			made = true
		})
		synctest.Wait()
		for range 2 { // one of each was before it, with one read
			engine.release <- struct{}{}
			synctest.Wait()
		}
		if !made {
			t.Error("the plan of another token is not made when one of each before it was")
		}
		flood("greedy", list)
		flood("greedy too", list)
		held("questions of two tokens, too", 1+questionsAtATime)
		stop()
		flood("greedy", plan(fleet.VerbWithdraw))
		flood("greedy too", plan(fleet.VerbQuarantine))
		crowd.Go(func() { _ = slowly(list)(server.AsReader(t.Context(), server.PageActor)) })
		held("stops, and the page, too", 1+questionsAtATime+1+1)
		served("quarantine of one machine", plan(fleet.VerbQuarantine, "a"))
		served("reboot of one machine", plan(fleet.VerbReboot, "a"))
		served("a pause of recovery", func(ctx context.Context) error {
			_, err := s.PauseRecovery(ctx, &fleetv1.PauseRecoveryRequest{Reason: "the rack moves"})
			return err
		})
		time.Sleep(turnPatience)
		held("when the others have given up", 1+questionsAtATime+1+1)
		close(engine.release)
		crowd.Wait()
		busy := 0
		for _, err := range failed {
			if e := new(connect.Error); errors.As(err, &e) && e.Code() == connect.CodeResourceExhausted && strings.Contains(e.Message(), "other plans") &&
				strings.Contains(e.Message(), "in vain: no plan was made; ask again") && e.Meta().Get("Retry-After") == "10" {
				busy++
			}
		}
		if want := 5*many - 2 - 1 - 1; busy != want { // two were released, and two were held
			t.Errorf("%d plans are told to come again, want %d", busy, want)
		}
	})
}

// TestASenselessPlanIsToldSoAtOnce, whoever else makes plans.
func TestASenselessPlanIsToldSoAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, engine := slowService(t)
		defer s.db.Close()
		var other sync.WaitGroup
		for _, verb := range []fleet.Verb{fleet.VerbReboot, fleet.VerbWithdraw} {
			other.Go(func() {
				_ = as(t, "other", func(ctx context.Context) error {
					_, err := s.CreatePlan(context.WithValue(ctx, slow{}, true), &fleetv1.CreatePlanRequest{Verb: string(verb), Reason: "r", Labels: []string{"a"}})
					return err
				})
			})
		}
		if n := engine.held(); n != 2 {
			t.Fatalf("%d plans are under way, want one and a stop", n)
		}
		some := []string{"a", "b"}
		for what, req := range map[string]*fleetv1.CreatePlanRequest{
			"no verb":                       {Verb: "dance", Reason: "r", Machines: some},
			"no reason":                     {Verb: "reboot", Machines: some},
			"too many machines":             {Verb: "withdraw", Reason: "r", Machines: make([]string, bmdb.MaxPlanned+1)},
			"machines and a selector":       {Verb: "withdraw", Reason: "r", Machines: some, Labels: some},
			"a selector that is none":       {Verb: "reboot", Reason: "r", Labels: []string{"="}},
			"behind what is no machine":     {Verb: "reboot", Reason: "r", Labels: some, After: "a"},
			"nothing to reinstall":          {Verb: "reinstall", Reason: "r", Machines: some},
			"an end of what ends by itself": {Verb: "reboot", Reason: "r", Machines: some, Lasts: durationpb.New(time.Hour)},
		} {
			if err := as(t, "ada", func(ctx context.Context) error {
				_, err := s.CreatePlan(ctx, req)
				return err
			}); connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Errorf("%s: %v", what, err)
			}
		}
		close(engine.release)
		other.Wait()
	})
}
