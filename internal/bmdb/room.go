package bmdb

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
)

// TryCommit commits a change that changes nothing, and needs no room. Its error says that nothing
// can be changed now.
func (db *DB) TryCommit(ctx context.Context) error {
	return db.update(ctx, "probe", func(ctx context.Context, t *transaction) error {
		_, err := t.q.LockListener(ctx)
		return err
	})
}

// CheckWritable is TryCommit, and asks for room where there may be none: a server whose disk is
// full goes on taking what needs none. Once a change of this process has found none, the database
// counts as full until something that needs room has found some.
func (db *DB) CheckWritable(ctx context.Context) error {
	full := db.full.Load()
	if full != nil {
		if err := db.findRoom(ctx); err != nil {
			return fmt.Errorf("probe: %w", err)
		}
	}
	err := db.TryCommit(ctx)
	if err == nil {
		db.full.CompareAndSwap(full, nil) // unless there was none again meanwhile
	}
	return err
}

// roomProbe is how many random bytes findRoom inserts. Rows leave free space of less than a page
// each, which a small insert would find on a full disk.
const roomProbe = 24 << 10

var errRoomFound = errors.New("there is room")

// findRoom inserts what makes a table grow, and takes it back.
func (db *DB) findRoom(ctx context.Context) error {
	filler := make([]byte, roomProbe)
	_, _ = rand.Read(filler) // it never fails
	err := db.engine.Update(ctx, func(ctx context.Context, tx Tx) error {
		// Nothing compresses what is random.
		err := statement.New(tx).InsertHistory(ctx, statement.InsertHistoryParams{
			Subject: "probe", At: micros(tx.Now()), Detail: base64.StdEncoding.EncodeToString(filler),
		})
		if err != nil {
			return err
		}
		return errRoomFound
	})
	if errors.Is(err, errRoomFound) {
		return nil
	}
	db.noteFull(err)
	return err
}

// noteFull keeps that there was no room for a change.
func (db *DB) noteFull(err error) {
	if errors.Is(err, ErrFull) {
		db.full.Store(&err)
	}
}
