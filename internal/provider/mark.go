package provider

import (
	"errors"
	"slices"

	"github.com/ironherd/ironherd/internal/fleet"
)

// The marks of errors. Each says what an error is about, whatever its kind and its words.
var (
	errOfCapacity = errors.New("about one piece of capacity")
	errUnsent     = errors.New("nothing was sent")
	errQueued     = errors.New("waited for its turn")
	errMoved      = errors.New("is there, and not ours")
	errPutOff     = errors.New("is not to be sent yet")
)

// marked is an error with marks.
type marked struct {
	error
	marks []error
}

// Unwrap returns the error itself.
func (m *marked) Unwrap() error { return m.error }

// Is reports whether the target is one of the marks.
func (m *marked) Is(target error) bool { return slices.Contains(m.marks, target) }

// mark puts marks on an error. Nil stays nil.
func mark(err error, marks ...error) error {
	if err == nil {
		return nil
	}
	return &marked{err, marks}
}

// BeforeSending marks an error of a call that failed before anything of it was sent: whatever its
// kind, the provider has done nothing. Nil stays nil. Whoever makes several calls in one must not
// pass the mark on once the first was sent.
func BeforeSending(err error) error { return mark(err, errUnsent) }

// NothingSent reports whether an error has the mark of BeforeSending.
func NothingSent(err error) bool { return errors.Is(err, errUnsent) }

// Queued marks an error of a call whose time was over while it waited for those in front of it. It
// says nothing of the provider. Nil stays nil.
func Queued(err error) error { return mark(err, errQueued) }

// WasQueued reports whether an error has the mark of Queued.
func WasQueued(err error) bool { return errors.Is(err, errQueued) }

// Moved marks an error of kind NotFound about a machine that the provider has elsewhere, out of our
// hands: it was not given back. Nil stays nil.
func Moved(err error) error { return mark(err, errMoved) }

// WasMoved reports whether an error has the mark of Moved.
func WasMoved(err error) bool { return errors.Is(err, errMoved) }

// OfCapacity marks an error of Create as one about the piece of capacity that was asked for: with
// another one, Create may succeed. Nil stays nil.
func OfCapacity(err error) error { return mark(err, errOfCapacity) }

// ConcernsCapacity reports whether a failed Create failed by the piece of capacity that was asked
// for. Without the mark of OfCapacity it did not: the configuration, the whole list or the provider
// failed, and any other piece of capacity would have had the same answer. The kinds RaceLost and
// NoCapacity say by themselves what they are about.
func ConcernsCapacity(err error) bool {
	kind := fleet.KindOf(err)
	return errors.Is(err, errOfCapacity) || kind == fleet.KindRaceLost || kind == fleet.KindNoCapacity
}
