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

// queuedError is an error of a call that had no chance in its time, because others were in front of
// it.
type queuedError struct{ error }

// Unwrap returns the error itself.
func (e *queuedError) Unwrap() error { return e.error }

// Queued marks an error of a call whose time was over while it waited for those in front of it. It
// says nothing of the provider. Nil stays nil.
func Queued(err error) error {
	if err == nil {
		return nil
	}
	return &queuedError{err}
}

// WasQueued reports whether an error has the mark of Queued.
func WasQueued(err error) bool {
	_, marked := errors.AsType[*queuedError](err)
	return marked
}

// NothingSent reports whether an error has the mark of BeforeSending.
func NothingSent(err error) bool {
	_, marked := errors.AsType[*unsentError](err)
	return marked
}
