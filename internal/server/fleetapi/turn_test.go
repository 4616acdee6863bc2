package fleetapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
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
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/token"
)

// slow marks the calls whose reads take long.
type slow struct{}

// slowLists is an engine that keeps the transactions of those reads open, until they are released.
type slowLists struct {
	bmdb.Engine
	release chan struct{}

	mu   sync.Mutex
	kept int
}

func (e *slowLists) View(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	return e.Engine.View(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		if ctx.Value(slow{}) != nil {
			e.count(1)
			defer e.count(-1)
			select {
			case <-e.release:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return fn(ctx, tx)
	})
}

func (e *slowLists) count(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept += n
}

// held is how many are under way, once nothing moves any more.
func (e *slowLists) held() int {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.kept
}

// slowService returns a service over such an engine. Its caller closes the database.
func slowService(t *testing.T) (*Service, *slowLists) {
	t.Helper()
	engine := &slowLists{
		Engine:  sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discardLog}),
		release: make(chan struct{}),
	}
	db, err := bmdb.Open(t.Context(), engine, bmdb.Options{Logger: discardLog})
	if err != nil {
		t.Fatal(err)
	}
	return New(db, Options{Logger: discardLog}), engine
}

// anyToken takes the text of a token for its name.
type anyToken struct{}

func (anyToken) Find(text string) (token.Token, bool, error) {
	return token.Token{Name: text, Role: token.Operator, Expires: time.Now().Add(time.Hour)}, true, nil
}

// as calls for the holder of a token.
func as(t *testing.T, holder string, call func(ctx context.Context) error) (err error) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
	r.Header.Set("Authorization", "Bearer "+holder)
	server.NewAccess(anyToken{}, discardLog).Identify(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		err = call(r.Context())
	})).ServeHTTP(httptest.NewRecorder(), r)
	return err
}

// TestListsOfOneKeepNobodyWaiting: however many calls one token makes, few of them ask the database
// at a time. Other callers, agents, and what the same token changes, come to their turn meanwhile.
// Who waits for too long is told to call again.
func TestListsOfOneKeepNobodyWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, engine := slowService(t)
		defer s.db.Close()
		list := func(ctx context.Context) error {
			_, err := s.ListMachines(ctx, &fleetv1.ListMachinesRequest{Labels: []string{"nosuch"}})
			return err
		}
		slowly := func(ctx context.Context) error { return list(context.WithValue(ctx, slow{}, true)) }
		const many = 400
		var failed sync.Map
		var crowd sync.WaitGroup
		for i := range many {
			crowd.Go(func() { failed.Store(i, as(t, "greedy", slowly)) })
		}
		if n := engine.held(); n != ofOneActor {
			t.Fatalf("%d lists of one token are answered at a time, want %d", n, ofOneActor)
		}
		if err := as(t, "other", list); err != nil {
			t.Errorf("another token: %v", err)
		}
		if _, err := s.db.Agent(t.Context(), fleet.NewMachineID()); fleet.KindOf(err) != fleet.KindNotFound {
			t.Errorf("an agent: %v", err)
		}
		if err := as(t, "greedy", func(ctx context.Context) error {
			_, err := s.PauseRecovery(ctx, &fleetv1.PauseRecoveryRequest{Reason: "the rack moves"})
			return err
		}); err != nil {
			t.Errorf("a change by the same token: %v", err)
		}
		if err := as(t, "greedy", func(ctx context.Context) error {
			_, err := s.GetVersion(ctx, &fleetv1.GetVersionRequest{})
			return err
		}); err != nil {
			t.Errorf("a question that is not for the database: %v", err)
		}
		for range many {
			crowd.Go(func() { _ = as(t, "greedy too", slowly) })
		}
		if n := engine.held(); n != questionsAtATime {
			t.Errorf("%d lists of two tokens are answered at a time, want %d", n, questionsAtATime)
		}
		if err := list(server.AsReader(t.Context(), server.PageActor)); err != nil {
			t.Errorf("the page: %v", err)
		}
		answered := false
		crowd.Go(func() {
			if err := as(t, "other", list); err != nil {
				t.Errorf("another token: %v", err)
			}
			answered = true
		})
		synctest.Wait()
		for range 2 { // one was before it
			engine.release <- struct{}{}
			synctest.Wait()
		}
		if !answered {
			t.Error("another token has no turn when those before it have had theirs")
		}
		time.Sleep(turnPatience)
		if n := engine.held(); n != questionsAtATime {
			t.Errorf("%d lists are answered at a time when the others have given up, want %d", n, questionsAtATime)
		}
		close(engine.release)
		crowd.Wait()
		busy := 0
		failed.Range(func(_, err any) bool {
			if e, ok := err.(*connect.Error); ok && e.Code() == connect.CodeResourceExhausted && strings.Contains(e.Message(), "other questions") && e.Meta().Get("Retry-After") == "10" {
				busy++
			}
			return true
		})
		if busy < many-questionsAtATime-2 {
			t.Errorf("%d of %d calls are told to come again", busy, many)
		}
	})
}
