package fleetapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestWhoIsCutOffLearnsWhy: a stop is told as that, a caller who has left fills no log, and whoever
// is told that the log says what has failed finds it there.
func TestWhoIsCutOffLearnsWhy(t *testing.T) {
	t.Parallel()
	stopped := fleet.Errorf(fleet.KindTemporary, "it is being stopped")
	cancelled := fmt.Errorf("summary: %w", context.Canceled)
	for name, c := range map[string]struct {
		cause, err error
		code       connect.Code
		told       string
		logged     bool
	}{
		"cut off by a stop":           {stopped, cancelled, connect.CodeUnavailable, "it is being stopped", false},
		"has left":                    {context.Canceled, cancelled, connect.CodeCanceled, "summary: context canceled", false},
		"something else was canceled": {nil, cancelled, connect.CodeCanceled, "summary: context canceled", true},
		"failed during a stop":        {stopped, errors.New("no such table"), connect.CodeInternal, "its log says what", true},
		"refused during a stop":       {stopped, fleet.Errorf(fleet.KindInvalid, "a bad name"), connect.CodeInvalidArgument, "a bad name", false},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		if c.cause != nil {
			cancel(c.cause)
		}
		var log bytes.Buffer
		s := New(nil, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		err := s.fail(ctx, c.err)
		cancel(nil)
		if connect.CodeOf(err) != c.code || !strings.HasSuffix(err.Error(), c.told) {
			t.Errorf("%s: %v", name, err)
		}
		if logged := log.Len() > 0; logged != c.logged {
			t.Errorf("%s: the log has %q", name, &log)
		}
	}
}
