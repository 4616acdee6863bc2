// Package process runs the real programs in end-to-end tests: `ironherd sim` and `ironherd serve`
// as processes of their own, which a test may kill at any moment.
//
// Every process dies with the one that started it. The package keeps the end of each process's
// output for the report of a failure.
package process
