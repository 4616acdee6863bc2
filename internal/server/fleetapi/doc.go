// Package fleetapi serves the operators' API (api/fleet/v1), which the CLI, the web page and
// automation use.
//
// It promises:
//
//   - Reading is for callers that may read, changing for those that may write (package server
//     decides who that is); a refusal says what is missing. Every change is recorded in the history
//     with its actor.
//   - A caller is authorized by the headers of a request before its body is read.
//   - A machine on its own is judged at the instant of the call, by lifecycle.Decide over facts
//     read in one snapshot. A list shows what was decided when the machine was last judged.
//   - Requests are checked before anything is read: an error names the field and says what is
//     accepted.
//   - An error's code is that of its kind (server.Status). An error that nobody classified is
//     logged here, and the caller gets it without details.
//   - Few questions ask the database at a time, and fewer of one actor. So whoever asks many waits
//     for themselves, and neither agents, loops nor other callers wait for them. A question that
//     waits too long is not answered, and says so. Of plans for several machines one is worked out
//     at a time, and one that stops something: neither keeps questions or the other waiting.
//     Whatever else changes something waits for no turn.
//   - Answers are bounded: lists come in pages by key, histories with a limit.
package fleetapi
