package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/server/fleetapi"
	"github.com/ironherd/ironherd/internal/server/webui/live"
	"github.com/ironherd/ironherd/internal/token"
)

// TestALiveViewEndsWithItsToken: a token that is revoked, or expires, while its view is open ends
// the view. The views of others go on.
func TestALiveViewEndsWithItsToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "tokens")
		texts := map[string]string{}
		for name, life := range map[string]time.Duration{"revoked": time.Hour, "short": time.Minute, "kept": time.Hour} {
			text, _, err := token.Create(path, name, token.Viewer, life)
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = text
		}
		logger := slog.New(slog.DiscardHandler)
		tokens, err := token.Open(path, logger)
		if err != nil {
			t.Fatal(err)
		}
		access := server.NewAccess(tokens, slog.New(slog.DiscardHandler))
		site := access.Identify(server.Guard(fleetapi.Needs(), page(access, fleetv1connect.UnimplementedFleetServiceHandler{}, logger, nil)))
		ended := map[string]chan int{}
		for name, text := range texts {
			ended[name] = make(chan int, 1)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/live/", nil)
			r.SetBasicAuth("anybody", text)
			go func() {
				w := httptest.NewRecorder()
				site.ServeHTTP(w, r)
				ended[name] <- w.Code
			}()
		}
		open := func(name string, want bool) {
			t.Helper()
			synctest.Wait()
			select {
			case status := <-ended[name]:
				if want || status != http.StatusOK {
					t.Errorf("the view of %q ended with %d", name, status)
				}
			default:
				if !want {
					t.Errorf("the view of %q goes on", name)
				}
			}
		}
		time.Sleep(30 * time.Second)
		for name := range texts {
			open(name, true)
		}
		if err := token.Revoke(path, "revoked"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		open("revoked", false)
		open("short", true)
		time.Sleep(30 * time.Second)
		open("short", false)
		open("kept", true)
	})
}

// TestNoTokenHasAllLiveViews: the second token finds room though the first one has taken all.
func TestNoTokenHasAllLiveViews(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "tokens")
		logger := slog.New(slog.DiscardHandler)
		var texts []string
		for _, name := range []string{"greedy", "late"} {
			text, _, err := token.Create(path, name, token.Viewer, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, text)
		}
		tokens, err := token.Open(path, logger)
		if err != nil {
			t.Fatal(err)
		}
		access := server.NewAccess(tokens, slog.New(slog.DiscardHandler))
		site := access.Identify(server.Guard(fleetapi.Needs(), page(access, fleetv1connect.UnimplementedFleetServiceHandler{}, logger, nil)))
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		statuses := make(chan int, live.MaxViews+1)
		watch := func(text string, n int) {
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("/live/machines/%d", n), nil)
			r.SetBasicAuth("anybody", text)
			go func() {
				w := httptest.NewRecorder()
				site.ServeHTTP(w, r)
				statuses <- w.Code
			}()
			synctest.Wait()
		}
		for n := range live.MaxViews {
			watch(texts[0], n)
		}
		watch(texts[1], live.MaxViews)
		if n := len(statuses); n != 1 {
			t.Fatalf("%d streams have ended, want the oldest alone", n)
		}
		if status := <-statuses; status != http.StatusOK {
			t.Errorf("the stream that has ended is answered with %d", status)
		}
	})
}

// askers notes for whom the page asks.
type askers struct {
	fleetv1connect.UnimplementedFleetServiceHandler
	mu     sync.Mutex
	actors []string
}

func (a *askers) note(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	caller := server.CallerFrom(ctx)
	a.actors = append(a.actors, fmt.Sprintf("%s (%s)", caller.Actor, caller.Role))
}

func (a *askers) GetSummary(ctx context.Context, _ *fleetv1.GetSummaryRequest) (*fleetv1.GetSummaryResponse, error) {
	a.note(ctx)
	return &fleetv1.GetSummaryResponse{}, nil
}

func (a *askers) ListProviders(ctx context.Context, _ *fleetv1.ListProvidersRequest) (*fleetv1.ListProvidersResponse, error) {
	a.note(ctx)
	return &fleetv1.ListProvidersResponse{}, nil
}

func (a *askers) ListSessions(ctx context.Context, _ *fleetv1.ListSessionsRequest) (*fleetv1.ListSessionsResponse, error) {
	a.note(ctx)
	return &fleetv1.ListSessionsResponse{}, nil
}

func (a *askers) GetVersion(ctx context.Context, _ *fleetv1.GetVersionRequest) (*fleetv1.GetVersionResponse, error) {
	a.note(ctx)
	return &fleetv1.GetVersionResponse{}, nil
}

