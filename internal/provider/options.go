package provider

import (
	"cmp"
	"log/slog"
	"net/http"
	"time"
)

// Options is what every provider is built with besides its configuration.
type Options struct {
	// Logger receives what an operator should know of the conversation with the provider. Nil: nothing
	// is logged. The caller binds the key "provider".
	Logger *slog.Logger
	// Observer is told of every request. Nil: nobody is.
	Observer Observer
	// Turns paces the calls of all processes that share a limit. Nil: each paces its own.
	Turns Turns
	// HTTP makes the actual requests, below pacing and retry. Nil: the provider makes a transport with
	// the proxy settings of the environment. Providers that do not speak HTTP ignore it.
	HTTP http.RoundTripper
}

// Log returns the logger; one that discards everything when none is set.
func (o Options) Log() *slog.Logger {
	return cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
}

// Observer is told of every request that was sent to a provider. It is called from many goroutines
// at once and must not block.
type Observer interface {
	// Call reports one request: the endpoint is a template such as "GET /devices/{id}", drawn from a
	// small fixed set; the status is that of HTTP, or 0 when no complete answer came; took is from
	// sending to the last byte of the answer, without the time that the request waited for its turn.
	// Each retry is a request of its own.
	Call(endpoint string, status int, took time.Duration)
	// PacedAlone reports that this process paces its calls by itself from now on, at a quarter of the
	// limit, because the database hands out no turns; false: that this is over, or that nobody has
	// called for a while, so that nobody knows.
	PacedAlone(alone bool)
}
