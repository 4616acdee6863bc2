package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Kind classifies an error by what its receiver can do about it. The set is closed; each edge of
// the system has one total table from kinds to its own codes (gRPC and HTTP in package server, exit
// codes in package cli).
type Kind int

// The kinds.
const (
	// KindUnknown is any error that nobody classified. It never means that something does not exist.
	KindUnknown Kind = iota
	// KindInvalid: the request or the input is wrong; the same request will fail again.
	KindInvalid
	// KindNotFound: it is known for certain that the thing does not exist.
	KindNotFound
	// KindConflict: the state of the thing does not allow the request now.
	KindConflict
	// KindUnauthenticated: the credential is missing or wrong.
	KindUnauthenticated
	// KindForbidden: the credential does not allow it.
	KindForbidden
	// KindUnsupported: this provider, machine or build cannot do it.
	KindUnsupported
	// KindThrottled: asked too often; RetryAfter may say how long to wait.
	KindThrottled
	// KindNoCapacity: the provider has nothing free of what was asked for.
	KindNoCapacity
	// KindRaceLost: somebody else got the piece of capacity.
	KindRaceLost
	// KindTemporary: a failure that is expected to pass.
	KindTemporary
	// KindTimeout: no answer in time. What was asked for may have happened.
	KindTimeout
	// KindLeaseLost: the work is no longer the caller's. Nothing was changed.
	KindLeaseLost
	// KindInUse: the database, port or file is held by another process.
	KindInUse
)

// Kinds lists every kind, so that tables over kinds can be checked for completeness.
func Kinds() []Kind {
	kinds := make([]Kind, 0, KindInUse+1)
	for k := KindUnknown; k <= KindInUse; k++ {
		kinds = append(kinds, k)
	}
	return kinds
}

var kindNames = [...]string{
	"unknown", "invalid", "not found", "conflict", "unauthenticated", "forbidden", "unsupported", "throttled",
	"no capacity", "race lost", "temporary", "timeout", "lease lost", "in use",
}

// String returns the kind in words.
func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("Kind(%d)", int(k))
	}
	return kindNames[k]
}

// ErrLeaseLost is returned by every commit whose session has ended or whose epoch is no longer the
// lane's.
var ErrLeaseLost = &Error{Kind: KindLeaseLost, Message: "the work is no longer ours"}

// Error is an error of a known kind.
type Error struct {
	Kind Kind
	// Message is one clause for a person, without the text of Err.
	Message string
	// RetryAfter is how long to wait before asking again; zero when nobody said. Only with
	// KindThrottled and KindTemporary.
	RetryAfter time.Duration
	// Err is the cause; may be nil.
	Err error
}

// Error returns the message, then the cause.
func (e *Error) Error() string {
	switch {
	case e.Err == nil:
		return e.Message
	case e.Message == "":
		return e.Err.Error()
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports ErrLeaseLost for every error of its kind, and os.ErrDeadlineExceeded for every
// timeout.
func (e *Error) Is(target error) bool {
	return target == error(ErrLeaseLost) && e.Kind == KindLeaseLost ||
		target == os.ErrDeadlineExceeded && e.Kind == KindTimeout
}

// Errorf returns an error of the kind; the format works as in fmt.Errorf, %w included.
func Errorf(kind Kind, format string, args ...any) error {
	return &Error{Kind: kind, Err: fmt.Errorf(format, args...)}
}

// KindOf returns the kind of the outermost classified error in err's chain. The context's and the
// system's deadline errors are KindTimeout; anything else is KindUnknown, nil included.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return KindTimeout
	}
	return KindUnknown
}

// Split takes apart what errors.Join has joined, however often; nil has no parts. An error with
// words of its own, which wraps several, is one part.
func Split(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // not what an error wraps
	if !ok || errors.Join(joined.Unwrap()...).Error() != err.Error() {
		return []error{err}
	}
	var all []error
	for _, part := range joined.Unwrap() {
		all = append(all, Split(part)...)
	}
	return all
}

// RetryAfter returns how long the failed party asked to be left alone; zero when it did not say.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}
