package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
)

func TestStatusIsTotal(t *testing.T) {
	t.Parallel()
	for _, kind := range fleet.Kinds() {
		s := server.StatusOf(fmt.Errorf("wrapped: %w", fleet.Errorf(kind, "why")))
		if s.GRPC == codes.OK || s.HTTP < 400 || s.HTTP > 599 {
			t.Errorf("kind %s has status %+v", kind, s)
		}
		if unknown := s.GRPC == codes.Internal; unknown != (kind == fleet.KindUnknown) {
			t.Errorf("kind %s is told as %s", kind, s.GRPC)
		}
		if s.Connect().String() == "" || uint32(s.Connect()) != uint32(s.GRPC) {
			t.Errorf("kind %s: Connect says %s, gRPC %s", kind, s.Connect(), s.GRPC)
		}
	}
}

func TestMessageKeepsWhatNobodyClassified(t *testing.T) {
	t.Parallel()
	if m := server.Message(errors.New("pq: password is hunter2")); strings.Contains(m, "hunter2") {
		t.Errorf("told a caller: %s", m)
	}
	if m := server.Message(fleet.Errorf(fleet.KindInvalid, "page_size is wrong")); m != "page_size is wrong" {
		t.Errorf("got %q", m)
	}
	if s := server.StatusOf(fmt.Errorf("read: %w", context.Canceled)); s.GRPC != codes.Canceled {
		t.Errorf("a caller that went away gets %s", s.GRPC)
	}
}
