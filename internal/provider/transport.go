package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Transport carries the calls of one HTTP provider. It is an http.RoundTripper, so that it works
// below any client library. It does what no library here does well:
//
//	call ──► a slot of those in flight
//	            │
//	            ├──► pacing (spacing, Retry-After) ──► before-send hook ──► request ──► whole answer
//	            │                                                              │
//	            └── full-jitter backoff ◄── retry budget ◄── safe to repeat? ◄─┘ transient failure
//
// Transient failures are: no complete answer, and the statuses 408, 425, 429, 500, 502, 503 and
// 504. Safe to repeat are GET, HEAD, OPTIONS, PUT, PATCH and DELETE. A POST is sent once, whatever
// happens.
//
// RoundTrip returns either an answer that it has read completely, or one of these errors:
//
//   - The call ran out of attempts or of budget: KindThrottled after 429, with how long to wait,
//     else KindTimeout. In both cases errors.Is(err, os.ErrDeadlineExceeded).
//   - A POST got no complete answer, or one that is too large: KindTimeout when it ran out of time,
//     else KindTemporary. The provider may have done it.
//   - The context ended before anything was sent: its error and its cause, wrapped.
//   - Another answer is too large: KindInvalid.
//
// WasQueued tells of an error whether the call only waited for a slot or for its turn, and
// NothingSent tells of an error whether it is certain that nothing of the call was sent: it failed
// before its first attempt, or, with a POST, there was no connection.
//
// A transient status in answer to a POST is an answer, and is returned.
//
// No error contains a URL, a header or a body.
type Transport struct {
	next     http.RoundTripper
	limits   Limits
	endpoint func(*http.Request) string
	observer Observer
	logger   *slog.Logger

	slots  chan struct{}
	behind atomic.Int64 // attempts that wait for a slot
	pacer  *Pacer
	budget *budget
}

// NewTransport returns a transport with limits of its own. endpoint names a request for the
// observer, by a template without IDs.
func NewTransport(limits Limits, endpoint func(*http.Request) string, options Options) *Transport {
	limits = limits.withDefaults()
	next := options.HTTP
	if next == nil {
		next = newHTTP(limits)
	}
	t := &Transport{
		next: next, limits: limits, endpoint: endpoint, observer: options.Observer, logger: options.Log(),
		slots: make(chan struct{}, limits.InFlight), pacer: NewPacer(limits, wallClock{}), budget: newBudget(),
	}
	t.pacer.share(options, func() int { return int(t.behind.Load()) })
	return t
}

// Pacing says how calls are paced, in one clause.
func (t *Transport) Pacing() string { return t.pacer.pacing() }

// newHTTP returns a transport with the proxy settings of the environment. Where nothing is heard on
// an HTTP/2 connection for a third of an attempt's time, the other side is asked for a sign of
// life, and one that gives none in another third loses the connection. Without that all calls go
// over a connection whose path is gone until the kernel gives up sending, after a quarter of an
// hour.
func newHTTP(limits Limits) *http.Transport {
	return &http.Transport{
		HTTP2:               &http.HTTP2Config{SendPingTimeout: limits.AttemptTimeout / 3, PingTimeout: limits.AttemptTimeout / 3},
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: limits.InFlight,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second,
	}
}

// CloseIdleConnections closes the connections that no call uses.
func (t *Transport) CloseIdleConnections() {
	if closer, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

// RoundTrip makes one call.
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Body != nil {
		defer request.Body.Close()
	}
	ctx := request.Context()
	for attempt := 1; ; attempt++ {
		response, err := t.attempt(request, attempt)
		var failed *failure
		switch {
		case err != nil && !errors.As(err, &failed):
			return nil, err // nothing was sent, or there is no use in repeating it
		case err == nil && !transient(response.StatusCode):
			t.budget.succeeded()
			return response, nil
		case err == nil && !repeatable(request):
			return response, nil
		case err == nil:
			failed = &failure{status: response.StatusCode, retryAfter: RetryAfter(response.StatusCode, response.Header)}
		case ctx.Err() != nil:
			return nil, givenUp(ctx)
		case !repeatable(request):
			return nil, failed.once()
		}
		if attempt == t.limits.Attempts {
			return nil, failed.exhausted(attempt, "")
		}
		if !t.budget.spend() {
			return nil, failed.exhausted(attempt, ": too many calls fail for more")
		}
		err = t.backOff(ctx, request, attempt, failed)
		if ctx.Err() != nil {
			return nil, givenUp(ctx)
		}
		if err != nil {
			return nil, failed.exhausted(attempt, ": no time is left for more")
		}
	}
}

