package bmdbtest

import (
	"context"
	"errors"
	"sync"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

var errUndo = errors.New("undo")

// putPenalty is some write.
func putPenalty(ctx context.Context, tx bmdb.Tx, capacity string) error {
	_, err := statement.New(tx).PutPenalty(ctx, statement.PutPenaltyParams{Provider: "x", Capacity: capacity, Until: 1 << 60, Cause: "c"})
	return err
}

func (w *world) penalties() map[string]bool {
	w.Helper()
	got := make(map[string]bool)
	w.must(w.shift.View(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
		rows, err := statement.New(tx).ListPenalties(ctx, statement.ListPenaltiesParams{Provider: "x", Now: 0})
		for _, r := range rows {
			got[r.Capacity] = true
		}
		return err
	}))
	return got
}

var engineTests = []test{
	{"an error undoes its own transaction and no other", func(w *world) {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				err := w.shift.Update(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
					if err := putPenalty(ctx, tx, string(rune('A'+i))); err != nil {
						return err
					}
					if i%2 == 1 {
						return errUndo
					}
					return nil
				})
				if (i%2 == 1) != errors.Is(err, errUndo) {
					w.Errorf("transaction %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		if got := w.penalties(); len(got) != 25 || got["B"] || !got["A"] {
			w.Fatalf("%d rows", len(got))
		}
	}},
	{"a panic undoes its own transaction and happens to its caller", func(w *world) {
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				defer func() {
					if p := recover(); (p != nil) != (i == 3) {
						w.Errorf("transaction %d: panic %v", i, p)
					}
				}()
				_ = w.shift.Update(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
					if err := putPenalty(ctx, tx, string(rune('A'+i))); err != nil {
						return err
					}
					if i == 3 {
						panic("on purpose")
					}
					return nil
				})
			})
		}
		wg.Wait()
		if got := w.penalties(); len(got) != 9 || got["D"] {
			w.Fatalf("%v", got)
		}
	}},
	{"a statement that fails does not spoil the transaction of others", func(w *world) {
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				err := w.shift.Update(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
					if err := putPenalty(ctx, tx, string(rune('A'+i))); err != nil {
						return err
					}
					if i == 3 {
						_, err := tx.ExecContext(ctx, "INSERT INTO policy (number, at, body) VALUES (1, 1, '')")
						return err
					}
					return nil
				})
				if (err != nil) != (i == 3) {
					w.Errorf("transaction %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		if got := w.penalties(); len(got) != 9 || got["D"] {
			w.Fatalf("%v", got)
		}
	}},
	{"a context that is over does nothing", func(w *world) {
		ctx, cancel := context.WithCancel(w.ctx)
		cancel()
		if err := w.shift.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error { return putPenalty(ctx, tx, "a") }); err == nil {
			w.Fatal("no error")
		}
		ctx, cancel = context.WithCancel(w.ctx)
		err := w.shift.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error {
			if err := putPenalty(ctx, tx, "b"); err != nil {
				return err
			}
			cancel()
			return putPenalty(ctx, tx, "c")
		})
		if !errors.Is(err, context.Canceled) {
			w.Fatalf("error %v", err)
		}
		if got := w.penalties(); len(got) != 0 {
			w.Fatalf("%v", got)
		}
	}},
	{"a view reads one snapshot and writes nothing", func(w *world) {
		w.must(w.shift.View(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
			q := statement.New(tx)
			before, err := q.ListPenalties(ctx, statement.ListPenaltiesParams{Provider: "x"})
			if err != nil {
				return err
			}
			if err := w.shift.Update(w.ctx, func(ctx context.Context, tx bmdb.Tx) error { return putPenalty(ctx, tx, "a") }); err != nil {
				return err
			}
			after, err := q.ListPenalties(ctx, statement.ListPenaltiesParams{Provider: "x"})
			if len(before) != 0 || len(after) != 0 {
				w.Errorf("%d rows, then %d", len(before), len(after))
			}
			return err
		}))
		err := w.shift.View(w.ctx, func(ctx context.Context, tx bmdb.Tx) error { return putPenalty(ctx, tx, "b") })
		if err == nil {
			w.Fatal("a view wrote")
		}
	}},
	{"time never goes back", func(w *world) {
		last := w.now()
		for range 100 {
			now := w.now()
			if now.Before(last) || now.Nanosecond()%1000 != 0 {
				w.Fatalf("%s after %s", now, last)
			}
			last = now
		}
	}},
	{"migrating what is current changes nothing", func(w *world) {
		w.machine("c1")
		w.must(w.shift.Migrate(w.ctx))
		have, want, err := w.shift.Schema(w.ctx)
		w.must(err)
		if have != want || have == 0 {
			w.Fatalf("schema %d, want %d", have, want)
		}
	}},
	{"a provider keeps its kind", func(w *world) {
		w.wantKind(w.db.RegisterProvider(w.ctx, provider, "other", 0), fleet.KindConflict)
		w.must(w.db.RegisterProvider(w.ctx, provider, "test", 9))
	}},
}
