package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Fault is one thing that is wrong with a configuration.
type Fault struct {
	// Source is the file, or what stands in for it: "environment", "flag".
	Source string
	// Line in the file; 0 where there are no lines.
	Line int
	// Key is the full path of the key, such as "providers[0].equinix.spacing"; empty when the fault
	// concerns the file as a whole.
	Key string
	// Problem says what is wrong and what would be right, in one sentence that begins with the key
	// where there is one.
	Problem string
	// Passes says that it may be over by itself, as a file that is not there yet (secret.Passes).
	Passes bool
}

// Error returns the place, then the problem.
func (f Fault) Error() string {
	switch {
	case f.Source == "":
		return f.Problem
	case f.Line == 0:
		return f.Source + ": " + f.Problem
	}
	return fmt.Sprintf("%s:%d: %s", f.Source, f.Line, f.Problem)
}

// Faults are all that is wrong with a configuration, in the order of the file. As an error it is of
// kind Invalid.
type Faults []Fault

// Lines formats the faults for people, one a line.
func (f Faults) Lines() []string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.Error()
	}
	return lines
}

func (f Faults) Error() string { return strings.Join(f.Lines(), "\n") }

// Pass reports whether all of them may be over by themselves: whoever loads the configuration again
// may find none.
func (f Faults) Pass() bool {
	return !slices.ContainsFunc(f, func(fault Fault) bool { return !fault.Passes })
}

// Unwrap makes the faults an error of kind Invalid.
func (f Faults) Unwrap() error {
	return &fleet.Error{Kind: fleet.KindInvalid, Message: "the configuration has faults"}
}
