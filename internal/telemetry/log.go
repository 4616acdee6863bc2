package telemetry

import (
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/lmittmann/tint"

	"github.com/ironherd/ironherd/internal/fleet"
)

// LogOptions says what is logged, and in what form.
type LogOptions struct {
	// Level is debug, info, warn or error; empty: info.
	Level string
	// Format is text (a line for people), json, or auto: text on a terminal, else json. Empty: auto.
	Format string
	// Terminal: the lines go to a terminal. Color: they may be coloured.
	Terminal, Color bool
}

// Formats lists the names of the formats.
func Formats() []string { return []string{"auto", "text", "json"} }

// Levels lists the names of the levels.
func Levels() []string { return []string{"debug", "info", "warn", "error"} }

// NewLogger returns a logger that writes to w. A level and a format that do not exist are both
// reported, as KindInvalid.
func NewLogger(w io.Writer, options LogOptions) (*slog.Logger, error) {
	var level slog.Level
	var wrong []error
	if err := level.UnmarshalText([]byte(options.Level)); options.Level != "" && err != nil || strings.ContainsAny(options.Level, "+-") {
		wrong = append(wrong, fleet.Errorf(fleet.KindInvalid, "no log level is named %q: use one of %s", options.Level, strings.Join(Levels(), ", ")))
	}
	format := options.Format
	if format == "" || format == "auto" {
		format = "json"
		if options.Terminal {
			format = "text"
		}
	}
	if options.Format != "" && !slices.Contains(Formats(), options.Format) {
		wrong = append(wrong, fleet.Errorf(fleet.KindInvalid, "no log format is named %q: use one of %s", options.Format, strings.Join(Formats(), ", ")))
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, err
	}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: plain})), nil
	}
	return slog.New(tint.NewTextHandler(w, &tint.Options{
		Level: level, TimeFormat: "15:04:05.000", NoColor: !options.Color, ReplaceAttr: oneLine,
	})), nil
}

// plain writes a duration as its text instead of a number of nanoseconds.
func plain(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().Round(time.Microsecond).String())
	}
	return a
}

// oneLine keeps an error of several lines on the line that it belongs to.
func oneLine(groups []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok && strings.Contains(err.Error(), "\n") {
		return slog.String(a.Key, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return plain(groups, a)
}
