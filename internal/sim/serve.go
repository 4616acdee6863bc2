package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

const (
	statusPath = "/sim/v1/status"
	// shutdownTimeout is how long the last requests may take when the world stops.
	shutdownTimeout = time.Second
)

// serve answers requests until ctx ends.
func (w *World) serve(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.Handle("/", w.api)
	mux.HandleFunc("GET /images/{name}", w.serveImage)
	mux.HandleFunc("GET "+statusPath, w.serveStatus)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
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
	err := server.Serve(w.listener)
	if stop() { // not stopped by ctx
		return fmt.Errorf("serve the provider's API: %w", err)
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
