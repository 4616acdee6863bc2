package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// hunk is one change of a unified diff.
type hunk struct {
	old, changed []string
	// before and after are how many lines of context are at its ends.
	before, after int
}

// hunks returns the changes of each file, by its path.
func hunks(patch string) (map[string][]hunk, error) {
	all := make(map[string][]hunk)
	file := ""
	var h *hunk
	end := func() {
		if h != nil {
			all[file] = append(all[file], *h)
		}
		h = nil
	}
	for line := range strings.Lines(patch) {
		text := strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(text, "+++ b/"):
			end()
			file = strings.TrimPrefix(text, "+++ b/")
		case strings.HasPrefix(text, "--- "):
			end()
		case strings.HasPrefix(text, "@@ "):
			end()
			h = &hunk{}
		case h == nil || text == "":
		case text[0] == '-':
			h.old, h.after = append(h.old, text[1:]), 0
		case text[0] == '+':
			h.changed, h.after = append(h.changed, text[1:]), 0
		case text[0] == ' ':
			if len(h.old) == h.before && len(h.changed) == h.before {
				h.before++
			}
			h.after++
			h.old, h.changed = append(h.old, text[1:]), append(h.changed, text[1:])
		default:
			return nil, fmt.Errorf("%q is no line of a diff", text)
		}
	}
	end()
	if len(all) == 0 {
		return nil, errors.New("it changes nothing")
	}
	return all, nil
}

// plant makes the changes in a source. Line numbers mean nothing, and context only as much as is
// needed for there to be one place that a change can be meant for: so a patch outlives what happens
// around it.
func plant(source string, list []hunk) (string, error) {
	lines := strings.Split(source, "\n")
	for _, h := range list {
		at, old, changed, err := h.place(lines)
		if err != nil {
			return "", err
		}
		lines = slices.Concat(lines[:at], changed, lines[at+len(old):])
	}
	return strings.Join(lines, "\n"), nil
}

// place finds the one place of a change, with as much of its context as is still there.
func (h hunk) place(lines []string) (at int, old, changed []string, err error) {
	for dropped := 0; dropped <= h.before+h.after; dropped++ {
		for top := max(0, dropped-h.after); top <= min(dropped, h.before); top++ {
			bottom := dropped - top
			old, changed = h.old[top:len(h.old)-bottom], h.changed[top:len(h.changed)-bottom]
			switch places := occurrences(lines, old); {
			case len(places) == 1:
				return places[0], old, changed, nil
			case len(places) > 1 && dropped == 0:
				return 0, nil, nil, errors.New("there are several places for the change")
			}
		}
	}
	return 0, nil, nil, fmt.Errorf("there is no one place for the change:\n%s", strings.Join(h.old, "\n"))
}

func occurrences(lines, old []string) (places []int) {
	if len(old) == 0 {
		return nil
	}
	for i := 0; i+len(old) <= len(lines); i++ {
		if slices.Equal(lines[i:i+len(old)], old) {
			places = append(places, i)
		}
	}
	return places
}
