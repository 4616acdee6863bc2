package webui

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ironherd/ironherd/internal/fleet"
)

// grouped writes a count with a thin space between thousands.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	var out strings.Builder
	for i, digit := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			out.WriteRune('\u202f')
		}
		out.WriteRune(digit)
	}
	return sign + out.String()
}

// boundedCount writes what the API counts up to fleet.CountedAtMost.
func boundedCount(n int64) string {
	return grouped(n) + plus(n)
}

// plus is what follows a figure that came of such a count.
func plus(n int64) string {
	if n < fleet.CountedAtMost {
		return ""
	}
	return "+"
}

// countOf writes a count with its noun.
func countOf(n int64, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped(n) + " " + more
}

// binary writes a size of memory or of an image; decimal that of a disk, as its maker counts.
func binary(n int64) string { return scaled(n, 1024, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}) }

func decimal(n int64) string { return scaled(n, 1000, []string{"B", "kB", "MB", "GB", "TB", "PB"}) }

func scaled(n int64, base float64, units []string) string {
	v, unit := float64(n), 0
	for v >= base && unit < len(units)-1 {
		v /= base
		unit++
	}
	if unit == 0 || v >= 100 || v == float64(int64(v)) {
		return fmt.Sprintf("%.0f %s", v, units[unit])
	}
	return fmt.Sprintf("%.1f %s", v, units[unit])
}

// joinNonEmpty joins the parts that are not empty.
func joinNonEmpty(separator string, parts ...string) string {
	var all []string
	for _, p := range parts {
		if p = strings.TrimSpace(p); p != "" {
			all = append(all, p)
		}
	}
	return strings.Join(all, separator)
}
