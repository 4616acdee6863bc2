package operations_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// answersAtOnce is an API that takes 100 ms for each call, and refuses none.
type answersAtOnce struct{}

func (answersAtOnce) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(100 * time.Millisecond)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, nil
}

// slow has the database take 2 ms for each question, in which time passes for whoever asks again
// and again.
type slow struct{ *bmdb.DB }

func (s slow) ReserveTurns(ctx context.Context, r fleet.TurnRequest) (fleet.TurnGrant, error) {
	time.Sleep(2 * time.Millisecond)
	return s.DB.ReserveTurns(ctx, r)
}

// paced is a provider whose calls wait for their turn, as those of Equinix Metal do by default.
type paced struct {
	*shepherdtest.FakeProvider
	transport *provider.Transport
}

func newPaced(db *bmdb.DB, fake *shepherdtest.FakeProvider) paced {
	limits := provider.Limits{Spacing: 2 * time.Second, InFlight: 1, Limit: func() string { return "account" }}
	options := provider.Options{Turns: slow{db}, HTTP: answersAtOnce{}}
	return paced{fake, provider.NewTransport(limits, func(*http.Request) string { return "call" }, options)}
}

func (p paced) wait(ctx context.Context, method string) error {
	request, err := http.NewRequestWithContext(ctx, method, "https://metal.example/", nil)
	if err != nil {
		return err
	}
	response, err := p.transport.RoundTrip(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func (p paced) Get(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	if err := p.wait(ctx, http.MethodGet); err != nil {
		return provider.Entry{}, err
	}
	return p.FakeProvider.Get(ctx, id)
}

func (p paced) Reboot(ctx context.Context, id fleet.ProviderID) error {
	if err := p.wait(ctx, http.MethodPost); err != nil {
		return err
	}
	return p.FakeProvider.Reboot(ctx, id)
}

// TestManyOperationsWaitForTheirTurn: what only waits in our own queue is no provider that does not
// answer, and ends no operation.
func TestManyOperationsWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const machines = 60 // which take four minutes, at two calls each
		db := shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})
		herd := shepherdtest.NewHerd(t, db, machines)
		config := operations.DefaultConfig()
		config.GiveUpAfter = time.Minute // the default is an hour, which 900 machines take
		var handlers []shepherd.Handler
		for range 2 { // control planes
			sources := []operations.Source{{Name: herd.Name, Provider: newPaced(db, herd.Fake), Config: operations.ProviderConfig{Penalty: time.Hour}}}
			handler, err := operations.New(db, sources, config, operations.Options{})
			check(t, err)
			handlers = append(handlers, handler)
		}
		all := herd.Machines()
		for _, id := range all {
			_, err := bmdbtest.Operate(t.Context(), db, "test", id, fleet.OperationReboot, "test")
			check(t, err)
		}
		// The time of each begins with its first call, which fails; the next one waits behind others.
		var refused sync.Map
		herd.Fake.Hook = func(at shepherdtest.Point, capacity fleet.CapacityID) error {
			if _, before := refused.LoadOrStore(capacity, true); at == shepherdtest.Pulling && !before {
				return fleet.Errorf(fleet.KindThrottled, "slowly")
			}
			return nil
		}
		stop := herd.Start(handlers...)
		time.Sleep(12 * time.Minute)
		failed, first, unanswered := 0, "", 0
		for _, id := range all {
			if how := ended(t, herd, id); !strings.Contains(how, "done") {
				if failed++; first == "" {
					first = how
				}
			}
			rows, err := db.History(t.Context(), id, 1000)
			check(t, err)
			for _, row := range rows {
				if strings.Contains(row.Detail, "did not answer within") {
					unanswered++
				}
			}
		}
		if failed > 0 || unanswered > 0 {
			t.Errorf("%d of %d operations failed, such as %q; history says %d times that the provider did not answer", failed, machines, first, unanswered)
		}
		stop()
	})
}

// TestALateFirstFailureEndsNothing: the time that an operation has begins when it is first tried,
// which may be long after the request, and not with the request.
func TestALateFirstFailureEndsNothing(t *testing.T) {
	t.Parallel()
	for want, away := range map[string]time.Duration{"operation done: ": 40 * time.Minute, "operation failed: ": 90 * time.Minute} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := bench(t, 1, operations.Options{}, nil, nil)
				id := herd.Machines()[0]
				_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationReboot, "it hangs")
				check(t, err)
				time.Sleep(3 * time.Hour) // no control plane carries operations out
				back := time.Now().Add(away)
				herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
					if at == shepherdtest.Pulling && time.Now().Before(back) {
						return fleet.Errorf(fleet.KindThrottled, "slowly")
					}
					return nil
				}
				defer herd.Start(handler)()
				time.Sleep(2 * time.Hour)
				if got := ended(t, herd, id); !strings.HasPrefix(got, want) {
					t.Errorf("%s, want %s", got, want)
				}
			})
		})
	}
}

// TestAQuestionThatWaitedEndsNoRelease: a control plane stops in the middle of a release, and when
// it is back for longer than a release is tried, its first question has no turn in time.
func TestAQuestionThatWaitedEndsNoRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 1, operations.Options{}, nil, nil)
		id := herd.Machines()[0]
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationRelease, "end of lease")
		check(t, err)
		task := claim(t, herd, handler)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at != shepherdtest.Pulling {
				return nil
			}
			stop()
			return fleet.ContextError(ctx)
		}
		task.Act(ctx)
		check(t, task.Commit(ctx))
		r := herd.Record(id)
		if _, failed := r.Backoffs[fleet.ProcessOperation]; failed || r.OperationAttempt == nil {
			t.Fatalf("attempt %+v, backoffs %v", r.OperationAttempt, r.Backoffs)
		}
		time.Sleep(2 * time.Hour)
		asked := false
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Asking && !asked {
				asked = true
				return provider.Queued(fleet.Errorf(fleet.KindTimeout, "no turn in time"))
			}
			return nil
		}
		defer herd.Start(handler)()
		time.Sleep(10 * time.Minute)
		if got := ended(t, herd, id); !asked || !strings.HasPrefix(got, "operation done: ") {
			t.Errorf("asked %t, %s", asked, got)
		}
	})
}
