package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// channel is where notifications are sent; all fleets of one database share it, and wake each
	// other at worst.
	channel = "ironherd"
	// pacing is the time from one notification of this process to the next. The first one after a
	// silence goes at once.
	pacing = 5 * time.Millisecond
	// maxPayload is what fits into a notification, with room to spare (the server's limit is 8000
	// bytes). Of more the others are told that anything may be due.
	maxPayload = 7000
	// reconnectAfter is the pause after a connection was lost.
	reconnectAfter = time.Second
)

// notifier tells other processes what became due, on connections of the pool, and hears what they
// tell, on one of its own. It is only about speed: what fails is forgotten.
type notifier struct {
	pool   *pgxpool.Pool
	logger *slog.Logger
	// self tells our own notifications from those of others.
	self string

	mu      sync.Mutex
	pending map[bmdb.Entry]time.Time
	// receive gets what others tell.
	receive func(map[bmdb.Entry]time.Time)

	// waiting has an element when there is something to tell.
	waiting chan struct{}
	stop    context.CancelFunc
	done    sync.WaitGroup
}

// message is a notification. No hints: anything may be due.
type message struct {
	From  string `json:"f"`
	Hints []hint `json:"h,omitempty"`
}

type hint struct {
	Process  fleet.Process      `json:"p"`
	Provider fleet.ProviderName `json:"n"`
	DueAt    int64              `json:"t"` // microseconds
}

func startNotifier(ctx context.Context, pool *pgxpool.Pool, logger *slog.Logger) *notifier {
	n := &notifier{pool: pool, logger: logger, self: uuid.NewString(), pending: make(map[bmdb.Entry]time.Time), waiting: make(chan struct{}, 1)}
	ctx, n.stop = context.WithCancel(context.WithoutCancel(ctx))
	n.done.Go(func() { n.send(ctx) })
	n.done.Go(func() { n.listen(ctx) })
	return n
}

func (n *notifier) close() {
	n.stop()
	n.done.Wait()
}

// Notify implements bmdb.Engine.
func (e *Engine) Notify(due map[bmdb.Entry]time.Time) {
	if e.notifier != nil {
		e.notifier.add(due)
	}
}

// Subscribe implements bmdb.Engine.
func (e *Engine) Subscribe(receive func(map[bmdb.Entry]time.Time)) {
	if e.notifier == nil {
		return
	}
	e.notifier.mu.Lock()
	defer e.notifier.mu.Unlock()
	e.notifier.receive = receive
}

func (n *notifier) add(due map[bmdb.Entry]time.Time) {
	n.mu.Lock()
	for entry, at := range due {
		if before, ok := n.pending[entry]; !ok || at.Before(before) {
			n.pending[entry] = at
		}
	}
	n.mu.Unlock()
	select {
	case n.waiting <- struct{}{}:
	default:
	}
}

// send tells what waits, and then not again for a moment, until the end.
func (n *notifier) send(ctx context.Context) {
	for {
		select {
		case <-n.waiting:
		case <-ctx.Done():
			return
		}
		payload := n.payload()
		if payload == "" { // the last one had it already
			continue
		}
		if _, err := n.pool.Exec(ctx, "SELECT pg_notify($1, $2)", channel, payload); err != nil && ctx.Err() == nil {
			n.logger.DebugContext(ctx, "a notification is not sent", slog.Any("err", err))
		}
		wait(ctx, pacing)
	}
}

// payload returns the notification of all that waits; "" where nothing does.
func (n *notifier) payload() string {
	n.mu.Lock()
	all := n.pending
	n.pending = make(map[bmdb.Entry]time.Time)
	n.mu.Unlock()
	if len(all) == 0 {
		return ""
	}
	m := message{From: n.self}
	for entry, at := range all {
		m.Hints = append(m.Hints, hint{entry.Process, entry.Provider, at.UnixMicro()})
	}
	text, _ := json.Marshal(m) // strings and numbers always can be
	if len(text) > maxPayload {
		text, _ = json.Marshal(message{From: n.self})
	}
	return string(text)
}

// listen hears what others tell, on one connection after another, until the end.
func (n *notifier) listen(ctx context.Context) {
	for ctx.Err() == nil {
		if err := n.listenOnce(ctx); ctx.Err() == nil {
			n.logger.DebugContext(ctx, "notifications are interrupted", slog.Any("err", err))
			wait(ctx, reconnectAfter)
		}
	}
}

// listenOnce hears what others tell, until the connection breaks.
func (n *notifier) listenOnce(ctx context.Context) error {
	pooled := n.pool.Config()
	config := pooled.ConnConfig
	// nothing runs that could be cancelled at the server
	config.BuildContextWatcherHandler = giveUpAtOnce
	if err := pooled.BeforeConnect(ctx, config); err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	n.deliver(nil) // whatever was told while nobody listened
	for {
		notification, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		var m message
		switch err := json.Unmarshal([]byte(notification.Payload), &m); {
		case err != nil:
			n.logger.DebugContext(ctx, "a notification cannot be read", slog.Any("err", err))
		case m.From == n.self:
		default:
			n.deliver(m.due())
		}
	}
}

// due returns what a notification says is due; nil: anything may be.
func (m message) due() map[bmdb.Entry]time.Time {
	if len(m.Hints) == 0 {
		return nil
	}
	due := make(map[bmdb.Entry]time.Time, len(m.Hints))
	for _, h := range m.Hints {
		due[bmdb.Entry{Process: h.Process, Provider: h.Provider}] = time.UnixMicro(h.DueAt).UTC()
	}
	return due
}

func (n *notifier) deliver(due map[bmdb.Entry]time.Time) {
	n.mu.Lock()
	receive := n.receive
	n.mu.Unlock()
	if receive != nil {
		receive(due)
	}
}
