// Package arch holds no code, only tests on the source of the whole module: the import tables of
// ARCHITECTURE.md, a comment on every package, and the calls that only a main package may make. The
// tests read the very tables that people read.
package arch
