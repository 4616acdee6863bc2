// Package clock is for hosts whose clock is wrong by years, because the battery of the hardware
// clock is empty and nothing has set it since. To such a host every certificate is not valid yet.
//
// The control plane puts its own time into the messages that an agent gets over a way that does not
// need certificates: SSH, and the disk. A host's clock that is behind that time counts as wrong;
// one that is ahead may be right, because the message may be old.
package clock

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// tolerance is how far the clocks of a host and of the control plane may be apart before an
// operator is told.
const tolerance = time.Hour

// farAhead is how far the clock of a host may be ahead before certificates that the control plane
// still uses may have expired by it: what common public ones have left when they are renewed.
const farAhead = 30 * 24 * time.Hour

// NotBefore returns a clock: that of the host, but where this is behind, the given time and what
// has passed since the call. Nil: the clock of the host.
func NotBefore(told *timestamppb.Timestamp) func() time.Time {
	start := time.Now()
	return func() time.Time {
		now := time.Now()
		if told == nil {
			return now
		}
		if least := told.AsTime().Add(now.Sub(start)); now.Before(least) {
			return least
		}
		return now
	}
}

// Warning says to an operator that the clock of the host is wrong, if it is far from the time that
// the control plane has told just now. Nil: it has told none.
func Warning(told *timestamppb.Timestamp) string {
	now := time.Now()
	if told == nil || now.Sub(told.AsTime()).Abs() < tolerance {
		return ""
	}
	const form = "2006-01-02 15:04"
	return fmt.Sprintf("the clock of this host says %s UTC, that of the control plane %s: set it, and have it kept right (NTP)",
		now.UTC().Format(form), told.AsTime().Format(form))
}

// FarAhead is an error where the clock of the host is so far ahead of the time that the control
// plane has told just now that an agent might never connect. Nil: it has told none. Which of the
// clocks is wrong cannot be seen.
func FarAhead(told *timestamppb.Timestamp) error {
	if told == nil || time.Since(told.AsTime()) <= farAhead {
		return nil
	}
	return errors.New("one of the clocks is wrong, and certificates may look expired in memory: " + Warning(told))
}
