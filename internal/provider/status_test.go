package provider

import (
	"net/http"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// TestRetryAfterForms: a date is one of the provider's clock, however far that is from ours.
func TestRetryAfterForms(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		at := func(later time.Duration) string { return time.Now().Add(later).UTC().Format(http.TimeFormat) }
		unix := func(later time.Duration) string { return strconv.FormatInt(time.Now().Add(later).Unix(), 10) }
		for _, test := range []struct {
			status int
			header []string
			want   time.Duration
		}{
			{429, []string{"Retry-After", "7"}, 7 * time.Second},
			{503, []string{"Retry-After", at(9 * time.Second)}, 9 * time.Second},
			{429, []string{"Retry-After", at(2 * time.Second), "Date", at(0)}, 2 * time.Second},
			{429, []string{"Retry-After", at(20*time.Minute + 2*time.Second), "Date", at(20 * time.Minute)}, 2 * time.Second},
			{429, []string{"Retry-After", at(-10 * time.Minute), "Date", at(-20 * time.Minute)}, 10 * time.Minute},
			{429, []string{"Retry-After", at(-time.Minute), "Date", at(0)}, 0},
			{429, []string{"Retry-After", at(2 * time.Second), "Date", "today"}, 2 * time.Second},
			{429, []string{"Retry-After", "7", "Date", at(time.Hour)}, 7 * time.Second},
			{429, []string{"Retry-After", "-5"}, 0},
			{429, []string{"Retry-After", "99999999999999"}, time.Hour},
			{429, []string{"Retry-After", "soon"}, 0},
			{503, []string{"Retry-After", "3600"}, time.Minute},
			{500, []string{"Retry-After", at(time.Hour), "Date", at(0)}, time.Minute},
			{429, []string{"X-RateLimit-Reset", unix(9 * time.Second), "Date", at(0)}, 9 * time.Second},
			{429, []string{"X-RateLimit-Reset", unix(20*time.Minute + 2*time.Second), "Date", at(20 * time.Minute)}, 2 * time.Second},
			{429, []string{"X-RateLimit-Reset", unix(9 * time.Second)}, 9 * time.Second},
			{429, []string{"X-RateLimit-Reset", unix(time.Hour), "Date", at(0)}, time.Minute},
			{429, []string{"X-RateLimit-Reset", unix(-time.Second), "Date", at(0)}, 0},
			{429, []string{"X-RateLimit-Reset", "9", "Date", at(0)}, 0},
			{429, []string{"X-RateLimit-Reset", "soon"}, 0},
			{429, []string{"X-RateLimit-Reset", unix(9 * time.Second), "Retry-After", "7"}, 7 * time.Second},
			{503, []string{"X-RateLimit-Reset", unix(9 * time.Second), "Date", at(0)}, 0},
			{200, []string{"Retry-After", "7"}, 0},
			{404, []string{"Retry-After", "7"}, 0},
		} {
			header := http.Header{}
			for pair := range slices.Chunk(test.header, 2) {
				header.Set(pair[0], pair[1])
			}
			if got := RetryAfter(test.status, header); got != test.want {
				t.Errorf("%d %v: %s, want %s", test.status, test.header, got, test.want)
			}
		}
	})
}
