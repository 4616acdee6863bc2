package fleet

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Rate is a token bucket: Burst tokens at most, refilled by one every Every. In text it is
// "250ms,8".
type Rate struct {
	Every time.Duration
	Burst int
}

// Valid says whether both parts are positive.
func (r Rate) Valid() bool { return r.Every > 0 && r.Burst > 0 }

// String returns the text form.
func (r Rate) String() string { return fmt.Sprintf("%s,%d", r.Every, r.Burst) }

// MarshalText returns the text form.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the text form: a positive duration, a comma, a positive number. The error is
// of kind Invalid.
func (r *Rate) UnmarshalText(text []byte) error {
	every, burst, _ := strings.Cut(string(text), ",")
	d, err := time.ParseDuration(strings.TrimSpace(every))
	n, errBurst := strconv.Atoi(strings.TrimSpace(burst))
	read := Rate{Every: d, Burst: n}
	if err != nil || errBurst != nil || !read.Valid() {
		return Errorf(KindInvalid, "%q is not a rate: write a positive duration, a comma and a positive number, such as 250ms,8", text)
	}
	*r = read
	return nil
}
