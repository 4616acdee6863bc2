package fleet

import "time"

// Instant writes when something was, or will be, in a sentence for people. Who reads it may be in
// any time zone and read it on another day, so it has its date and says that it is UTC.
func Instant(t time.Time) string { return t.UTC().Format(time.DateTime + " UTC") }
