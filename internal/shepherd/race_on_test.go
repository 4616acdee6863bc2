//go:build race

package shepherd_test

// raceDetector: everything takes ten times as long.
const raceDetector = true
