package live

import (
	"context"
	"time"
)

type nowKey struct{}

// CountFrom returns a context under which fragments are rendered for a page: with times counted
// from now. Without it they are rendered with absolute times, as they are hashed and sent.
func CountFrom(ctx context.Context, now time.Time) context.Context {
	return context.WithValue(ctx, nowKey{}, now)
}

// Now returns the instant to count from, and false where times are absolute.
func Now(ctx context.Context) (time.Time, bool) {
	now, ok := ctx.Value(nowKey{}).(time.Time)
	return now, ok
}
