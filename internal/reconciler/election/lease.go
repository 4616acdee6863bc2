package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The ways in which a candidacy ends.
var (
	// ErrResigned tells that the candidate gave it up.
	ErrResigned = errors.New("the leadership was given up")
	// ErrExpired tells that the lease could not be renewed in time.
	ErrExpired = errors.New("the lease could not be renewed in time")
	// ErrDeposed tells that the key or the lease is gone.
	ErrDeposed = errors.New("somebody has ended the leadership")
)

// lease is a lease of etcd. A goroutine keeps it alive until end is called; then done is closed.
type lease struct {
	client *clientv3.Client
	id     clientv3.LeaseID
	ttl    time.Duration
	logger *slog.Logger

	done    chan struct{}
	running sync.WaitGroup

	mu      sync.Mutex
	cause   error   // why it has ended; nil: it has not
	renewed instant // start of the last successful renewal
	stop    context.CancelFunc
}

// tick is the longest time between two looks at the clocks.
const tick = 500 * time.Millisecond

// grant gets a lease from etcd and keeps it alive.
func grant(ctx context.Context, client *clientv3.Client, ttl time.Duration, logger *slog.Logger) (*lease, error) {
	start := now()
	attempt, cancel := context.WithTimeout(ctx, ttl/2)
	defer cancel()
	answer, err := client.Grant(attempt, int64(ttl/time.Second))
	if err != nil {
		return nil, fmt.Errorf("get a lease from etcd: %w", err)
	}
	l := &lease{client: client, id: answer.ID, ttl: ttl, logger: logger, done: make(chan struct{}), renewed: start}
	// end ends it, and not its first caller's context.
	ctx, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	l.running.Go(func() { l.keep(ctx) })
	return l, nil
}

// window returns for how long a renewal is trusted, from its start.
func (l *lease) window() time.Duration { return l.ttl - l.ttl/5 }

// left returns how much of the trust window is left.
func (l *lease) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause != nil {
		return 0
	}
	return l.window() - l.renewed.elapsed()
}

// end ends the lease in this process. Only the first cause counts.
func (l *lease) end(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause == nil {
		l.cause = cause
		close(l.done)
		l.stop()
	}
}

// why returns the cause of the end, or nil before it.
func (l *lease) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// keep renews the lease until it ends, and ends it when the trust window does.
func (l *lease) keep(ctx context.Context) {
	l.running.Go(func() { l.guard(ctx) })
	pause := l.ttl / 4
	for {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		start := now()
		attempt, cancel := context.WithTimeout(ctx, min(l.ttl/4, max(l.left(), 0)))
		gone, err := l.renew(attempt)
		cancel()
		pause = l.ttl / 4
		switch {
		case ctx.Err() != nil:
			return
		case gone:
			l.end(ErrDeposed)
			return
		case err != nil:
			l.logger.WarnContext(ctx, "cannot renew the lease", slog.Duration("left", l.left()), slog.Any("err", err))
			pause = l.ttl / 20
		default:
			l.mu.Lock()
			l.renewed = start
			l.mu.Unlock()
		}
	}
}

// guard ends the lease when the trust window does, even while a renewal hangs.
func (l *lease) guard(ctx context.Context) {
	for {
		left := l.left()
		if left <= 0 {
			l.end(ErrExpired)
			return
		}
		select {
		case <-time.After(min(left, tick)):
		case <-ctx.Done():
			return
		}
	}
}

// renew makes one attempt. The client library's own KeepAlive would try again inside, and would not
// tell when its last attempt began.
func (l *lease) renew(ctx context.Context) (gone bool, err error) {
	stream, err := pb.NewLeaseClient(l.client.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return false, fmt.Errorf("renew the lease: %w", err)
	}
	err = stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(l.id)})
	if err != nil {
		return false, fmt.Errorf("renew the lease: %w", err)
	}
	_ = stream.CloseSend() // only the answer counts
	answer, err := stream.Recv()
	if err != nil {
		return errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound), fmt.Errorf("renew the lease: %w", err)
	}
	return answer.GetTTL() <= 0, nil
}

// revoke revokes the lease in etcd, which deletes its keys at once.
func (l *lease) revoke(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.ttl/5)
	defer cancel()
	if _, err := l.client.Revoke(ctx, l.id); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("give up the lease, which ends by itself within %s: %w", l.ttl, err)
	}
	return nil
}
