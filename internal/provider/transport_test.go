package provider

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// stubServer answers each request by a function of its number, counted from 1, and remembers when
// each came.
type stubServer struct {
	answer func(number int, request *http.Request) (*http.Response, error)

	mu      sync.Mutex
	times   []time.Time
	bodies  []string
	under   int
	highest int
}

func (s *stubServer) RoundTrip(request *http.Request) (*http.Response, error) {
	var body []byte
	if request.Body != nil {
		body, _ = io.ReadAll(request.Body)
	}
	s.mu.Lock()
	s.times = append(s.times, time.Now())
	s.bodies = append(s.bodies, string(body))
	number := len(s.times)
	s.under++
	s.highest = max(s.highest, s.under)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.under--
		s.mu.Unlock()
	}()
	return s.answer(number, request)
}

func (s *stubServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.times)
}

func reply(status int, body string, header ...string) *http.Response {
	response := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
	for i := 0; i+1 < len(header); i += 2 {
		response.Header.Set(header[i], header[i+1])
	}
	return response
}

func always(status int, header ...string) *stubServer {
	return &stubServer{answer: func(int, *http.Request) (*http.Response, error) { return reply(status, "{}", header...), nil }}
}

// failing answers with the given statuses first (0: the connection breaks), then with 200.
func failing(statuses ...int) *stubServer {
	return &stubServer{answer: func(number int, _ *http.Request) (*http.Response, error) {
		if number > len(statuses) {
			return reply(http.StatusOK, "fine"), nil
		}
		if statuses[number-1] == 0 {
			return nil, io.ErrUnexpectedEOF
		}
		return reply(statuses[number-1], "{}"), nil
	}}
}

func newTestTransport(server *stubServer, limits Limits, observer Observer) *Transport {
	return NewTransport(limits, func(r *http.Request) string { return r.Method + " thing" }, Options{HTTP: server, Observer: observer})
}

// answered is an answer that was read.
type answered struct {
	StatusCode int
	Body       string
}

func call(ctx context.Context, t *testing.T, transport *Transport, method, body string) (*answered, error) {
	t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://provider.test/thing?secret=1", reader)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(request)
	if response == nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	text, readErr := io.ReadAll(response.Body)
	return &answered{response.StatusCode, string(text)}, errors.Join(err, readErr)
}

func TestRetriesTransientFailures(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, 408, 425, 429, 500, 502, 503, 504} {
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			synctest.Test(t, func(t *testing.T) {
				server := failing(status, status)
				response, err := call(t.Context(), t, newTestTransport(server, Limits{}, nil), method, "payload")
				if err != nil || response.StatusCode != http.StatusOK {
					t.Fatalf("%s after two times %d: %v, %v", method, status, response, err)
				}
				for i, body := range server.bodies {
					if body != "payload" {
						t.Errorf("%s: attempt %d was sent with the body %q", method, i+1, body)
					}
				}
				if server.count() != 3 {
					t.Errorf("%s after two times %d: %d requests", method, status, server.count())
				}
			})
		}
	}
}

func TestNeverRepeatsAPost(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, 429, 500, 503, 504} {
		synctest.Test(t, func(t *testing.T) {
			server := failing(status)
			response, err := call(t.Context(), t, newTestTransport(server, Limits{}, nil), http.MethodPost, "create")
			if server.count() != 1 {
				t.Fatalf("a POST that failed with %d was sent %d times", status, server.count())
			}
			if status == 0 {
				if response != nil || fleet.KindOf(err) != fleet.KindTemporary || !MayHaveCreated(err) {
					t.Errorf("a broken connection gives %v, %v", response, err)
				}
				return
			}
			if err != nil || response.StatusCode != status {
				t.Errorf("the answer %d is given as %v, %v", status, response, err)
			}
		})
	}
}

func TestDoesNotRepeatWhatIsNotTransient(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 301, 400, 401, 403, 404, 409, 422, 501} {
		synctest.Test(t, func(t *testing.T) {
			server := always(status)
			response, err := call(t.Context(), t, newTestTransport(server, Limits{}, nil), http.MethodGet, "")
			if err != nil || response.StatusCode != status || server.count() != 1 {
				t.Errorf("status %d: %v, %v, %d requests", status, response, err, server.count())
			}
		})
	}
}

