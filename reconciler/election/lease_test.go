package election

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ironherd/ironherd/internal/reconciler/etcdtest"
	"github.com/ironherd/ironherd/reconciler/etcd"
)

// TestTrustCountsFromTheStartOfARenewal: the answers of etcd come late. What is left of the trust
// window must never be more than the window without that delay, because etcd may have counted from
// the moment at which the renewal was sent.
func TestTrustCountsFromTheStartOfARenewal(t *testing.T) {
	t.Parallel()
	const ttl, delay = 6 * time.Second, 800 * time.Millisecond
	cluster := etcdtest.New(t, 1)
	link := etcdtest.NewLink(t, cluster.Endpoints()[0])
	client, err := etcd.Dial(t.Context(), etcd.Config{Endpoints: []string{link.URL()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if _, err := client.Get(t.Context(), "x"); err != nil { // it is connected
		t.Fatal(err)
	}
	link.Delay(delay)
	defer link.Delay(0)
	// A machine that is busy may lose the lease before it was renewed twice; then it takes another.
	for attempts := 1; !renewedTwice(t, client, ttl, delay); attempts++ {
		if attempts == 20 {
			t.Fatal("no lease was renewed twice")
		}
	}
}

// renewedTwice takes a lease and checks what is left of it, until it was renewed twice; false: it
// was lost before.
func renewedTwice(t *testing.T, client *clientv3.Client, ttl, delay time.Duration) bool {
	t.Helper()
	l, err := grant(t.Context(), client, ttl, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Log(err)
		return false
	}
	defer func() {
		l.window.Close(ErrResigned)
		l.running.Wait()
	}()
	length := ttl - ttl/5
	if left := l.window.Left(); left > length-delay {
		t.Errorf("after the grant %s are left of %s", left, length)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	renewals, last := 0, l.window.Left()
	for renewals < 2 {
		select {
		case <-tick.C:
		case <-l.window.Done():
			return false
		}
		left := l.window.Left()
		if left > last {
			renewals++
			if left > length-delay {
				t.Errorf("after a renewal whose answer took %s, %s are left of %s", delay, left, length)
			}
		}
		last = left
	}
	return true
}

// etcdOnDemand is as much of etcd as a lease needs.
type etcdOnDemand struct {
	pb.UnimplementedLeaseServer
	// renew is asked before a renewal is answered.
	renew func(ctx context.Context) error
}

func (e *etcdOnDemand) LeaseGrant(_ context.Context, request *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return &pb.LeaseGrantResponse{ID: 1, TTL: request.GetTTL()}, nil
}

func (e *etcdOnDemand) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	request, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := e.renew(stream.Context()); err != nil {
		return err
	}
	return stream.Send(&pb.LeaseKeepAliveResponse{ID: request.GetID(), TTL: 1})
}

// dialOnDemand returns a client of an etcdOnDemand, for a bubble.
func dialOnDemand(t *testing.T, renew func(ctx context.Context) error) *clientv3.Client {
	t.Helper()
	server, listener := grpc.NewServer(), bufconn.Listen(64<<10)
	pb.RegisterLeaseServer(server, &etcdOnDemand{renew: renew})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	client, err := clientv3.New(clientv3.Config{
		Context: t.Context(), Endpoints: []string{"passthrough:etcd"}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// TestTrustHasAMargin: trust ends a fifth of the TTL before the lease can, counted from the last
// renewal.
func TestTrustHasAMargin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		begun := time.Now()
		var renewed time.Time
		l, err := grant(t.Context(), dialOnDemand(t, func(ctx context.Context) error {
			if time.Since(begun) > time.Minute {
				<-ctx.Done()
				return ctx.Err()
			}
			renewed = time.Now()
			return nil
		}), ttl, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		<-l.window.Done()
		l.running.Wait()
		if took := time.Since(renewed); took != ttl-ttl/5 || renewed.Sub(begun) < time.Minute-ttl/2 {
			t.Errorf("renewed for %s, then trusted for %s of a TTL of %s", renewed.Sub(begun), took, ttl)
		}
	})
}

// TestAnotherAttemptKeepsALease: an attempt to renew that hangs is given up, and one that failed is
// repeated soon.
func TestAnotherAttemptKeepsALease(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	for name, c := range map[string]struct {
		fails  func(ctx context.Context) error
		within time.Duration
	}{
		"one hangs": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, ttl * 6 / 10},
		"one fails": {func(context.Context) error { return errors.New("not now") }, ttl * 4 / 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				renewed, failed := make(chan struct{}), false
				client := dialOnDemand(t, func(ctx context.Context) error {
					if !failed {
						failed = true
						return c.fails(ctx)
					}
					select {
					case <-renewed:
					default:
						close(renewed)
					}
					return nil
				})
				begun := time.Now()
				l, err := grant(t.Context(), client, ttl, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					l.window.Close(ErrResigned)
					l.running.Wait()
				}()
				select {
				case <-renewed:
				case <-l.window.Done():
				}
				if took := time.Since(begun); took > c.within {
					t.Errorf("the lease was renewed or lost after %s, want a renewal within %s", took, c.within)
				}
			})
		})
	}
}
