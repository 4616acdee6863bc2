// Package failure says what kind of error a package of the reconciler has returned, so that a
// program which embeds them can decide what to do about it without reading the message.
//
// The packages name the kinds in their comments: "the error is failure.Conflict" means that Of
// returns Conflict for it, however often it was wrapped since.
package failure

import "github.com/ironherd/ironherd/internal/fleet"

// Kind classifies an error by what its receiver can do about it.
type Kind int

// The kinds.
const (
	// Unknown is any error that nobody classified, and no error. It never means that something does
	// not exist.
	Unknown Kind = iota
	// Invalid: the input or the configuration is wrong. The same call will fail again.
	Invalid
	// NotFound: it is certain that the thing does not exist.
	NotFound
	// Conflict: somebody else has changed the thing meanwhile, or its state forbids the call now.
	Conflict
	// Timeout: no answer came in time. What was asked for may have happened.
	Timeout
)

// String returns the kind in words.
func (k Kind) String() string {
	switch k {
	case Invalid:
		return "invalid"
	case NotFound:
		return "not found"
	case Conflict:
		return "conflict"
	case Timeout:
		return "timeout"
	}
	return "unknown"
}

// Of returns the kind of the outermost classified error in err's chain. Errors of deadlines, the
// context's included, are Timeout.
func Of(err error) Kind {
	switch fleet.KindOf(err) {
	case fleet.KindInvalid:
		return Invalid
	case fleet.KindNotFound:
		return NotFound
	case fleet.KindConflict:
		return Conflict
	case fleet.KindTimeout:
		return Timeout
	}
	return Unknown
}