func TestOutOfRetriesIsADeadlineError(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status int
		kind   fleet.Kind
	}{{500, fleet.KindTimeout}, {429, fleet.KindThrottled}, {0, fleet.KindTimeout}} {
		synctest.Test(t, func(t *testing.T) {
			server := failing(test.status, test.status, test.status, test.status)
			response, err := call(t.Context(), t, newTestTransport(server, Limits{Attempts: 3}, nil), http.MethodGet, "")
			if response != nil || !errors.Is(err, os.ErrDeadlineExceeded) || fleet.KindOf(err) != test.kind {
				t.Errorf("after three times %d: %v, %v (kind %s)", test.status, response, err, fleet.KindOf(err))
			}
			if server.count() != 3 {
				t.Errorf("%d requests were sent with 3 attempts", server.count())
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows the URL: %v", err)
			}
			if !strings.Contains(err.Error(), "given up after 3 attempts: ") {
				t.Errorf("the error does not say how often it was tried: %v", err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		_, err := call(t.Context(), t, newTestTransport(failing(500), Limits{Attempts: 1}, nil), http.MethodGet, "")
		if err == nil || !strings.Contains(err.Error(), "given up after one attempt: ") {
			t.Errorf("of one attempt: %v", err)
		}
	})
}

func TestPacesAllCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := always(http.StatusOK)
		transport := newTestTransport(server, Limits{Spacing: 2 * time.Second, InFlight: 4}, nil)
		var callers sync.WaitGroup
		for range 10 {
			callers.Go(func() {
				if _, err := call(t.Context(), t, transport, http.MethodGet, ""); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		for i := 1; i < len(server.times); i++ {
			if gap := server.times[i].Sub(server.times[i-1]); gap < 2*time.Second {
				t.Errorf("request %d came %s after the one before", i+1, gap)
			}
		}
	})
}

func TestBoundsCallsInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &stubServer{answer: func(_ int, request *http.Request) (*http.Response, error) {
			return reply(http.StatusOK, ""), pause(request.Context(), time.Second)
		}}
		transport := newTestTransport(server, Limits{InFlight: 3}, nil)
		var callers sync.WaitGroup
		for range 12 {
			callers.Go(func() {
				if _, err := call(t.Context(), t, transport, http.MethodGet, ""); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if server.highest != 3 {
			t.Errorf("%d requests were in flight at once, with a limit of 3", server.highest)
		}
	})
}

func TestHonoursRetryAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &stubServer{answer: func(number int, _ *http.Request) (*http.Response, error) {
			if number == 1 {
				return reply(http.StatusTooManyRequests, "", "Retry-After", "20"), nil
			}
			return reply(http.StatusOK, ""), nil
		}}
		transport := newTestTransport(server, Limits{InFlight: 2}, nil)
		var callers sync.WaitGroup
		for _, delay := range []time.Duration{0, time.Second} {
			callers.Go(func() {
				_ = pause(t.Context(), delay) // the second caller comes while the first waits
				if _, err := call(t.Context(), t, transport, http.MethodGet, ""); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		for i, at := range server.times[1:] {
			if gap := at.Sub(server.times[0]); gap < 20*time.Second {
				t.Errorf("request %d came %s after the provider asked for 20 s", i+2, gap)
			}
		}
	})
}

func TestDoesNotWaitLongerThanItsPatienceOrDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := always(http.StatusTooManyRequests, "Retry-After", "600")
		transport := newTestTransport(server, Limits{}, nil)
		start := time.Now()
		for range 3 {
			_, err := call(t.Context(), t, transport, http.MethodGet, "")
			if fleet.KindOf(err) != fleet.KindThrottled || fleet.RetryAfter(err) != 10*time.Minute {
				t.Errorf("%v, kind %s, retry after %s", err, fleet.KindOf(err), fleet.RetryAfter(err))
			}
		}
		if took := time.Since(start); took > 0 || server.count() != 1 {
			t.Errorf("three calls took %s and %d requests", took, server.count())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		transport := newTestTransport(always(http.StatusOK), Limits{Spacing: 10 * time.Second}, nil)
		start := time.Now()
		_, _ = call(ctx, t, transport, http.MethodGet, "")
		_, err := call(ctx, t, transport, http.MethodGet, "")
		if fleet.KindOf(err) != fleet.KindTimeout || time.Since(start) > 0 {
			t.Errorf("a turn after the deadline gives %v after %s", err, time.Since(start))
		}
	})
}

// An outage: every call fails. The provider gets one request for each call, plus what the budget
// has to begin with and what refills.
func TestOutageIsNotAmplified(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := always(http.StatusServiceUnavailable)
		transport := newTestTransport(server, Limits{Backoff: time.Millisecond, InFlight: 10}, nil)
		start := time.Now()
		const calls = 500
		for range calls {
			if _, err := call(t.Context(), t, transport, http.MethodGet, ""); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
		}
		allowed := calls + budgetFloor + int(time.Since(start)/budgetRefill) + 1
		if server.count() > allowed {
			t.Errorf("%d calls became %d requests, %d are allowed", calls, server.count(), allowed)
		}
		if server.count() < calls+budgetFloor {
			t.Errorf("%d calls became only %d requests: the budget is not used", calls, server.count())
		}
	})
}

