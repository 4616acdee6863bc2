// Package telemetry is how the control plane is watched: structured logs, and metrics for
// Prometheus.
//
// It promises:
//
//   - Observers count, and never block.
//   - The numbers of the whole fleet are read from the database when somebody asks for them: at
//     most once in two seconds, however many ask, and with a timeout. When they cannot be read,
//     ironherd_fleet_up is 0 and the other metrics are served.
//   - A terminal acts on nothing that is logged: a host's words are shown as text.
//   - Labels come from small fixed sets. No metric has a series for each machine.
//
// The log keys are the same everywhere: machine, provider, process, session, epoch, attempt, err.
package telemetry
