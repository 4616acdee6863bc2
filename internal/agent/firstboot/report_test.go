package firstboot

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// TestClockYearsBehind: a system whose clock is behind reports, too, because its token tells the
// time. Without that, the certificate is not valid yet.
func TestClockYearsBehind(t *testing.T) {
	t.Parallel()
	issued := time.Now().AddDate(1, 0, 0)
	p := newPlaneFrom(t, 0, issued)
	for _, made := range []*timestamppb.Timestamp{nil, timestamppb.New(issued.Add(time.Second))} {
		s := newSystem(t, p, "")
		s.token.MadeAt = made
		s.disk(t, "sdb", &agentv1.FirstBoot{Token: s.token})
		limit := 2 * firstRetry
		if made != nil {
			limit = time.Minute // it ends before
		}
		ctx, powerOff := context.WithTimeout(t.Context(), limit)
		err := s.runUntil(ctx)
		powerOff()
		if heard := p.calls() > 0; heard != (made != nil) {
			t.Errorf("made at %v: heard %v: %v", made.AsTime(), heard, err)
		}
	}
}
