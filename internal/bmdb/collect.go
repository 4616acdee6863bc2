package bmdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Why sessions end that nobody closes.
const (
	causeOverdue  = "not extended in time"
	causeReopened = "its process is gone: the database was opened anew"
)

// CollectSessions ends the sessions whose deadline has passed and frees what ended sessions hold.
// Called by the janitor; claims do the same for the sessions that are in their way.
func (db *DB) CollectSessions(ctx context.Context) (ended int, err error) {
	overdue, err := read(ctx, db.view, "overdue sessions", func(ctx context.Context, t *transaction) ([]string, error) {
		return t.q.ListOverdueSessions(ctx, micros(t.Now()))
	})
	if err != nil {
		return 0, fmt.Errorf("list overdue sessions: %w", err)
	}
	_, err = eachFree(overdue, "end session", func(id string) error {
		did, err := db.endSession(ctx, fleet.SessionID(id), causeOverdue, true)
		if did {
			ended++
			db.logger.InfoContext(ctx, "session ended", slog.String("session", id), slog.String("cause", causeOverdue))
		}
		return err
	})
	return ended, errors.Join(err, db.freeAbandoned(ctx))
}

// endAllSessions is for an engine that only one process can have open: whoever is left in it is
// dead.
func (db *DB) endAllSessions(ctx context.Context) error {
	live, err := read(ctx, db.view, "live sessions", func(ctx context.Context, t *transaction) ([]statement.Session, error) {
		return t.q.ListLiveSessions(ctx)
	})
	if err != nil {
		return err
	}
	for _, s := range live {
		if _, err := db.endSession(ctx, fleet.SessionID(s.ID), causeReopened, false); err != nil {
			return err
		}
	}
	return db.freeAbandoned(ctx)
}

// freeBatch is how many subjects one transaction frees.
const freeBatch = 50

// freeAbandoned frees what sessions hold that have ended, in small transactions. Nobody needs to
// wait for it: whoever comes across such a lane frees it. It goes through the fleet once after any
// session has ended. What somebody has locked is left for the next time.
func (db *DB) freeAbandoned(ctx context.Context) error {
	var sessions, providers []string
	err := db.view(ctx, "ended sessions", func(ctx context.Context, t *transaction) (err error) {
		if sessions, err = t.q.ListUnfreedSessions(ctx); err != nil || len(sessions) == 0 {
			return err
		}
		providers, err = t.q.ListAbandonedProviders(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("list ended sessions: %w", err)
	}
	if len(sessions) == 0 {
		return nil
	}
	for _, name := range providers {
		err := db.rewrite(ctx, "free lanes", []string{providerKey(fleet.ProviderName(name))}, false)
		if err != nil && !lockedByOthers(err) {
			return fmt.Errorf("free what ended sessions hold: %w", err)
		}
	}
	for after, more := "", true; more; {
		ids, err := read(ctx, db.view, "abandoned machines", func(ctx context.Context, t *transaction) ([]string, error) {
			return t.q.ListAbandoned(ctx, statement.ListAbandonedParams{After: after, MaxRows: freeBatch})
		})
		if err != nil {
			return fmt.Errorf("list what ended sessions hold: %w", err)
		}
		if err := db.rewrite(ctx, "free lanes", ids, true); err != nil {
			return fmt.Errorf("free what ended sessions hold: %w", err)
		}
		if more = len(ids) == freeBatch; more {
			after = ids[len(ids)-1]
		}
	}
	err = db.update(ctx, "sessions freed", func(ctx context.Context, t *transaction) error { return t.q.SetSessionsFreed(ctx) })
	if err != nil {
		return fmt.Errorf("note that ended sessions hold nothing: %w", err)
	}
	return nil
}

// rewrite rewrites subjects in one transaction of that kind, which also frees the lanes that the
// dead hold there; with skipLocked without the machines that somebody else has.
func (db *DB) rewrite(ctx context.Context, kind string, subjects []string, skipLocked bool) error {
	if len(subjects) == 0 {
		return nil
	}
	return db.update(ctx, kind, func(ctx context.Context, t *transaction) error {
		l := locks{skipLocked: skipLocked}
		var list []fleet.Subject
		for _, key := range subjects {
			s := parseSubject(key)
			l.add(s)
			list = append(list, s)
		}
		if err := l.take(ctx, t); err != nil {
			return err
		}
		return t.rewriteSubjects(ctx, slices.DeleteFunc(list, l.lack))
	})
}
