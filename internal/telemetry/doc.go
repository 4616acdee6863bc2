// Package telemetry is how the control plane is watched: structured logs, and metrics for
// Prometheus.
//
// It promises that watching costs little and breaks nothing: observers only count, and never block;
// the numbers of the whole fleet are read from the database when somebody asks for them, at most
// once in a short while however many ask, under a timeout; when they cannot be read, the rest is
// served, and ironherd_fleet_up says 0. Labels come from small fixed sets: no metric has a series
// per machine.
//
// The log keys are the same everywhere: machine, provider, process, session, epoch, attempt, err.
package telemetry
