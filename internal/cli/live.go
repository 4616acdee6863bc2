package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/demo"
	"github.com/ironherd/ironherd/internal/fleet"
)

// live shows how far a demo is: on a terminal as a picture that is painted over, else as lines, one
// for each change and at most one a second.
type live struct {
	out     io.Writer
	picture bool
	color   bool

	painted int // lines of the picture that is there
	told    string
	toldAt  time.Time
}

// newLive returns the view for standard error. Without quiet, log lines come there too, which a
// picture does not go with.
func (a *app) newLive(quiet bool) *live {
	return &live{
		out: a.env.Stderr, picture: quiet && a.env.StderrTerminal && a.getenv("TERM") != "dumb",
		color: a.getenv("NO_COLOR") == "",
	}
}

func (l *live) show(v demo.View) {
	if l.picture {
		l.paint(v)
		return
	}
	line := stateLine(v)
	if line == l.told || time.Since(l.toldAt) < time.Second && v.Installed() < int64(v.Machines) {
		return
	}
	l.told, l.toldAt = line, time.Now()
	_, _ = fmt.Fprintf(l.out, "%6.1fs  %s\n", v.Elapsed.Seconds(), line)
}

// stateLine is such as "creating 3, provisioning 9".
func stateLine(v demo.View) string {
	var parts []string
	begun := int64(0)
	for _, s := range v.States {
		parts = append(parts, fmt.Sprintf("%s %d", s.State, s.Machines))
		begun += s.Machines
	}
	if rest := int64(v.Machines) - begun; rest > 0 {
		parts = append([]string{fmt.Sprintf("not begun %d", rest)}, parts...)
	}
	if v.BackingOff > 0 {
		parts = append(parts, fmt.Sprintf("(%d wait after a failure)", v.BackingOff))
	}
	return strings.Join(parts, ", ")
}

// tiles are how a machine in each state looks.
var tiles = map[fleet.State]struct{ sign, color string }{
	fleet.StateCreating:     {"·", plain},
	fleet.StateProvisioning: {"░", plain},
	fleet.StateProvided:     {"▒", plain},
	fleet.StateStarted:      {"▒", yellow},
	fleet.StateAvailable:    {"▓", yellow},
	fleet.StateInstalling:   {"▓", yellow},
	fleet.StateBooting:      {"▓", green},
	fleet.StateInstalled:    {"█", green},
	fleet.StateSilent:       {"!", red},
	fleet.StateFailed:       {"!", red},
	fleet.StateMissing:      {"!", red},
	fleet.StateQuarantined:  {"!", red},
}

const barWidth = 50

func (l *live) paint(v demo.View) {
	var lines []string
	for _, s := range v.States {
		tile := tiles[s.State]
		length := int(s.Machines) * barWidth / max(1, v.Machines)
		bar := strings.Repeat(tile.sign, max(1, length))
		lines = append(lines, fmt.Sprintf("  %-14s %5d  %s", s.State, s.Machines, l.in(tile.color, bar)))
	}
	lines = append(lines, "")
	if len(v.Rows) > maximumDetail {
		lines = append(lines, l.mosaic(v)...)
	} else {
		lines = append(lines, l.details(v)...)
	}
	lines = append(lines, "", fmt.Sprintf("  %d of %d installed, %.0f s", v.Installed(), v.Machines, v.Elapsed.Seconds()))
	var b strings.Builder
	if l.painted > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r\x1b[J", l.painted)
	}
	b.WriteString(strings.Join(lines, "\n") + "\n")
	_, _ = io.WriteString(l.out, b.String())
	l.painted = len(lines)
}

// details is one line for each machine.
func (l *live) details(v demo.View) []string {
	var lines []string
	for _, m := range v.Rows {
		tile := tiles[fleet.State(m.GetState())]
		lines = append(lines, fmt.Sprintf("  %s %-14s %-14s %s", l.in(tile.color, tile.sign),
			clip(machineName(m), 14), clip(m.GetState(), 14), clip(clean(m.GetReason()), 46)))
	}
	return lines
}

// maximumDetail is how many machines get a line of their own.
const maximumDetail = 24

// mosaic is one sign for each machine.
func (l *live) mosaic(v demo.View) []string {
	var lines []string
	for chunk := range slices.Chunk(v.Rows, barWidth) {
		var b strings.Builder
		for _, m := range chunk {
			tile := tiles[fleet.State(m.GetState())]
			b.WriteString(l.in(tile.color, tile.sign))
		}
		lines = append(lines, "  "+b.String())
	}
	return lines
}

func (l *live) in(color, text string) string {
	if !l.color || color == plain {
		return text
	}
	return color + text + "\x1b[0m"
}

// end leaves the last picture where it is.
func (l *live) end() {
	if l.painted > 0 {
		_, _ = io.WriteString(l.out, "\n")
		l.painted = 0
	}
}

func clip(s string, width int) string {
	runes := []rune(s)
	if len(runes) <= width {
		return s
	}
	return string(runes[:width-1]) + "…"
}
