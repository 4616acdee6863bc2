// Package etcdtest runs real etcd members inside a test's process, with real listeners on loopback.
// A test may stop, restart and replace them. They do not sync to disk: a member that is stopped
// keeps its data, and a test that is killed keeps nothing.
package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/ironherd/ironherd/reconciler/etcd"
)

// Cluster is a cluster of etcd members.
type Cluster struct {
	dir     string
	members []*member
}

type member struct {
	name         string
	client, peer url.URL
	dir          string
	ports        []*port
	state        string // new or existing
	running      *embed.Etcd
}

// Start starts a cluster of n members in dir and waits until it serves. Close ends it.
func Start(ctx context.Context, dir string, n int) (*Cluster, error) {
	c := &Cluster{dir: dir}
	for range n {
		if _, err := c.add("new"); err != nil {
			c.Close()
			return nil, err
		}
	}
	failed := make(chan error, n)
	for i := range c.members {
		go func() { failed <- c.Up(ctx, i) }()
	}
	var errs []error
	for range n {
		errs = append(errs, <-failed)
	}
	if err := errors.Join(errs...); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// New is Start for one test, at whose end the cluster is closed.
func New(t *testing.T, n int) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), t.TempDir(), n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func (c *Cluster) add(state string) (*member, error) {
	name := fmt.Sprintf("m%d", len(c.members)+1)
	m := &member{name: name, dir: filepath.Join(c.dir, name), state: state}
	c.members = append(c.members, m) // Close gives back what it has
	for _, into := range []*url.URL{&m.client, &m.peer} {
		kept, err := keepPort()
		if err != nil {
			return nil, err
		}
		m.ports = append(m.ports, kept)
		*into = url.URL{Scheme: "http", Host: kept.address}
	}
	return m, nil
}

// Up starts or restarts a member, and waits until it has joined.
func (c *Cluster) Up(ctx context.Context, i int) error {
	m := c.members[i]
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = m.name, m.dir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{m.client}, []url.URL{m.client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{m.peer}, []url.URL{m.peer}
	cfg.ClusterState = m.state
	var initial []string
	for _, other := range c.members {
		if other.name != "" {
			initial = append(initial, other.name+"="+other.peer.String())
		}
	}
	cfg.InitialCluster = strings.Join(initial, ",")
	cfg.UnsafeNoFsync = true
	cfg.SocketOpts.ReusePort = true // its port is kept for it
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	running, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("start etcd member %s: %w", m.name, err)
	}
	m.running, m.state = running, "existing"
	select {
	case <-running.Server.ReadyNotify():
		return nil
	case err := <-running.Err():
		return fmt.Errorf("etcd member %s: %w", m.name, err)
	case <-ctx.Done():
		return fmt.Errorf("etcd member %s did not get ready: %w", m.name, context.Cause(ctx))
	case <-time.After(time.Minute):
		return fmt.Errorf("etcd member %s did not get ready", m.name)
	}
}

// Down stops a member; its data stays.
func (c *Cluster) Down(i int) {
	if m := c.members[i]; m.running != nil {
		m.running.Close()
		m.running = nil
	}
}

// Replace removes a member that is down from the cluster for good, and adds an empty one, which
// becomes the last.
func (c *Cluster) Replace(ctx context.Context, client *clientv3.Client, i int) error {
	members, err := client.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, m := range members.Members {
		if m.Name == c.members[i].name {
			if err := healthy(ctx, func() error {
				_, err := client.MemberRemove(ctx, m.ID)
				return err
			}); err != nil {
				return err
			}
		}
	}
	c.members[i].name = "" // no longer one of them
	m, err := c.add("existing")
	if err != nil {
		return err
	}
	if err := healthy(ctx, func() error {
		_, err := client.MemberAdd(ctx, []string{m.peer.String()})
		return err
	}); err != nil {
		return err
	}
	return c.Up(ctx, len(c.members)-1)
}

// healthy repeats a change of the members until the others have been connected for long enough for
// etcd to allow it.
func healthy(ctx context.Context, change func() error) error {
	tick := time.NewTicker(time.Second / 2)
	defer tick.Stop()
	for {
		err := change()
		if !errors.Is(err, rpctypes.ErrUnhealthy) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// Endpoints returns the client URLs of all members.
func (c *Cluster) Endpoints() []string {
	var all []string
	for _, m := range c.members {
		if m.name != "" {
			all = append(all, m.client.String())
		}
	}
	return all
}

// Client returns a client that lives as long as the test.
func (c *Cluster) Client(t *testing.T) *clientv3.Client {
	t.Helper()
	client, err := etcd.Dial(t.Context(), etcd.Config{Endpoints: c.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Close stops all members.
func (c *Cluster) Close() {
	for i, m := range c.members {
		c.Down(i)
		for _, p := range m.ports {
			p.close()
		}
		m.ports = nil
	}
}
