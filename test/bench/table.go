package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// table is what is printed.
type table struct{ rows []row }

// row is one line. ratio is empty where there is nothing to compare with; met says whether the goal
// is, "" where there is none.
type row struct {
	what, goal, ours, reference, ratio, met string
}

func (t *table) add(r row) { t.rows = append(t.rows, r) }

// print writes Markdown.
func (t *table) print(out io.Writer) error {
	var s strings.Builder
	s.WriteString("| what | goal | ours | reference | ratio | met |\n|---|---|---|---|---|---|\n")
	for _, r := range t.rows {
		fmt.Fprintf(&s, "| %s | %s | %s | %s | %s | %s |\n", r.what, dash(r.goal), dash(r.ours), dash(r.reference), dash(r.ratio), dash(r.met))
	}
	_, err := io.WriteString(out, s.String())
	return err
}

func dash(s string) string { return cmp.Or(s, "–") }

func yes(met bool) string {
	if met {
		return "yes"
	}
	return "**no**"
}

// quantile of a list, by the nearest rank; 0 of an empty one.
func quantile[T cmp.Ordered](list []T, q float64) T {
	if len(list) == 0 {
		var zero T
		return zero
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func median[T cmp.Ordered](list []T) T { return quantile(list, 0.5) }

// pick maps.
func pick[T, V any](list []T, of func(T) V) []V {
	out := make([]V, len(list))
	for i, x := range list {
		out[i] = of(x)
	}
	return out
}

// ratios of rounds that followed each other.
func ratios[T any](ours, reference []T, of func(T) float64) []float64 {
	var list []float64
	for i := range min(len(ours), len(reference)) {
		if r := of(reference[i]); r != 0 {
			list = append(list, of(ours[i])/r)
		}
	}
	return list
}

// number writes a figure with three significant digits, or all before the point.
func number(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	default:
		return fmt.Sprintf("%.2f", x)
	}
}

// short writes a duration with three significant digits.
func short(d time.Duration) string {
	switch {
	case d >= time.Second:
		return number(d.Seconds()) + " s"
	case d >= time.Millisecond:
		return number(float64(d)/float64(time.Millisecond)) + " ms"
	default:
		return number(float64(d)/float64(time.Microsecond)) + " µs"
	}
}
