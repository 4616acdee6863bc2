// Package cli is the program `ironherd`: one file per command.
//
// It promises:
//
//   - Data, and what was done, go to standard output; everything else (progress, notes, errors)
//     goes to standard error.
//   - Every failure is told in one clear sentence that names the thing and, where there is one, the
//     remedy; and by its exit code: 0 done, 1 failed, 2 bad usage or input, 3 not found, 4 not
//     allowed, 5 conflict, 6 partly done, 7 unreachable or timed out, 130 interrupted.
//   - What is printed with -o json or -o yaml has the names of api/fleet/v1's JSON form.
//   - The fleet is reached through api/fleet/v1 only. Commands that work on the database itself (db
//     …) go through package daemon. They have an embedded database alone while they run, but for
//     db backup, beside which a control plane may run. PostgreSQL they share. There db
//     accept-authority and db copy refuse while a control plane runs.
//
// Nothing here reads the process's environment, arguments or streams: they come in Env, so that
// tests run whole commands.
package cli
