package fleetapi

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestPlansOfOneKeepNobodyWaiting: however many plans for several machines one token makes, few of
// them ask the database at a time. Meanwhile the questions of the same token are answered, and it
// can stop what it has begun: one machine, several, and recovery. Who waits for too long is told to
// ask again.
func TestPlansOfOneKeepNobodyWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := &slowLists{
			Engine:  sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discardLog}),
			release: make(chan struct{}),
		}
		db, err := bmdb.Open(t.Context(), engine, bmdb.Options{Logger: discardLog})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		s := New(db, Options{Logger: discardLog})
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
		flood("greedy", plan(fleet.VerbReboot))
		flood("greedy", plan(fleet.VerbReboot, "a", "b"))
		if n := engine.held(); n != ofOneShare {
			t.Fatalf("%d plans of one token are made at a time, want %d", n, ofOneShare)
		}
		served("a question", func(ctx context.Context) error {
			_, err := s.ListMachines(ctx, &fleetv1.ListMachinesRequest{})
			return err
		})
		for _, verb := range []fleet.Verb{fleet.VerbWithdraw, fleet.VerbCancelInstall, fleet.VerbQuarantine, fleet.VerbBeginMaintenance} {
			served(string(verb)+" of several machines", plan(verb))
		}
		flood("greedy too", plan(fleet.VerbReboot))
		if n := engine.held(); n != questionsAtATime {
			t.Errorf("%d plans of two tokens are made at a time, want %d", n, questionsAtATime)
		}
		served("quarantine of one machine", plan(fleet.VerbQuarantine, "a"))
		served("reboot of one machine", plan(fleet.VerbReboot, "a"))
		served("a pause of recovery", func(ctx context.Context) error {
			_, err := s.PauseRecovery(ctx, &fleetv1.PauseRecoveryRequest{Reason: "the rack moves"})
			return err
		})
		time.Sleep(turnPatience)
		if n := engine.held(); n != questionsAtATime {
			t.Errorf("%d plans are made at a time when the others have given up, want %d", n, questionsAtATime)
		}
		close(engine.release)
		crowd.Wait()
		busy := 0
		for _, err := range failed {
			if e := new(connect.Error); errors.As(err, &e) && e.Code() == connect.CodeResourceExhausted && e.Message() == errBusyPlanning.Message &&
				e.Meta().Get("Retry-After") == "10" {
				busy++
			}
		}
		if want := 3*many - questionsAtATime; busy != want {
			t.Errorf("%d calls are told to come again, want %d", busy, want)
		}
	})
}
