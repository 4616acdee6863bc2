package postgres

import "context"

const PruneDefaultRows = pruneDefaultRows

// MigrateTo brings the schema to a version, as an older release would.
func (e *Engine) MigrateTo(ctx context.Context, version int64) error {
	p, err := e.migrations()
	if err == nil {
		_, err = p.UpTo(ctx, version)
	}
	return err
}
