package server

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Status is the pair of codes that one kind of error has on the wire.
type Status struct {
	GRPC codes.Code
	HTTP int
}

// Connect returns the same code for Connect, whose codes are gRPC's.
func (s Status) Connect() connect.Code { return connect.Code(s.GRPC) }

// statuses is total over fleet.Kinds; a test holds it to that.
var statuses = map[fleet.Kind]Status{
	fleet.KindUnknown:         {codes.Internal, http.StatusInternalServerError},
	fleet.KindInvalid:         {codes.InvalidArgument, http.StatusBadRequest},
	fleet.KindNotFound:        {codes.NotFound, http.StatusNotFound},
	fleet.KindConflict:        {codes.FailedPrecondition, http.StatusConflict},
	fleet.KindUnauthenticated: {codes.Unauthenticated, http.StatusUnauthorized},
	fleet.KindForbidden:       {codes.PermissionDenied, http.StatusForbidden},
	fleet.KindUnsupported:     {codes.Unimplemented, http.StatusNotImplemented},
	fleet.KindThrottled:       {codes.ResourceExhausted, http.StatusTooManyRequests},
	fleet.KindNoCapacity:      {codes.ResourceExhausted, http.StatusInsufficientStorage},
	fleet.KindRaceLost:        {codes.Aborted, http.StatusConflict},
	fleet.KindTemporary:       {codes.Unavailable, http.StatusServiceUnavailable},
	fleet.KindTimeout:         {codes.DeadlineExceeded, http.StatusGatewayTimeout},
	fleet.KindLeaseLost:       {codes.Aborted, http.StatusConflict},
	fleet.KindInUse:           {codes.Unavailable, http.StatusLocked},
}

// StatusOf returns the status of err's kind. An unknown error that is context.Canceled says that
// the caller went away, not that this server failed.
func StatusOf(err error) Status {
	if fleet.KindOf(err) == fleet.KindUnknown && errors.Is(err, context.Canceled) {
		return Status{GRPC: codes.Canceled, HTTP: 499}
	}
	return statuses[fleet.KindOf(err)]
}

// Message returns what a caller may be told of err: everything where somebody classified it, and
// for an unknown error only that something failed here, because its text was written for the log.
func Message(err error) string {
	if StatusOf(err).GRPC == codes.Internal {
		return "something failed in the control plane; its log says what"
	}
	return err.Error()
}
