package fleet

import "strconv"

// CountedAtMost is how far a summary counts what may be as much as the fleet: 10,000 means so many
// or more. So what it costs to look at a fleet does not depend on how much is wrong with it.
const CountedAtMost = 10_000

// Counted writes a number that is counted up to CountedAtMost.
func Counted(n int64) string {
	text := strconv.FormatInt(n, 10)
	if n < CountedAtMost {
		return text
	}
	return text + "+"
}
