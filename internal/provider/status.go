package provider

import (
	"net/http"
	"strconv"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// KindOfStatus returns the kind of error that an HTTP status stands for, where the provider has no
// more precise meaning of it.
func KindOfStatus(status int) fleet.Kind {
	switch status {
	case http.StatusUnauthorized:
		return fleet.KindUnauthenticated
	case http.StatusForbidden:
		return fleet.KindForbidden
	case http.StatusNotFound:
		return fleet.KindNotFound
	case http.StatusGone: // of an API that was retired, which says nothing of what was asked for
		return fleet.KindUnknown
	case http.StatusConflict, http.StatusPreconditionFailed, http.StatusLocked:
		return fleet.KindConflict
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return fleet.KindUnsupported
	case http.StatusTooManyRequests:
		return fleet.KindThrottled
	case http.StatusRequestTimeout, http.StatusTooEarly:
		return fleet.KindTemporary
	}
	switch {
	case status >= 500:
		return fleet.KindTemporary
	case status >= 400:
		return fleet.KindInvalid
	}
	return fleet.KindUnknown
}

const (
	// maximumRetryAfter is the longest pause that a provider can ask for with 429.
	maximumRetryAfter = time.Hour
	// maximumOutage is the longest with another status: a page of any proxy must not stop all calls.
	maximumOutage = time.Minute
)

// RetryAfter returns how long a pause an answer asks for: Retry-After in seconds or as a date (RFC
// 9110, section 10.2.3), with status 429 and from 500 on. A date counts from the time of the answer
// by the provider's own clock, where it says that (Date): ours may be another. It is an hour at
// most with 429, else a minute, and zero when the answer asks for none or makes no sense. A 429
// without Retry-After asks for a pause until X-RateLimit-Reset, in seconds of Unix, which is a
// minute at most.
func RetryAfter(status int, header http.Header) time.Duration {
	if status != http.StatusTooManyRequests && status < 500 {
		return 0
	}
	value, date := header.Get("Retry-After"), header.Get("Date")
	if status != http.StatusTooManyRequests {
		return min(retryAfterHeader(value, date), maximumOutage)
	}
	if reset, err := strconv.ParseInt(header.Get("X-RateLimit-Reset"), 10, 64); value == "" && err == nil {
		return min(until(time.Unix(reset, 0), date), maximumOutage)
	}
	return min(retryAfterHeader(value, date), maximumRetryAfter)
}

func retryAfterHeader(value, date string) time.Duration {
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil {
		return time.Duration(min(max(seconds, 0), int64(maximumRetryAfter/time.Second))) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return until(at, date)
}

// until is how far an instant is from the provider's time, where it says that, else from ours.
func until(at time.Time, date string) time.Duration {
	now, err := http.ParseTime(date)
	if err != nil {
		now = time.Now()
	}
	return max(at.Sub(now), 0)
}
