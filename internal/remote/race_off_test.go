//go:build !race

package remote

// underRace: everything takes ten times as long.
const underRace = false
