package provider

import (
	"context"
	"errors"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

type beforeSendKey struct{}

// WithBeforeSend returns a context for calls. The transport calls before in front of each of their
// requests, after pacing, so that the request is sent next. An error from before stops the call,
// which returns it wrapped and sends nothing. One of PutOff lets other calls go first.
func WithBeforeSend(ctx context.Context, before func(context.Context) error) context.Context {
	return context.WithValue(ctx, beforeSendKey{}, before)
}

// BeforeSend calls what WithBeforeSend has put into the context of a call.
func BeforeSend(ctx context.Context) error {
	if before, ok := ctx.Value(beforeSendKey{}).(func(context.Context) error); ok {
		return before(ctx)
	}
	return nil
}

// WithBeforeFirstSend is WithBeforeSend for calls that send several requests: once before has let
// one be sent, it is not called any more. A power cycle that has turned a machine off goes on.
func WithBeforeFirstSend(ctx context.Context, before func(context.Context) error) context.Context {
	begun := false
	return WithBeforeSend(ctx, func(ctx context.Context) error {
		if begun {
			return nil
		}
		err := before(ctx)
		begun = err == nil
		return err
	})
}

// PutOff is an error of who is asked before a request is sent: it is not to be sent for so long.
// The call gives its place to others meanwhile. Then it waits for its turn again, and asks again.
func PutOff(wait time.Duration) error {
	return mark(&fleet.Error{Kind: fleet.KindThrottled, Message: "it is not to be sent yet", RetryAfter: wait}, errPutOff)
}

// PutOffBy returns for how long an error of PutOff puts a request off, if it is one.
func PutOffBy(err error) (wait time.Duration, off bool) {
	return fleet.RetryAfter(err), errors.Is(err, errPutOff)
}
