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
	case http.StatusNotFound, http.StatusGone:
		return fleet.KindNotFound
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

// maximumRetryAfter is the longest pause that a provider can ask for.
const maximumRetryAfter = time.Hour

// RetryAfter returns how long a pause an answer asks for: Retry-After in seconds or as a date (RFC
// 9110, section 10.2.3), with status 429 and from 500 on. A date counts from the time of the answer
// by the provider's own clock, where it says that (Date): ours may be another. It is an hour at
// most, and zero when the answer asks for none or makes no sense.
func RetryAfter(status int, header http.Header) time.Duration {
	if status != http.StatusTooManyRequests && status < 500 {
		return 0
	}
	return min(retryAfterHeader(header.Get("Retry-After"), header.Get("Date")), maximumRetryAfter)
}

func retryAfterHeader(value, date string) time.Duration {
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil {
		return time.Duration(min(max(seconds, 0), int64(maximumRetryAfter/time.Second))) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(date)
	if err != nil {
		now = time.Now()
	}
	return max(at.Sub(now), 0)
}
