// Package fleet is Ironherd's vocabulary as types: machines, the facts about them, processes and
// lanes, backoff, policy, and the closed set of error kinds.
//
// Nothing here does I/O, keeps state or reads a clock. Every value can be copied and stored. The
// package imports only the standard library and UUIDs, so that every other package may import it.
//
// All instants are database time (see package bmdb), in UTC, with microsecond resolution.
package fleet