func givenUp(ctx context.Context) error {
	return &fleet.Error{Kind: fleet.KindTimeout, Message: "the call was given up before its answer came", Err: fleet.ContextError(ctx)}
}

// attempt sends one request, as soon as nobody puts it off, and reads its answer completely. Only
// transient failures are a *failure.
func (t *Transport) attempt(request *http.Request, attempt int) (*http.Response, error) {
	for {
		response, err := t.inTurn(request, attempt)
		wait, off := PutOffBy(err)
		if !off {
			return response, err
		}
		if err := pause(request.Context(), wait); err != nil {
			return nil, first(attempt, fmt.Errorf("wait until it may be sent: %w", err), errUnsent, errQueued)
		}
	}
}

// inTurn sends one request in its turn, unless somebody puts it off.
func (t *Transport) inTurn(request *http.Request, attempt int) (*http.Response, error) {
	ctx := request.Context()
	t.behind.Add(1)
	select {
	case t.slots <- struct{}{}:
		t.behind.Add(-1)
		defer func() { <-t.slots }()
	case <-ctx.Done():
		t.behind.Add(-1)
		return nil, first(attempt, fmt.Errorf("wait for a free slot: %w", fleet.ContextError(ctx)), errUnsent, errQueued)
	}
	if err := t.pacer.Wait(ctx); err != nil {
		err = fmt.Errorf("wait for its turn: %w", err)
		if fleet.KindOf(err) == fleet.KindThrottled { // the provider wants a pause
			return nil, first(attempt, err, errUnsent)
		}
		return nil, first(attempt, err, errUnsent, errQueued)
	}
	if err := BeforeSend(ctx); err != nil {
		return nil, first(attempt, fmt.Errorf("before the call: %w", err), errUnsent)
	}
	sending, cancel := context.WithTimeout(ctx, t.limits.AttemptTimeout)
	defer cancel()
	clone, err := renew(sending, request, attempt)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	response, err := t.exchange(clone)
	status := 0
	if err == nil {
		status = response.StatusCode
		if wait := RetryAfter(status, response.Header); wait > 0 {
			t.pacer.Hold(ctx, wait)
		}
	}
	if t.observer != nil {
		t.observer.Call(t.endpoint(request), status, time.Since(start))
	}
	return response, err
}

// renew returns the request for one attempt.
func renew(ctx context.Context, request *http.Request, attempt int) (*http.Request, error) {
	clone := request.Clone(ctx)
	clone.Close = false // some libraries ask for a new connection each time
	if !hasBody(request) || attempt == 1 {
		return clone, nil
	}
	if request.GetBody == nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "the request cannot be repeated: its body can be read only once")
	}
	body, err := request.GetBody()
	if err != nil {
		return nil, fmt.Errorf("repeat request: %w", err)
	}
	clone.Body = body
	return clone, nil
}

// exchange sends a request and reads the answer's body to its end. So a connection that breaks in
// the middle of the body is a failed attempt like any other.
func (t *Transport) exchange(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err != nil {
		return nil, &failure{err: err}
	}
	defer response.Body.Close()
	buffer := bodies.Get().(*bytes.Buffer)
	buffer.Reset()
	n, err := buffer.ReadFrom(io.LimitReader(response.Body, t.limits.AnswerSize+1))
	switch {
	case err != nil:
		err = &failure{err: err}
	case n > t.limits.AnswerSize:
		kind := fleet.KindInvalid
		if request.Method == http.MethodPost { // it may have been done
			kind = fleet.KindTemporary
		}
		err = fleet.Errorf(kind, "the provider's answer has more than %d bytes", t.limits.AnswerSize)
	default:
		response.Body, response.ContentLength = &body{Reader: bytes.NewReader(buffer.Bytes()), buffer: buffer}, n
		return response, nil
	}
	bodies.Put(buffer)
	return nil, err
}

