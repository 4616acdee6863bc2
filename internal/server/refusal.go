package server

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Refusal is why a caller was turned away.
type Refusal string

// The refusals. All but the last two close the connection.
const (
	refusedNoRoom  Refusal = "no_room"      // above a limit, and nobody could make room
	refusedForRoom Refusal = "made_room"    // it kept this server waiting, and another one came
	refusedLate    Refusal = "too_late"     // it was not admitted in time
	refusedTooMuch Refusal = "too_much"     // it sent too much unadmitted, or calls too often
	refusedTooMany Refusal = "too_many"     // it was admitted, and so were newer ones of its owner
	RefusedCall    Refusal = "not_admitted" // a call, by whoever is not admitted
	RefusedBusy    Refusal = "busy"         // a call that has waited for its turn in vain
)

// refusalSpacing is the least from one line about refusals to the next.
const refusalSpacing = time.Minute

// Refusals counts the callers that a server turns away, and logs them sparsely: the first at once,
// then at most one line a minute.
type Refusals struct {
	logger  *slog.Logger
	observe func(why string)

	mu       sync.Mutex
	logged   time.Time
	unlogged map[Refusal]int
	from     net.Addr // of the newest
	pending  bool     // a line is due

	full atomic.Bool
}

// NewRefusals returns a count. It tells observe, which may be nil, of each refusal.
func NewRefusals(logger *slog.Logger, observe func(why string)) *Refusals {
	return &Refusals{logger: logger, observe: observe, unlogged: map[Refusal]int{}}
}

// Count counts one refusal. It may be called on nil.
func (r *Refusals) Count(why Refusal, from net.Addr) {
	if r == nil {
		return
	}
	if r.observe != nil {
		r.observe(string(why))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unlogged[why]++
	r.from = from
	if r.pending {
		return
	}
	if since := time.Since(r.logged); !r.logged.IsZero() && since < refusalSpacing {
		r.pending = true
		time.AfterFunc(refusalSpacing-since, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.log()
		})
		return
	}
	r.log()
}

// Full reports whether somebody found no room, since it was called last, who may be one that the
// server is for. Strangers who crowd out only each other do not count.
func (r *Refusals) Full() bool { return r.full.Swap(false) }

// log writes the line. The caller holds the lock.
func (r *Refusals) log() {
	attributes := []any{slog.String("remote", remoteIP(r.from).String())}
	for _, why := range []Refusal{refusedNoRoom, refusedForRoom, refusedLate, refusedTooMuch, refusedTooMany, RefusedCall, RefusedBusy} {
		if n := r.unlogged[why]; n > 0 {
			attributes = append(attributes, slog.Int(string(why), n))
		}
	}
	r.logger.Warn("callers were turned away", attributes...)
	clear(r.unlogged)
	r.logged, r.pending = time.Now(), false
}
