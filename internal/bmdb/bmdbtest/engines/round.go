package engines

import (
	"slices"
	"testing"
)

// Round is one of many rounds of a test. What is made for it goes at its end and not at the test's:
// a server with a thousand databases is busy with looking after them.
type Round struct {
	testing.TB
	cleanups []func()
}

// NewRound begins a round of a test. Whoever begins it calls End.
func NewRound(tb testing.TB) *Round {
	tb.Helper()
	return &Round{TB: tb}
}

// Cleanup registers what End calls, the last one first.
func (r *Round) Cleanup(fn func()) { r.cleanups = append(r.cleanups, fn) }

// End ends the round.
func (r *Round) End() {
	for _, fn := range slices.Backward(r.cleanups) {
		fn()
	}
}
