// Package process starts the real programs for end-to-end tests: `ironherd sim` and `ironherd
// serve` as processes of their own, which may be killed at any moment.
//
// Whatever it starts dies with the process that started it. Output is kept, bounded, for the report
// of a failure.
package process
