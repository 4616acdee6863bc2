package equinixapi

import (
	"regexp"
	"slices"
)

// Summary counts what a provider has.
type Summary struct {
	// States counts the devices by state; Made and Failed count since the beginning.
	States       map[string]int
	Made, Failed int
	// DuplicateTags are the tags with a UUID at their end, so meant for one device, that more than one
	// device has; Duplicates counts the devices beyond the first.
	DuplicateTags []string
	Duplicates    int
}

var uniqueTag = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// Summary returns the counts of now.
func (a *API) Summary() Summary {
	at := now()
	a.mu.RLock()
	defer a.mu.RUnlock()
	s := Summary{States: map[string]int{}, Made: a.counters.Devices, Failed: a.counters.Failed}
	tags := map[string]int{}
	for _, d := range a.devices {
		s.States[d.shownState(at)]++
		for _, tag := range d.Tags {
			if uniqueTag.MatchString(tag) {
				tags[tag]++
			}
		}
	}
	for tag, n := range tags {
		if n > 1 {
			s.DuplicateTags = append(s.DuplicateTags, tag)
			s.Duplicates += n - 1
		}
	}
	slices.Sort(s.DuplicateTags)
	return s
}
