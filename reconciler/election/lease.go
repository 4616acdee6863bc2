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

	"github.com/ironherd/ironherd/internal/trust"
)

// The ways in which a candidacy ends.
var (
	// ErrResigned tells that the candidate gave it up.
	ErrResigned = errors.New("the leadership was given up")
	// ErrExpired tells that the lease could not be renewed in time.
	ErrExpired = errors.New("the lease could not be renewed in time")
	// ErrHandedOver tells that the candidate could not do a leader's work, and another one can.
	ErrHandedOver = errors.New("the leadership was handed over to a candidate that can do the work")
	// ErrDeposed tells that the key or the lease is gone.
	ErrDeposed = errors.New("somebody has ended the leadership")
)

// lease is kept alive by a goroutine as long as its trust window is open.
type lease struct {
	client *clientv3.Client
	id     clientv3.LeaseID
	ttl    time.Duration
	logger *slog.Logger

	clock   *trust.Clock
	window  *trust.Window
	running sync.WaitGroup
}

// grant gets a lease from etcd and keeps it.
func grant(ctx context.Context, client *clientv3.Client, ttl time.Duration, logger *slog.Logger) (*lease, error) {
	clock := trust.NewClock()
	start := clock.Elapsed()
	attempt, cancel := context.WithTimeout(ctx, ttl/2)
	defer cancel()
	answer, err := client.Grant(attempt, int64(ttl/time.Second))
	if err != nil {
		return nil, fmt.Errorf("get a lease from etcd: %w", err)
	}
	l := &lease{
		client: client, id: answer.ID, ttl: ttl, logger: logger, clock: clock,
		window: trust.NewWindow(ctx, clock, start, trust.Options{Interval: ttl, Expired: ErrExpired}),
	}
	// it ends with its window, not with its first caller
	keeping, release := l.window.Guard(context.WithoutCancel(ctx))
	l.running.Go(func() {
		defer release()
		l.keep(keeping)
	})
	return l, nil
}

// keep renews the lease until ctx ends, as it does when the window closes.
func (l *lease) keep(ctx context.Context) {
	pause := l.ttl / 4
	for {
		if !l.clock.Sleep(ctx, pause) {
			return
		}
		start := l.clock.Elapsed()
		attempt, cancel := context.WithTimeout(ctx, l.ttl/4)
		gone, err := l.renew(attempt)
		cancel()
		pause = l.ttl / 4
		switch {
		case ctx.Err() != nil:
			return
		case gone:
			l.window.Close(ErrDeposed)
			return
		case err != nil:
			l.logger.WarnContext(ctx, "cannot renew the lease", slog.Duration("left", l.window.Left()), slog.Any("err", err))
			pause = l.ttl / 20
		case !l.window.Extend(start):
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
