package watch_test

import (
	"context"
	"fmt"

	"github.com/ironherd/ironherd/reconciler/watch"
)

// Whoever is slow misses what was between, never what came last.
func ExampleMemory() {
	var releases watch.Memory[string]
	releases.Set("v1.0.0")
	releases.Set("v1.1.0")

	ctx, cancel := context.WithCancel(context.Background())
	seen := releases.Watch(ctx)
	fmt.Println(<-seen)
	releases.Set("v1.2.0")
	fmt.Println(<-seen)
	cancel()
	_, open := <-seen
	fmt.Println(open)
	// Output:
	// v1.1.0
	// v1.2.0
	// false
}
