package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// HTTPOptions is what an HTTP server is built with besides its handler.
type HTTPOptions struct {
	Logger *slog.Logger
	// Drain is how long requests may go on once the server is told to stop; zero: 10 s.
	Drain time.Duration
	// TLS of the server; nil: plain text.
	TLS *tls.Config
	// MaxBody bounds every request's body in bytes; zero: 4 MiB.
	MaxBody int64
	// Limit bounds the connections over TCP. Access admits those of callers that may read.
	Limit Limit
	// Refusals, which may be nil, count the connections and requests that are turned away.
	Refusals *Refusals
}

// HTTP is an HTTP/1.1 and HTTP/2 server; gRPC needs the latter.
type HTTP struct {
	handler http.Handler
	options HTTPOptions
}

// NewHTTP returns a server of the handler.
func NewHTTP(handler http.Handler, options HTTPOptions) *HTTP {
	if options.Drain <= 0 {
		options.Drain = 10 * time.Second
	}
	if options.MaxBody <= 0 {
		options.MaxBody = 4 << 20
	}
	return &HTTP{handler: handler, options: options}
}

// Serve serves the listener until ctx ends. It then gives the requests that are under way the drain
// time to finish; it cancels their contexts at half of it, and those of event streams at once. It
// closes the listener, and returns nil after an orderly end. It may be called again with another
// listener.
func (h *HTTP) Serve(ctx context.Context, ln net.Listener) error {
	if ln.Addr().Network() != "unix" { // who may open a socket may do anything
		ln = LimitConnections(ln, h.options.Limit, h.options.Refusals)
	}
	base, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	srv := h.server(base, func(f func()) func() bool { return context.AfterFunc(ctx, f) })
	served := make(chan error, 1)
	go func() {
		if h.options.TLS != nil {
			served <- srv.ServeTLS(ln, "", "")
		} else {
			served <- srv.Serve(ln)
		}
	}()
	select {
	case err := <-served:
		return fmt.Errorf("serve HTTP: %w", err)
	case <-ctx.Done():
	}
	stop, done := context.WithTimeout(context.WithoutCancel(ctx), h.options.Drain)
	defer done()
	timer := time.AfterFunc(h.options.Drain/2, func() { cancel(errShutdown) })
	defer timer.Stop()
	if err := srv.Shutdown(stop); err != nil {
		cancel(errShutdown)
		_ = srv.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// errShutdown is why the context of a request ends that a stop cuts off.
var errShutdown = fleet.Errorf(fleet.KindTemporary, "the control plane is being stopped: ask again")

// atStop registers a function to be called when the server is told to stop, and returns what
// removes it again.
type atStop func(func()) (forget func() bool)

func (h *HTTP) server(base context.Context, stopping atStop) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(h.options.TLS != nil)
	protocols.SetUnencryptedHTTP2(h.options.TLS == nil)
	return &http.Server{
		Handler:           h.wrap(stopping),
		Protocols:         &protocols,
		TLSConfig:         h.options.TLS,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      2 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		// What a connection sends stays in these buffers until a handler reads it.
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 64, MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: 64 << 10,
		},
		BaseContext: func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context { return withPeer(withConn(ctx, conn), conn) },
		ErrorLog:    slog.NewLogLogger(h.options.Logger.Handler(), slog.LevelDebug),
	}
}

// restBytes and restPatience bound what is read of a request once its answer is made: more than
// requests have, and longer than they take. restsAtOnce is of how many requests of a connection:
// who shares it with strangers must find streams that are free.
const (
	restBytes    = 256 << 10
	restPatience = time.Second
	restsAtOnce  = 8
)

// readRest reads the rest of an HTTP/2 request that a handler has left, and throws it away. An
// answer to a request that has not come whole ends with a reset of its stream, and curl, for one,
// takes that for an answer that was cut off. Over HTTP/1, net/http does the same.
func readRest(w http.ResponseWriter, r *http.Request, body io.Reader) {
	if r.ProtoMajor != 2 || body == http.NoBody {
		return
	}
	conn, _ := r.Context().Value(connKey{}).(*LimitedConn)
	ended, room := conn.Resting(restsAtOnce)
	defer ended()
	if !room {
		return
	}
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(restPatience)); err != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, body, restBytes) // whoever sends more, or nothing, is reset
}

// wrap bounds the body, turns a panic into an error of that request alone, and logs the request:
// method, path, status and time; never a header, a query or a body.
func (h *HTTP) wrap(stopping atStop) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		if r.Header.Get("Accept") == "text/event-stream" { // a stream never ends by itself
			var done context.CancelFunc
			r, done = endedBy(stopping, r)
			defer done()
		}
		recorder := &statusRecorder{ResponseWriter: w}
		body := r.Body
		r.Body = http.MaxBytesReader(w, body, h.options.MaxBody)
		defer func() {
			if v := recover(); v != nil {
				if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					panic(v)
				}
				h.options.Logger.Error("a request panicked", slog.String("path", r.URL.Path), slog.Any("err", v),
					slog.String("stack", string(debug.Stack())))
				if recorder.status == 0 {
					http.Error(recorder, "something failed in the control plane; its log says what", http.StatusInternalServerError)
				}
			}
			h.options.Logger.Debug("request", slog.String("method", r.Method), slog.String("path", r.URL.Path),
				slog.Int("status", recorder.status), slog.Duration("took", time.Since(start)), slog.String("remote", r.RemoteAddr))
		}()
		h.handler.ServeHTTP(recorder, r)
		readRest(w, r, body)
	})
}

// endedBy returns the request with a context that also ends when the server is told to stop.
func endedBy(stopping atStop, r *http.Request) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(r.Context())
	forget := stopping(func() { cancel(errShutdown) })
	return r.WithContext(ctx), func() {
		forget()
		cancel(nil)
	}
}

type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (s *statusRecorder) WriteHeader(status int) {
	if s.status == 0 {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

func (s *statusRecorder) Write(p []byte) (int, error) {
	if s.status == 0 {
		s.status = http.StatusOK
	}
	return s.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the writer's other abilities.
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// Flush implements http.Flusher for those who do not use http.ResponseController.
func (s *statusRecorder) Flush() { _ = http.NewResponseController(s.ResponseWriter).Flush() }
