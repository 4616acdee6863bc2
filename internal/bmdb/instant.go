package bmdb

import (
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Instants are stored as microseconds since 1970, the zero time as 0; durations as microseconds.

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

func instantPointer(us int64) *time.Time { return when(us != 0, instant(us)) }

func microsPointer(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	return micros(*t)
}

func lasting(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// providerPrefix keeps the names of providers apart from the IDs of machines in the columns that
// hold a subject.
const providerPrefix = "provider/"

func machineKey(id fleet.MachineID) string { return string(id) }

func providerKey(name fleet.ProviderName) string { return providerPrefix + string(name) }

// nameKey is where history keeps which machine had a name that is free again.
func nameKey(name string) string { return "name/" + name }

func keyOf(s fleet.Subject) string {
	if s.Machine != "" {
		return machineKey(s.Machine)
	}
	return providerKey(s.Provider)
}

func parseSubject(key string) fleet.Subject {
	if name, ok := strings.CutPrefix(key, providerPrefix); ok {
		return fleet.Subject{Provider: fleet.ProviderName(name)}
	}
	return fleet.Subject{Machine: fleet.MachineID(key)}
}

// joinWords stores a list of words.
func joinWords[T ~string](list []T) string {
	return strings.Join(converted(list, func(word T) string { return string(word) }), " ")
}

// joinLines and splitLines store lists of one-line strings.
func joinLines(lines []string) string { return strings.Join(lines, "\n") }

func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}
