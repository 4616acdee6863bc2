package telemetry

import (
	"encoding"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

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
		return slog.New(slog.NewJSONHandler(escaping{w}, &slog.HandlerOptions{Level: level, ReplaceAttr: plain})), nil
	}
	return slog.New(tint.NewTextHandler(w, &tint.Options{
		Level: level, TimeFormat: "15:04:05.000", NoColor: !options.Color, ReplaceAttr: visible,
	})), nil
}

// escaping writes lines of JSON, and escapes in them what a terminal would act on and JSON leaves
// as it is. That is in strings alone, so whoever decodes a line has what was logged.
type escaping struct{ to io.Writer }

func (e escaping) Write(line []byte) (int, error) {
	escaped := make([]byte, 0, len(line))
	for _, r := range string(line) {
		if r == '\n' || strconv.IsPrint(r) {
			escaped = utf8.AppendRune(escaped, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			escaped = fmt.Appendf(escaped, `\u%04x`, unit)
		}
	}
	if _, err := e.to.Write(escaped); err != nil {
		return 0, err
	}
	return len(line), nil
}

// plain writes a duration as its text instead of a number of nanoseconds.
func plain(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().Round(time.Microsecond).String())
	}
	return a
}

// visible shows texts so that a terminal acts on nothing in them, and an error of several lines on
// the line that it belongs to. What is logged may be a host's words.
func visible(groups []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		return slog.String(a.Key, printable(a.Value.String()))
	case slog.KindAny:
		switch value := a.Value.Any().(type) {
		case error:
			return slog.String(a.Key, printable(strings.ReplaceAll(value.Error(), "\n", "; ")))
		case encoding.TextMarshaler, *slog.Source, []byte: // the level is a TextMarshaler, too
		default:
			return slog.String(a.Key, printable(fmt.Sprintf("%+v", value)))
		}
	}
	return plain(groups, a)
}

// printable escapes what a terminal would act on. Where tint may colour, it makes an escape
// character of each `\x1b`, also of one that was quoted before: so that is written in another way.
func printable(text string) string {
	const escape = `\u001b`
	shown := new(strings.Builder)
	for _, r := range text {
		switch {
		case r == '\x1b':
			shown.WriteString(escape)
		case strconv.IsPrint(r):
			shown.WriteRune(r)
		default:
			shown.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return strings.ReplaceAll(shown.String(), `\x1b`, escape)
}
