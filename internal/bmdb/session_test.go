package bmdb_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestHoursOfHeartbeats: real SQLite under fake time. Agents heard every thirty seconds for hours
// are never silent, and one that stops is so after ten minutes and not before.
func TestHoursOfHeartbeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		db := openDB(t, filepath.Join(t.TempDir(), "bmdb"))
		defer closed(t, db)
		const n = 30
		agents := bmdbtest.Manage(t, db, n, nil)
		quiet := agents[n-1]
		stops, silentAt := time.Now().Add(time.Hour), time.Time{}
		for end := time.Now().Add(2 * time.Hour); time.Now().Before(end); {
			time.Sleep(30 * time.Second)
			if err := db.ListenerAlive(ctx, 30*time.Second, 30*time.Second); err != nil {
				t.Fatal(err)
			}
			var seen []bmdb.Seen
			for _, a := range agents {
				if a.Machine == quiet.Machine && time.Now().After(stops) {
					continue
				}
				seen = append(seen, bmdb.Seen{Machine: a.Machine, TakeoverGeneration: a.TakeoverGeneration})
			}
			if err := db.FlushSeen(ctx, seen); err != nil {
				t.Fatal(err)
			}
			for {
				looked, err := db.RecomputeAgenda(ctx, 100)
				if err != nil {
					t.Fatal(err)
				}
				if looked < 100 {
					break
				}
			}
			silent, err := db.ListMachines(ctx, bmdb.MachineFilter{States: []fleet.State{fleet.StateSilent}})
			if err != nil {
				t.Fatal(err)
			}
			if len(silent) > 1 || len(silent) == 1 && silent[0].ID != quiet.Machine {
				t.Fatalf("silent: %+v", silent)
			}
			if len(silent) == 1 && silentAt.IsZero() {
				silentAt = time.Now()
			}
		}
		if late := silentAt.Sub(stops); late < 9*time.Minute || late > 12*time.Minute {
			t.Fatalf("found silent %s after its last heartbeat", late)
		}
	})
}

// TestTrustWindowExactly: start of the last successful extension + interval − margin, to the
// instant.
func TestTrustWindowExactly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := openDB(t, filepath.Join(t.TempDir(), "bmdb"))
		defer closed(t, db)
		s, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "a", Lease: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		began := time.Now()
		if err := s.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
		guarded, cancel := s.Guard(t.Context())
		defer cancel()
		<-guarded.Done()
		if got := time.Since(began); got != 8*time.Second {
			t.Fatalf("trusted for %s, want 8s", got)
		}
		if !errors.Is(context.Cause(guarded), fleet.ErrLeaseLost) || s.Trusted() {
			t.Fatalf("cause %v, trusted %t", context.Cause(guarded), s.Trusted())
		}
		live, err := db.Sessions(t.Context(), false)
		if err != nil || len(live) != 1 || !live[0].Deadline.After(time.Now().Add(time.Second)) {
			t.Fatalf("trust must end before the session can: %+v, %v", live, err)
		}
	})
}

// TestRunKeepsASession: for long, and ends it neither when extensions fail for less than the window
// nor later than the window.
func TestRunKeepsASession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := &failing{Engine: open(t, filepath.Join(t.TempDir(), "bmdb"))}
		db, err := bmdb.Open(t.Context(), engine, bmdb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, db)
		s, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "a", Lease: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Run(t.Context()) }()
		time.Sleep(20 * time.Minute)
		engine.broken.Store(true)
		time.Sleep(2 * time.Second)
		engine.broken.Store(false)
		time.Sleep(10 * time.Minute)
		if !s.Trusted() {
			t.Fatal("two seconds without extensions ended the session")
		}
		engine.broken.Store(true)
		began := time.Now()
		if err := <-done; !errors.Is(err, fleet.ErrLeaseLost) {
			t.Fatalf("ended with %v", err)
		}
		if got := time.Since(began); got > 4*time.Second {
			t.Fatalf("lost after %s, want within the window of 4s", got)
		}
	})
}

// trying is an engine whose extensions may fail, or hang, before they are made.
type trying struct {
	bmdb.Engine
	attempt func(ctx context.Context) error
	// extended is when one was made last.
	extended time.Time
}

func (e *trying) Extend(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	if err := e.attempt(ctx); err != nil {
		return err
	}
	e.extended = time.Now()
	return e.Engine.Extend(ctx, fn)
}

// TestAnotherAttemptKeepsASession: an attempt that hangs is given up, and one that failed is
// repeated, while there is time for another.
func TestAnotherAttemptKeepsASession(t *testing.T) {
	t.Parallel()
	const lease = 5 * time.Second
	engine := &trying{}
	once := false
	for name, attempt := range map[string]func(context.Context) error{
		"one hangs": func(ctx context.Context) error {
			if once {
				return nil
			}
			once = true
			<-ctx.Done()
			return ctx.Err()
		},
		"they fail for 0.7 of the lease": func(context.Context) error {
			if time.Since(engine.extended) < lease*7/10 {
				return errBroken
			}
			return nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			engine.Engine, engine.attempt = open(t, filepath.Join(t.TempDir(), "bmdb")), func(context.Context) error { return nil }
			db, err := bmdb.Open(t.Context(), engine, bmdb.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer closed(t, db)
			s, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "a", Lease: lease})
			if err != nil {
				t.Fatal(err)
			}
			engine.attempt = attempt
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			time.Sleep(10 * lease)
			if !s.Trusted() {
				t.Errorf("%s: the session is lost", name)
			}
			stop()
			if err := <-done; err != nil {
				t.Errorf("%s: ended with %v", name, err)
			}
		})
	}
}

// landing is an engine whose transactions may be committed long after they were given up.
type landing struct {
	bmdb.Engine
	armed bool
	land  func(ctx context.Context) error
}

func (l *landing) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	if !l.armed {
		return l.Engine.Update(ctx, fn)
	}
	l.armed, l.land = false, func(ctx context.Context) error { return l.Engine.Update(ctx, fn) }
	return errBroken
}

// TestAClaimThatLandsLate: a claim was given up while its commit hung, and is committed after an
// extension has asked whether it was. The machine is handed back all the same (I2).
func TestAClaimThatLandsLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		engine := &landing{Engine: open(t, filepath.Join(t.TempDir(), "bmdb"))}
		db, err := bmdb.Open(ctx, engine, bmdb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, db)
		if err := bmdbtest.Stock(ctx, db, "p", []fleet.MachineID{fleet.NewMachineID()}, nil); err != nil {
			t.Fatal(err)
		}
		s, err := db.StartSession(ctx, bmdb.SessionOptions{Component: "a", Lease: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		held := func() int {
			live, err := db.Sessions(ctx, false)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, l := range live {
				n += len(l.Held)
			}
			return n
		}
		extend := func() {
			time.Sleep(3 * time.Second)
			if err := s.Extend(ctx); err != nil {
				t.Fatal(err)
			}
		}
		engine.armed = true
		if _, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1}); !errors.Is(err, errBroken) {
			t.Fatalf("claimed: %v", err)
		}
		extend()
		extend()
		if err := engine.land(ctx); err != nil || held() != 1 {
			t.Fatalf("the claim did not land: %v, %d held", err, held())
		}
		extend()
		if n := held(); n != 0 {
			t.Fatalf("%d machines are held by a session that does not work on them", n)
		}
	})
}
