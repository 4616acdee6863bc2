package provider

import (
	"context"
	"time"
)

type askedSinceKey struct{}

// WithAskedFor returns a context for questions whether a machine is there still, which have been
// asked for so long, perhaps again and again. A provider that remembers what lists have said does
// not answer them by a list that it began before that: the machine may have come back since. Zero:
// the question is new. Database time is no time of this host, so the age is given.
func WithAskedFor(ctx context.Context, age time.Duration) context.Context {
	return context.WithValue(ctx, askedSinceKey{}, time.Now().Add(-max(age, 0)))
}

// AskedSince returns since when the question has been asked; zero where nobody has said it.
func AskedSince(ctx context.Context) time.Time {
	since, _ := ctx.Value(askedSinceKey{}).(time.Time)
	return since
}
