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

// demoProgress shows how far a demo is. On a terminal it redraws a block of lines in place;
// elsewhere it prints a line for each change, at most one a second.
type demoProgress struct {
	out    io.Writer
	redraw bool
	color  bool
	size   func() (columns, lines int)

	drawn     int // lines of the block that is on the terminal
	printed   string
	printedAt time.Time
}

// newDemoProgress returns the display for standard error. Without quiet the log goes there too, so
// that nothing can be redrawn in place.
func (a *app) newDemoProgress(quiet bool) *demoProgress {
	return &demoProgress{
		out: a.env.Stderr, redraw: quiet && a.env.StderrTerminal && a.getenv("TERM") != "dumb",
		color: a.getenv("NO_COLOR") == "", size: a.env.StderrSize,
	}
}

// room returns how many columns and lines a block may have: a line that is broken by the terminal,
// or one that has left it above, could not be drawn over.
func (l *demoProgress) room() (columns, lines int) {
	columns, lines = 80, 40
	if l.size != nil {
		if c, n := l.size(); c > 0 && n > 0 {
			columns, lines = c, n
		}
	}
	return max(columns-1, 30), max(lines-1, 4)
}

func (l *demoProgress) show(v demo.View) {
	if l.redraw {
		l.draw(v)
		return
	}
	line := stateLine(v)
	if line == l.printed || time.Since(l.printedAt) < time.Second && !v.Settled() {
		return
	}
	l.printed, l.printedAt = line, time.Now()
	_, _ = fmt.Fprintf(l.out, "%6.1fs  %s\n", v.Elapsed.Seconds(), line)
}

// stateLine returns the states in one line, such as "creating 3, provisioning 9".
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

// symbolOf is how a machine in each state is drawn.
var symbolOf = map[fleet.State]struct{ text, color string }{
	fleet.StateCreating:     {"·", plain},
	fleet.StateProvisioning: {"░", plain},
	fleet.StateProvided:     {"▒", plain},
	fleet.StateStarted:      {"▒", yellow},
	fleet.StateAvailable:    {"▓", yellow},
	fleet.StateInstalling:   {"▓", yellow},
	fleet.StateBooting:      {"▓", green},
	fleet.StateInstalled:    {"█", green},
	fleet.StateReturning:    {"▓", green},
	fleet.StateUnreachable:  {"!", red},
	fleet.StateSilent:       {"!", red},
	fleet.StateFailed:       {"!", red},
	fleet.StateMissing:      {"!", red},
	fleet.StateUnreadable:   {"!", red},
	fleet.StateRefused:      {"!", red},
	fleet.StateOff:          {"-", plain},
	fleet.StateReleasing:    {"-", plain},
	fleet.StateMaintenance:  {"-", plain},
	fleet.StateQuarantined:  {"!", red},
}

const barWidth = 50

func (l *demoProgress) draw(v demo.View) {
	columns, room := l.room()
	var lines []string
	for _, s := range v.States {
		symbol := symbolOf[s.State]
		widest := min(barWidth, columns-24)
		length := min(int(s.Machines)*widest/max(1, v.Machines), widest)
		bar := strings.Repeat(symbol.text, max(1, length))
		lines = append(lines, fmt.Sprintf("  %-14s %5d  %s", s.State, s.Machines, l.in(symbol.color, bar)))
	}
	lines = append(lines, "")
	if len(v.Rows) > maximumDetail || len(lines)+len(v.Rows)+2 > room || columns < 40 {
		lines = append(lines, l.symbols(v, min(barWidth, columns-2))...)
	} else {
		lines = append(lines, l.details(v, columns)...)
	}
	if len(lines) > room-2 { // what is less important is below
		lines = lines[:room-2]
	}
	lines = append(lines, "", fmt.Sprintf("  %d of %d installed, %.0f s", v.Installed(), v.Machines, v.Elapsed.Seconds()))
	var b strings.Builder
	if l.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r\x1b[J", l.drawn)
	}
	b.WriteString(strings.Join(lines, "\n") + "\n")
	_, _ = io.WriteString(l.out, b.String())
	l.drawn = len(lines)
}

// details returns one line for each machine.
func (l *demoProgress) details(v demo.View, columns int) []string {
	var lines []string
	for _, m := range v.Rows {
		symbol := symbolOf[fleet.State(m.GetState())]
		lines = append(lines, fmt.Sprintf("  %s %-14s %-14s %s", l.in(symbol.color, symbol.text),
			clip(clean(machineName(m)), 14), clip(clean(m.GetState()), 14), clip(clean(m.GetReason()), max(columns-34, 1))))
	}
	return lines
}

// maximumDetail is how many machines get a line of their own.
const maximumDetail = 24

// symbols returns one symbol for each machine.
func (l *demoProgress) symbols(v demo.View, width int) []string {
	var lines []string
	for chunk := range slices.Chunk(v.Rows, width) {
		var b strings.Builder
		for _, m := range chunk {
			symbol := symbolOf[fleet.State(m.GetState())]
			b.WriteString(l.in(symbol.color, symbol.text))
		}
		lines = append(lines, "  "+b.String())
	}
	return lines
}

func (l *demoProgress) in(color, text string) string {
	if !l.color || color == plain {
		return text
	}
	return color + text + "\x1b[0m"
}

// end leaves the last block on the terminal.
func (l *demoProgress) end() {
	if l.drawn > 0 {
		_, _ = io.WriteString(l.out, "\n")
		l.drawn = 0
	}
}

func clip(s string, width int) string {
	runes := []rune(s)
	if len(runes) <= width {
		return s
	}
	return string(runes[:width-1]) + "…"
}
