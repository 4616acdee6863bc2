package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/service"
)

const (
	// databasePatience bounds how long a question for health waits for the database.
	databasePatience = 2 * time.Second
	// commitPatience is how long a commit may take. It is longer, because a busy disk is no fault.
	commitPatience = 10 * time.Second
	// commitSpacing is the least from one commit for health to the next, however many ask.
	commitSpacing = 2 * time.Second
	// readsAtATime is how many questions for health, which anybody may ask, read at the same time.
	readsAtATime = 4
)

// databaseHealth answers for the health of the database: whether it can be read, and whether it
// takes changes, which a full disk and a server that only reads do not. It commits only when
// somebody asks, so that a fleet that nobody looks at costs nothing.
type databaseHealth struct {
	db    *bmdb.DB
	asked chan chan<- struct{}
	reads chan struct{} // those under way

	mu    sync.Mutex
	err   error     // of the newest commit
	began time.Time // of the one that is under way; zero: none is
}

func newDatabaseHealth(db *bmdb.DB) *databaseHealth {
	return &databaseHealth{db: db, asked: make(chan chan<- struct{}), reads: make(chan struct{}, readsAtATime)}
}

func (h *databaseHealth) component() service.Component {
	return service.Component{Name: "database", Stage: service.State, Serve: h.serve, Check: h.check}
}

// serve commits when somebody asks, until ctx ends.
func (h *databaseHealth) serve(ctx context.Context) error {
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case answered := <-h.asked:
			if last.IsZero() || time.Since(last) >= commitSpacing {
				h.commit(ctx)
				last = time.Now()
			}
			close(answered)
		}
	}
}

func (h *databaseHealth) commit(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, commitPatience)
	defer cancel()
	h.mu.Lock()
	h.began = time.Now()
	h.mu.Unlock()
	err := h.db.CheckWritable(bounded)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.began = time.Time{}
	if ctx.Err() == nil { // else it is being stopped
		h.err = err
	}
}

// read reads one row, when its turn has come.
func (h *databaseHealth) read(ctx context.Context) error {
	select {
	case h.reads <- struct{}{}:
		defer func() { <-h.reads }()
	case <-ctx.Done():
		return fmt.Errorf("the database has not answered others: %w", context.Cause(ctx))
	}
	_, err := h.db.Environment(ctx)
	return err
}

// check reads one row, and tells what became of the newest commit. It does not wait for one that is
// slow. One that has begun may outlast its patience: a disk that hangs keeps it for as long.
func (h *databaseHealth) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, databasePatience)
	defer cancel()
	if err := h.read(ctx); err != nil {
		return err
	}
	return h.writable(ctx)
}

// writable tells what became of the newest commit, which it does not wait for beyond ctx.
func (h *databaseHealth) writable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, databasePatience)
	defer cancel()
	answered := make(chan struct{})
	select {
	case h.asked <- answered:
		select {
		case <-answered:
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if hangs := time.Since(h.began); !h.began.IsZero() && hangs >= commitPatience {
		return fmt.Errorf("the database takes no changes: a commit has not ended for %s", hangs.Truncate(time.Second))
	}
	if h.err != nil {
		return fmt.Errorf("the database takes no changes: %w", h.err)
	}
	return nil
}
