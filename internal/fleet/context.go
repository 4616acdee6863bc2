package fleet

import (
	"context"
	"errors"
	"fmt"
)

// ContextError returns why ctx ended, such that errors.Is finds both the context's own error and
// its cause. Nil while ctx goes on.
func ContextError(ctx context.Context) error {
	own, cause := ctx.Err(), context.Cause(ctx)
	if own == nil || errors.Is(cause, own) {
		return cause
	}
	return fmt.Errorf("%w: %w", own, cause)
}
