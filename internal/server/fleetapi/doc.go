// Package fleetapi serves the operators' interface (api/fleet/v1): what the CLI, the web page and
// automation use.
//
// It promises:
//
//   - Reading is for callers that may read, changing for those that may write (package server
//     decides who that is); a refusal says what is missing. Every change is recorded in the history
//     with its actor.
//   - What is shown of a machine's future comes from lifecycle.Decide over facts read in one
//     snapshot, as everywhere else.
//   - Requests are checked before anything is read: an error names the field and says what is
//     accepted.
//   - An error's code is that of its kind (server.Status). What nobody classified is logged here
//     and told without details.
//   - Answers are bounded: lists come in pages by key, histories with a limit.
package fleetapi
