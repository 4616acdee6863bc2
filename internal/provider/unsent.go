package provider

import "errors"

// unsentError is an error of a call of which nothing was sent.
type unsentError struct{ error }

// Unwrap returns the error itself.
func (e *unsentError) Unwrap() error { return e.error }

// BeforeSending marks an error of a call that failed before anything of it was sent: whatever its
// kind, the provider has done nothing. Nil stays nil. Whoever makes several calls in one must not
// pass the mark on once the first was sent.
func BeforeSending(err error) error {
	if err == nil {
		return nil
	}
	return &unsentError{err}
}

// NothingSent reports whether an error has the mark of BeforeSending.
func NothingSent(err error) bool {
	_, marked := errors.AsType[*unsentError](err)
	return marked
}
