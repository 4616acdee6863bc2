package release_test

import (
	"fmt"

	"github.com/ironherd/ironherd/reconciler/release"
)

// A build says whose base resources its API server works with, and which API servers work with its
// own.
func Example() {
	candidate, last := release.MustParse("1.30.0-rc.1"), release.MustParse("v1.30.0")
	fmt.Println(candidate, candidate.Less(last))

	build := release.Build{Release: candidate, MinReconciler: last, MinAPIServer: release.MustParse("v1.29.0")}
	fmt.Println(build.Validate())
	_, err := release.Parse("1.30")
	fmt.Println(err)
	// Output:
	// v1.30.0-rc.1 true
	// the minimum reconciler release v1.30.0 must not be above the release v1.30.0-rc.1
	// "1.30" is no release (three numbers are needed): write it as v1.2.3 or v1.2.3-rc.1
}
