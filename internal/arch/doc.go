// Package arch holds no code, only tests on the repository as a whole:
//
//   - the import tables of ARCHITECTURE.md, which are the very tables that people read;
//   - a comment on every package, and the calls that only a main package may make;
//   - the size of files and functions, and the width of comments;
//   - docs/invariants.md: it defines each number that is cited, and lists what holds it;
//   - links that lead somewhere, and no sentence that leans on a page outside of the repository.
package arch
