package fault

import (
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// Count says how often a fault could have happened, and how often it did.
type Count struct {
	Fault         Kind `json:"fault"`
	Opportunities int  `json:"opportunities"`
	Fired         int  `json:"fired"`
}

// Shot is a fault that happens.
type Shot struct {
	// Number counts the faults of this kind from 1.
	Number int
	// Duration is the rule's; zero for kinds that have none.
	Duration time.Duration
}

// Set decides and counts. Its methods may be called concurrently; those of a nil Set say that
// nothing goes wrong.
type Set struct {
	seed  uint64
	fired func(Count)

	mu     sync.Mutex
	states map[Kind]*state
}

type state struct {
	rule rule
	Count
}

// NewSet returns a set that follows spec. It goes on where before says that it was. fired, unless
// nil, is called with the new count for each fault that happens, before it does.
func NewSet(spec Spec, seed uint64, before []Count, fired func(Count)) *Set {
	s := &Set{seed: seed, fired: fired, states: map[Kind]*state{}}
	for kind, r := range spec.rules {
		s.states[kind] = &state{rule: r, Count: Count{Fault: kind}}
	}
	for _, c := range before {
		if st := s.states[c.Fault]; st != nil {
			st.Count = c
		}
	}
	return s
}

// Fire counts an opportunity of the kind and reports whether the fault happens.
func (s *Set) Fire(kind Kind) (Shot, bool) {
	if s == nil {
		return Shot{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.states[kind]
	if st == nil {
		return Shot{}, false
	}
	st.Opportunities++
	if !s.due(st) {
		return Shot{}, false
	}
	st.Fired++
	if s.fired != nil {
		s.fired(st.Count)
	}
	return Shot{Number: st.Fired, Duration: st.rule.duration}, true
}

// due says whether the opportunity that was just counted becomes a fault.
func (s *Set) due(st *state) bool {
	if st.rule.share == 0 {
		_, found := slices.BinarySearch(st.rule.at, st.Opportunities)
		return found
	}
	// The k-th fault lies somewhere in the k-th stretch of 1/share opportunities; a little later where
	// two would coincide.
	at := (float64(st.Fired) + s.fraction(st.Fault, st.Fired)) / st.rule.share
	return float64(st.Opportunities) > math.Floor(at)
}

// fraction is a number in [0, 1) that depends on the seed, the kind and n alone.
func (s *Set) fraction(kind Kind, n int) float64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(kind))
	x := s.seed ^ h.Sum64() ^ uint64(n)*0x9e3779b97f4a7c15
	// The finalizer of SplitMix64.
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return float64(x>>11) / (1 << 53)
}

// Counts returns the counts of every kind that the specification names, by name.
func (s *Set) Counts() []Count {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := make([]Count, 0, len(s.states))
	for _, st := range s.states {
		counts = append(counts, st.Count)
	}
	slices.SortFunc(counts, func(a, b Count) int { return strings.Compare(string(a.Fault), string(b.Fault)) })
	return counts
}