// bodies are buffers for what providers answer. A page of a list has a megabyte or more, and one
// that grows in a new buffer each time costs more than its decoding.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// body is an answer that was read to its end. Its Close gives the buffer back, so that nobody may
// read after it.
type body struct {
	*bytes.Reader
	buffer *bytes.Buffer
}

// Close implements io.Closer. One call counts.
func (b *body) Close() error {
	if b.buffer != nil {
		b.Reader.Reset(nil)
		bodies.Put(b.buffer)
		b.buffer = nil
	}
	return nil
}

// backOff waits before a retry, with full jitter. The pacer sees to it that the wait is not shorter
// than the provider asked for. backOff fails at once when the wait could not end in time.
func (t *Transport) backOff(ctx context.Context, request *http.Request, attempt int, failed *failure) error {
	ceiling := t.limits.MaximumBackoff
	if doubled := t.limits.Backoff << (attempt - 1); doubled > 0 {
		ceiling = min(ceiling, doubled)
	}
	wait := rand.N(ceiling) //nolint:gosec // spreads load, guards nothing
	if failed.retryAfter > t.limits.Patience {
		return failed
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < max(wait, failed.retryAfter) {
		return context.DeadlineExceeded
	}
	t.logger.DebugContext(ctx, "provider call failed, trying again", slog.String("endpoint", t.endpoint(request)),
		slog.Int("attempt", attempt), slog.Duration("wait", wait), slog.Any("err", failed))
	return pause(ctx, wait)
}

// failure is one attempt that may pass when repeated: a transient status, or no complete answer.
type failure struct {
	status     int
	retryAfter time.Duration
	err        error
}

// Error tells the status or what went wrong.
func (f *failure) Error() string {
	if f.err != nil {
		return f.err.Error()
	}
	return fmt.Sprintf("the provider answered %d %s", f.status, http.StatusText(f.status))
}

// Unwrap returns the cause.
func (f *failure) Unwrap() error { return f.err }

// once is the error of a call that must not be repeated.
func (f *failure) once() error {
	kind := fleet.KindTemporary
	var network net.Error
	if errors.Is(f.err, context.DeadlineExceeded) || errors.As(f.err, &network) && network.Timeout() {
		kind = fleet.KindTimeout
	}
	err := error(&fleet.Error{Kind: kind, Message: "no complete answer came", Err: f.err})
	if dial, ok := errors.AsType[*net.OpError](f.err); ok && dial.Op == "dial" {
		err = BeforeSending(err) // there was no connection
	}
	return err
}

// first marks an error from before an attempt was sent. Of a later one it does not: an earlier one
// was sent.
func first(attempt int, err error, marks ...error) error {
	if attempt > 1 {
		return err
	}
	return mark(err, marks...)
}

// exhausted is the error of a call that is not tried again. why continues the sentence.
func (f *failure) exhausted(attempts int, why string) error {
	often := "one attempt"
	if attempts > 1 {
		often = fmt.Sprintf("%d attempts", attempts)
	}
	err := &fleet.Error{Kind: fleet.KindTimeout, Message: "given up after " + often + why, Err: f}
	if f.status == http.StatusTooManyRequests {
		err.Kind, err.RetryAfter, err.Err = fleet.KindThrottled, f.retryAfter, &throttled{f}
	}
	return err
}

// throttled is a failure that is also a deadline error: the call ran out of attempts.
type throttled struct{ *failure }

// Is reports os.ErrDeadlineExceeded.
func (*throttled) Is(target error) bool { return target == os.ErrDeadlineExceeded }

func transient(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

func repeatable(request *http.Request) bool {
	return request.Method != http.MethodPost && (!hasBody(request) || request.GetBody != nil)
}

func hasBody(request *http.Request) bool { return request.Body != nil && request.Body != http.NoBody }
