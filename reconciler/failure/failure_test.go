package failure_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/failure"
)

// Every kind that the comments of public packages name has one of the same name here; no other
// error is taken for one of them.
func TestOf(t *testing.T) {
	t.Parallel()
	known := map[fleet.Kind]failure.Kind{
		fleet.KindInvalid: failure.Invalid, fleet.KindNotFound: failure.NotFound,
		fleet.KindConflict: failure.Conflict, fleet.KindTimeout: failure.Timeout,
	}
	for _, kind := range fleet.Kinds() {
		err := fmt.Errorf("around: %w", fleet.Errorf(kind, "inside"))
		if got := failure.Of(err); got != known[kind] {
			t.Errorf("an error of kind %q is %q", kind, got)
		}
		if of, ok := known[kind]; ok && of.String() != kind.String() {
			t.Errorf("kind %q is called %q", kind, of)
		}
	}
	for err, want := range map[error]failure.Kind{
		context.DeadlineExceeded: failure.Timeout,
		errors.New("anything"):   failure.Unknown,
		fleet.Errorf(fleet.KindTimeout, "%w", fleet.Errorf(fleet.KindConflict, "inside")): failure.Timeout,
	} {
		if got := failure.Of(err); got != want {
			t.Errorf("%v is %q, not %q", err, got, want)
		}
	}
}
