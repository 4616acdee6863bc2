package sim

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	statusPath = "/sim/v1/status"
	// shutdownTimeout is how long the last requests may take when the world stops.
	shutdownTimeout = time.Second
)

// serve answers requests until ctx ends.
func (w *World) serve(ctx context.Context) error {
	own := http.NewServeMux()
	own.HandleFunc("GET /images/{name}", w.serveImage)
	own.HandleFunc("GET "+statusPath, w.serveStatus)
	if w.plain == nil {
		return w.serveOn(ctx, w.listener, beside(own, w.api))
	}
	// One that fails ends the other.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	files := make(chan error, 1)
	go func() {
		err := w.serveOn(ctx, w.plain, own)
		cancel(err)
		files <- err
	}()
	err := w.serveOn(ctx, tls.NewListener(w.listener, w.tls), w.api)
	cancel(err)
	return errors.Join(err, <-files)
}

// beside serves what the world has beside the provider's API. It decides by the path as it came:
// a multiplexer would redirect paths that the API answers.
func beside(own, api http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/images/") || r.URL.Path == statusPath {
			own.ServeHTTP(rw, r)
			return
		}
		api.ServeHTTP(rw, r)
	})
}

// serveOn answers the requests of one listener until ctx ends.
func (w *World) serveOn(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(w.cfg.Logger.Handler(), slog.LevelDebug),
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		_ = server.Shutdown(last)
		_ = server.Close()
	})
	err := server.Serve(listener)
	if stop() { // not stopped by ctx
		return fmt.Errorf("serve the simulated world: %w", err)
	}
	<-closed
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (w *World) serveImage(rw http.ResponseWriter, r *http.Request) {
	path, ok := w.files[r.PathValue("name")]
	if !ok {
		http.NotFound(rw, r)
		return
	}
	rw.Header().Set("Content-Type", "application/octet-stream")
	http.ServeFile(rw, r, path)
}

func (w *World) serveStatus(rw http.ResponseWriter, _ *http.Request) {
	rw.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(rw)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(w.Status()) // fails when the client has gone
}
