package fleet

// CountedAtMost is how far a summary counts what may be as much as the fleet: 10,000 means so many
// or more. So what it costs to look at a fleet does not depend on how much is wrong with it.
const CountedAtMost = 10_000
