//go:build race

package install

// raceDetector: everything takes ten times as long.
const raceDetector = true
