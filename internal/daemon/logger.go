package daemon

import (
	"io"
	"log/slog"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/telemetry"
)

// NewLogger returns the logger that a configuration asks for.
func NewLogger(w io.Writer, c config.Log, terminal, color bool) (*slog.Logger, error) {
	return telemetry.NewLogger(w, telemetry.LogOptions{Level: c.Level, Format: c.Format, Terminal: terminal, Color: color})
}
