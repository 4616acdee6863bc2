//go:build !race

package rehearsal

// raceDetector: everything takes ten times as long.
const raceDetector = false