func (a *askers) ListDiscrepancies(ctx context.Context, _ *fleetv1.ListDiscrepanciesRequest) (*fleetv1.ListDiscrepanciesResponse, error) {
	a.note(ctx)
	return &fleetv1.ListDiscrepanciesResponse{}, nil
}

func (a *askers) ListMachines(ctx context.Context, _ *fleetv1.ListMachinesRequest) (*fleetv1.ListMachinesResponse, error) {
	a.note(ctx)
	return &fleetv1.ListMachinesResponse{}, nil
}

// TestThePageHasTurnsOfItsOwn: what all viewers see is asked for none of them, and what one looks
// at apart from what they ask elsewhere. Nothing is asked with more than the right to read.
func TestThePageHasTurnsOfItsOwn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	text, _, err := token.Create(path, "ada", token.Admin, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	tokens, err := token.Open(path, logger)
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string][]string{"/": {"the page (viewer)"}, "/machines": {"the page (viewer)", "the page for token ada (viewer)"}} {
		client := new(askers)
		access := server.NewAccess(tokens, logger)
		site := access.Identify(server.Guard(fleetapi.Needs(), page(access, client, logger, nil)))
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
		r.Header.Set("Authorization", "Bearer "+text)
		site.ServeHTTP(httptest.NewRecorder(), r)
		slices.Sort(client.actors)
		if all := slices.Compact(client.actors); !slices.Equal(all, want) {
			t.Errorf("%s is asked for %q, want %q", target, all, want)
		}
	}
}

// TestWhatSeveralWatchIsAskedForNoneOfThem: the view of one goes on for another under the name of
// neither, also when the first one has left, and when one of them, or a third, loads it as a page.
// So it waits for nothing that one of them asks besides.
func TestWhatSeveralWatchIsAskedForNoneOfThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "tokens")
		texts := map[string]string{}
		for _, name := range []string{"ada", "bob"} {
			text, _, err := token.Create(path, name, token.Viewer, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = text
		}
		logger := slog.New(slog.DiscardHandler)
		tokens, err := token.Open(path, logger)
		if err != nil {
			t.Fatal(err)
		}
		// An answer is good for longer than the second between two looks of the feed. So one who comes
		// when it is not good any more, before the next look, is who asks.
		client, access := &lists{takes: 60 * time.Millisecond}, server.NewAccess(tokens, logger)
		site := access.Identify(server.Guard(fleetapi.Needs(), page(access, client, logger, nil)))
		get := func(ctx context.Context, name, path string) {
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, path+"/machines?label=rack", nil)
			r.SetBasicAuth("anybody", texts[name])
			site.ServeHTTP(httptest.NewRecorder(), r)
		}
		watch := func(name string) (leave context.CancelFunc) {
			ctx, leave := context.WithCancel(t.Context())
			go get(ctx, name, "/live")
			synctest.Wait()
			return leave
		}
		load := func(name, want string) {
			t.Helper()
			for len(client.take()) == 0 {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(client.takes + live.CostlyShare*client.takes + 100*time.Millisecond)
			get(t.Context(), name, "")
			if actors := client.take(); !slices.Equal(actors, []string{want}) {
				t.Errorf("when %s loads it as a page it is asked for %q, want %q", name, actors, want)
			}
		}
		expect := func(when, want string) {
			t.Helper()
			client.take()
			time.Sleep(3 * time.Second)
			if actors := slices.Compact(client.take()); !slices.Equal(actors, []string{want}) {
				t.Errorf("%s it is asked for %q, want %q", when, actors, want)
			}
		}
		leaves := watch("ada")
		expect("while one watches", "the page for token ada (viewer)")
		load("ada", "the page for token ada (viewer)")
		load("bob", severalViewers+" (viewer)")
		again := watch("ada")
		expect("while one watches twice", "the page for token ada (viewer)")
		defer watch("bob")()
		expect("while two watch", severalViewers+" (viewer)")
		load("ada", severalViewers+" (viewer)")
		leaves()
		again()
		expect("when the first one has left", severalViewers+" (viewer)")
	})
}

// lists notes for whom lists of machines are asked, and takes its time.
type lists struct {
	askers
	takes  time.Duration
	listed askers
}

func (l *lists) ListMachines(ctx context.Context, _ *fleetv1.ListMachinesRequest) (*fleetv1.ListMachinesResponse, error) {
	l.listed.note(ctx)
	time.Sleep(l.takes)
	return &fleetv1.ListMachinesResponse{}, nil
}

// take returns them, and forgets them.
func (l *lists) take() []string {
	l.listed.mu.Lock()
	defer l.listed.mu.Unlock()
	actors := l.listed.actors
	l.listed.actors = nil
	return actors
}
