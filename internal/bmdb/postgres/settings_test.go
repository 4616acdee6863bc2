package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/test/pgserver"
)

// TestTransactionsSayWhatTheyNeed: rules 1 and 4 need READ COMMITTED, whatever is the default of
// the database, and who waits for a lock, or holds it without a word, ends before a lease does.
func TestTransactionsSayWhatTheyNeed(t *testing.T) {
	t.Parallel()
	url, name := own(t)
	err := pgserver.Shared(t).Exec(t.Context(), name,
		"ALTER DATABASE "+name+" SET default_transaction_isolation = 'repeatable read'",
		"ALTER DATABASE "+name+" SET default_transaction_read_only = 'on'")
	if err != nil {
		t.Fatal(err)
	}
	e := open(t, url, postgres.Options{Silent: true, Lease: 10 * time.Second})
	defer func() { _ = e.Close() }()
	for kind, run := range map[string]func(context.Context, func(context.Context, bmdb.Tx) error) error{"update": e.Update, "extension": e.Extend} {
		err := run(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
			for setting, want := range map[string]string{
				"transaction_isolation": "read committed", "transaction_read_only": "off",
				"lock_timeout": "4s", "idle_in_transaction_session_timeout": "6s",
			} {
				var is string
				if err := tx.QueryRowContext(ctx, "SELECT current_setting($1)", setting).Scan(&is); err != nil {
					return err
				}
				if is != want {
					t.Errorf("%s: %s is %q, want %q", kind, setting, is, want)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
