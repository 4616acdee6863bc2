package failure_test

import (
	"fmt"

	"github.com/ironherd/ironherd/reconciler/failure"
	"github.com/ironherd/ironherd/reconciler/node"
	"github.com/ironherd/ironherd/reconciler/release"
)

func Example() {
	_, err := release.Parse("v1.2")
	fmt.Println(failure.Of(fmt.Errorf("read the flags: %w", err)))
	fmt.Println(failure.Of(node.CheckName("Control 1")))
	fmt.Println(failure.Of(nil))
	// Output:
	// invalid
	// invalid
	// unknown
}