// Where a few calls fail, each of them is repeated: those that succeed have earned it.
func TestAFewFailuresAreAllRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &stubServer{}
		server.answer = func(number int, _ *http.Request) (*http.Response, error) {
			if number%12 == 0 {
				return reply(http.StatusBadGateway, ""), nil
			}
			return reply(http.StatusOK, ""), nil
		}
		transport := newTestTransport(server, Limits{}, nil)
		for range 3000 {
			if _, err := call(t.Context(), t, transport, http.MethodGet, ""); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestContextEndsACallAtEveryPoint(t *testing.T) {
	t.Parallel()
	cause := fleet.ErrLeaseLost
	t.Run("while the request is under way", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server := &stubServer{answer: func(_ int, request *http.Request) (*http.Response, error) {
				<-request.Context().Done()
				return nil, request.Context().Err()
			}}
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(cause) })
			_, err := call(ctx, t, newTestTransport(server, Limits{}, nil), http.MethodPost, "create")
			// The lease is lost, but the call may have created something: that must not look like a definite
			// no.
			if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || !MayHaveCreated(err) {
				t.Errorf("%v: kind %s", err, fleet.KindOf(err))
			}
		})
	})
	t.Run("while it waits for its turn", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server := always(http.StatusOK)
			transport := newTestTransport(server, Limits{Spacing: time.Hour}, nil)
			_, _ = call(t.Context(), t, transport, http.MethodGet, "")
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(cause) })
			start := time.Now()
			if _, err := call(ctx, t, transport, http.MethodGet, ""); !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
				t.Errorf("%v after %s", err, time.Since(start))
			}
			if server.count() != 1 {
				t.Error("a request was sent after its context ended")
			}
		})
	})
	t.Run("while it backs off", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			server := &stubServer{answer: func(int, *http.Request) (*http.Response, error) {
				time.AfterFunc(time.Nanosecond, cancel)
				return reply(http.StatusBadGateway, ""), nil
			}}
			transport := newTestTransport(server, Limits{Backoff: time.Hour, MaximumBackoff: time.Hour}, nil)
			if _, err := call(ctx, t, transport, http.MethodGet, ""); !errors.Is(err, context.Canceled) || fleet.KindOf(err) != fleet.KindTimeout {
				t.Errorf("%v", err)
			}
		})
	})
}

func TestAHungRequestEndsWithItsAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &stubServer{answer: func(_ int, request *http.Request) (*http.Response, error) {
			<-request.Context().Done()
			return nil, request.Context().Err()
		}}
		start := time.Now()
		_, err := call(t.Context(), t, newTestTransport(server, Limits{AttemptTimeout: 7 * time.Second}, nil), http.MethodPost, "")
		if fleet.KindOf(err) != fleet.KindTimeout || time.Since(start) != 7*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

func TestBeforeSendStopsTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := always(http.StatusOK)
		transport := newTestTransport(server, Limits{Spacing: time.Minute}, nil)
		called := time.Time{}
		ctx := WithBeforeSend(t.Context(), func(context.Context) error { called = time.Now(); return nil })
		_, _ = call(t.Context(), t, transport, http.MethodGet, "")
		if _, err := call(ctx, t, transport, http.MethodPost, ""); err != nil || called != server.times[1] {
			t.Errorf("%v; the hook ran at %s, the request was sent at %s", err, called, server.times[1])
		}
		ctx = WithBeforeSend(t.Context(), func(context.Context) error { return fleet.ErrLeaseLost })
		if _, err := call(ctx, t, transport, http.MethodPost, ""); !errors.Is(err, fleet.ErrLeaseLost) || server.count() != 2 {
			t.Errorf("a hook that refuses gives %v and %d requests", err, server.count())
		}
	})
}

func TestAnswersAreBoundedAndWhole(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]fleet.Kind{http.MethodGet: fleet.KindInvalid, http.MethodPost: fleet.KindTemporary} {
		synctest.Test(t, func(t *testing.T) {
			server := &stubServer{answer: func(int, *http.Request) (*http.Response, error) { return reply(200, strings.Repeat("x", 101)), nil }}
			response, err := call(t.Context(), t, newTestTransport(server, Limits{AnswerSize: 100}, nil), method, "")
			if response != nil || fleet.KindOf(err) != want || MayHaveCreated(err) != (method == http.MethodPost) || server.count() != 1 {
				t.Errorf("%s: %v, %v, %d requests", method, response, err, server.count())
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		server := &stubServer{answer: func(number int, _ *http.Request) (*http.Response, error) {
			response := reply(200, "whole")
			if number == 1 {
				response.Body = io.NopCloser(io.MultiReader(strings.NewReader("wh"), errorReader{}))
			}
			return response, nil
		}}
		response, err := call(t.Context(), t, newTestTransport(server, Limits{}, nil), http.MethodGet, "")
		if err != nil || response.Body != "whole" {
			t.Errorf("%+v, %v", response, err)
		}
	})
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

type seenCalls struct {
	Observer
	mu   sync.Mutex
	seen []string
}

func (s *seenCalls) Call(endpoint string, status int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, endpoint+" "+http.StatusText(status)+" "+took.String())
}

func TestObserverSeesEachRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		observer := new(seenCalls)
		transport := newTestTransport(failing(0, http.StatusBadGateway), Limits{Spacing: time.Second}, observer)
		if _, err := call(t.Context(), t, transport, http.MethodGet, ""); err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Join(observer.seen, "; "), "GET thing  0s; GET thing Bad Gateway 0s; GET thing OK 0s"; got != want {
			t.Errorf("seen: %s", got)
		}
	})
}
