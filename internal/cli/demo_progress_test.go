package cli

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/demo"
	"github.com/ironherd/ironherd/internal/fleet"
)

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

// A block that is larger than the terminal could not be drawn over.
func TestTheLiveViewFitsTheTerminal(t *testing.T) {
	t.Parallel()
	for _, machines := range []int{1, 12, 200} {
		view := demo.View{Machines: machines}
		for i, state := range fleet.States() {
			view.States = append(view.States, demo.StateCount{State: state, Machines: int64(i)})
		}
		for i := range machines {
			view.Rows = append(view.Rows, &fleetv1.Machine{Hostname: fmt.Sprintf("herd-%04d", i), State: "installing", Reason: strings.Repeat("because ", 20)})
		}
		for _, size := range [][2]int{{34, 6}, {40, 10}, {60, 24}, {80, 24}, {120, 40}, {200, 60}} {
			var out strings.Builder
			l := &demoProgress{out: &out, redraw: true, color: true, size: func() (int, int) { return size[0], size[1] }}
			l.show(view)
			lines := strings.Split(strings.TrimSuffix(escapes.ReplaceAllString(out.String(), ""), "\n"), "\n")
			if len(lines) > size[1]-1 || l.drawn != len(lines) || !strings.Contains(lines[len(lines)-1], fmt.Sprintf("of %d installed", machines)) {
				t.Errorf("%d machines on %v: %d lines, the last is %q", machines, size, len(lines), lines[len(lines)-1])
			}
			for _, line := range lines {
				if n := utf8.RuneCountInString(line); n > size[0]-1 {
					t.Errorf("%d machines on %v: %d columns: %q", machines, size, n, line)
				}
			}
		}
	}
}

// TestTheLiveViewShowsNoControlCharacters but its own.
func TestTheLiveViewShowsNoControlCharacters(t *testing.T) {
	t.Parallel()
	const hostile = "a\x1b]0;\a\u009bb"
	var out strings.Builder
	l := &demoProgress{out: &out, redraw: true}
	l.show(demo.View{Machines: 1, Rows: []*fleetv1.Machine{{Hostname: hostile, State: hostile, Reason: hostile}}})
	left := escapes.ReplaceAllString(out.String(), "")
	if strings.ContainsFunc(left, func(r rune) bool { return r != '\n' && unicode.IsControl(r) }) || strings.Count(left, "a]0;b") != 3 {
		t.Errorf("drawn: %q", left)
	}
}
