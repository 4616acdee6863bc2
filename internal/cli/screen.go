package cli

import (
	"bytes"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ironherd/ironherd/internal/fleet"
)

// screen collects what people are shown.
type screen struct {
	out   *bytes.Buffer
	color bool
}

func (w *screen) line(format string, args ...any) {
	w.out.WriteString(clean(fmt.Sprintf(format, args...)) + "\n")
}

// table writes rows under a heading, each column as wide as its widest cell. A cell that would be
// empty shows a hyphen.
func (w *screen) table(heading []string, rows [][]string) {
	widths := make([]int, len(heading))
	all := append([][]string{heading}, rows...)
	for _, row := range all {
		for i := range row {
			if row[i] = clean(row[i]); row[i] == "" {
				row[i] = "-"
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for n, row := range all {
		var line strings.Builder
		for i, cell := range row {
			if i > 0 {
				line.WriteString("  ")
			}
			line.WriteString(w.paint(cell, n == 0))
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)))
			}
		}
		w.out.WriteString(line.String() + "\n")
	}
}

// pairs writes names and values; a pair with an empty value is left out.
func (w *screen) pairs(pairs ...[2]string) {
	width := 0
	for _, p := range pairs {
		if p[1] != "" {
			width = max(width, utf8.RuneCountInString(p[0]))
		}
	}
	for _, p := range pairs {
		if p[1] == "" {
			continue
		}
		w.out.WriteString(p[0] + ":" + strings.Repeat(" ", width-utf8.RuneCountInString(p[0])+2) + w.paint(clean(p[1]), false) + "\n")
	}
}

const (
	plain  = ""
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
)

// paint colors the words that say how a machine or its work is.
func (w *screen) paint(cell string, heading bool) string {
	color := colorOf(cell)
	if heading {
		color = bold
	}
	if !w.color || color == plain {
		return cell
	}
	return color + cell + "\x1b[0m"
}

func colorOf(word string) string {
	state := fleet.State(word)
	switch {
	case state.Trouble(), word == "expired":
		return red
	case state == fleet.StateInstalled, state == fleet.StateAvailable, word == "running":
		return green
	case state == fleet.StateInstalling, state == fleet.StateBooting, state == fleet.StateReturning, word == "due":
		return yellow
	}
	return plain
}

// clean removes what is not printable, so that foreign text cannot control the terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
}

// instant shows when something happened, in UTC.
func instant(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format("2006-01-02 15:04:05Z")
}

// age shows how long ago something was, in one unit.
func age(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return span(time.Since(t.AsTime()))
}

func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// due shows how long it is until something is to happen.
func due(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	if d := time.Until(t.AsTime()); d > 0 {
		return "in " + span(d)
	}
	return "now"
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// bytesOf shows a number of bytes in binary units.
func bytesOf(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, prefix := float64(n)/unit, 0
	for ; value >= unit && prefix < 5; prefix++ {
		value /= unit
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTPE"[prefix])
}
