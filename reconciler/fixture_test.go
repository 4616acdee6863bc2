package reconciler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/reconciler/etcdtest"
	"github.com/ironherd/ironherd/internal/service"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/gate"
	"github.com/ironherd/ironherd/reconciler/node"
	"github.com/ironherd/ironherd/reconciler/release"
)

var (
	shared *etcdtest.Cluster
	roots  atomic.Int64
	v      = release.MustParse
)

func TestMain(m *testing.M) {
	os.Exit(etcdtest.Main(context.Background(), m, &shared, etcdtest.MembersLeave()...))
}

// quiet discards logs, unless they are asked for.
func quiet(t *testing.T) *slog.Logger {
	t.Helper()
	if os.Getenv("IRONHERD_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	return slog.New(slog.DiscardHandler)
}

func ownLayout() etcd.Layout { return etcd.Layout{Root: fmt.Sprintf("/test/%d", roots.Add(1))} }

func build(own, needs, admits string) release.Build {
	return release.Build{Release: v(own), MinReconciler: v(needs), MinAPIServer: v(admits)}
}

// resources is an Applier over one number: which release the base resources are of. It belongs to a
// whole cluster; each node has a hand on it.
type resources struct {
	mu     sync.Mutex
	is     string
	passes int
	broken error
	// optional tells that what is broken is nothing that API servers need.
	optional bool
	deleting []Deletion
	// unrecorded is what every pass reports of it.
	unrecorded int
	// cluster is which one they are in; silent is why the API server does not tell.
	cluster string
	silent  error
}

type hand struct {
	*resources
	release string
	changed chan struct{}
	fault   atomic.Pointer[error]
}

func (r *resources) hand(own string) *hand {
	return &hand{resources: r, release: own, changed: make(chan struct{}, 1)}
}

func (h *hand) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// fail lets the API server of this node fail, or work again.
func (h *hand) fail(err error) { h.fault.Store(&err) }

func (h *hand) Probe(context.Context) error {
	if err := h.fault.Load(); err != nil {
		return *err
	}
	return nil
}

func (h *hand) Cluster(context.Context) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cluster, h.silent
}

func (h *hand) Changed() <-chan struct{} { return h.changed }

func (h *hand) Pass(ctx context.Context) (Report, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return Report{}, context.Cause(ctx)
	}
	h.passes++
	report := Report{Objects: 1, Deleting: h.deleting, Unrecorded: h.unrecorded}
	if h.broken != nil {
		report.Failures = []Failure{{Object: "Thing x", Reason: h.broken.Error(), Required: !h.optional}}
		if !h.optional {
			return report, h.broken
		}
		report.Ready = true
	}
	if h.is != h.release {
		h.is, report.Updated = h.release, 1
	}
	return report, h.broken
}

func (r *resources) set(change func(*resources)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

func (r *resources) now() (is string, passes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.is, r.passes
}

// node runs a service in a supervision tree; stop ends it in order.
type running struct {
	*Service
	tree *service.Tree
	hand *hand
	stop func()
}

func start(t *testing.T, client *clientv3.Client, config Config, r *resources) *running {
	t.Helper()
	config.Logger = quiet(t).With(slog.String("node", config.Node))
	if config.Settle == 0 {
		config.Settle = 10 * time.Millisecond
	}
	h := r.hand(config.Build.Release.String())
	s, err := NewService(config, client, h)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := service.New(service.Options{Logger: config.Logger, Pause: 200 * time.Millisecond, Drain: 20 * time.Second}, supervised(s.Components())...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := tree.Run(ctx); err != nil {
			t.Errorf("%s: %v", config.Node, err)
		}
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(stop)
	return &running{Service: s, tree: tree, hand: h, stop: stop}
}

// eventually asks until the answer is yes, for as long as the test may run.
func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(90 * time.Second)
	for !ask() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within a minute and a half: %s", what)
		}
	}
}

// answered asks etcd something that may be asked twice, until it answers in time: a busy machine
// may keep it from that.
func answered[T any](t *testing.T, ask func() (T, error)) (answer T) {
	t.Helper()
	eventually(t, "an answer of etcd", func() bool {
		var err error
		if answer, err = ask(); err != nil && fleet.KindOf(err) != fleet.KindTimeout {
			t.Fatal(err)
		}
		return err == nil
	})
	return answer
}

// look is what people are shown.
func look(t *testing.T, client *clientv3.Client, layout etcd.Layout, b release.Build) Overview {
	t.Helper()
	return answered(t, func() (Overview, error) { return Look(t.Context(), client, layout, b, quiet(t)) })
}

func statusNow(t *testing.T, client *clientv3.Client, layout etcd.Layout) gate.Observed {
	t.Helper()
	return answered(t, func() (statusView, error) { return readStatus(t.Context(), client, layout) }).Observed
}

func awaitStatus(t *testing.T, client *clientv3.Client, layout etcd.Layout, want gate.Status) {
	t.Helper()
	eventually(t, "status "+want.String(), func() bool {
		now := statusNow(t, client, layout)
		return now.Found && now.Unreadable == "" && now.Status == want
	})
}

func done(version, minimum string) gate.Status {
	return gate.Status{State: gate.Done, Version: v(version), MinimumCompatible: v(minimum)}
}

// announced lists every status that was ever written, in words.
func announced(t *testing.T, client *clientv3.Client, layout etcd.Layout) (all []string) {
	t.Helper()
	now, err := client.Get(t.Context(), layout.Status())
	if err != nil || len(now.Kvs) == 0 {
		t.Fatal(now, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for answer := range client.Watch(ctx, layout.Status(), clientv3.WithRev(now.Kvs[0].CreateRevision)) {
		for _, e := range answer.Events {
			o := observe(e.Kv.Value, e.Kv.ModRevision)
			if o.Unreadable != "" {
				all = append(all, "unreadable")
			} else {
				all = append(all, fmt.Sprintf("%s %s/%s", o.Status.State, o.Status.Version, o.Status.MinimumCompatible))
			}
			if e.Kv.ModRevision == now.Kvs[0].ModRevision {
				return all
			}
		}
	}
	return all
}

func register(t *testing.T, client *clientv3.Client, layout etcd.Layout, name, own string) {
	t.Helper()
	record := node.Record{Roles: []string{node.Controller}, Release: v(own)}
	answered(t, func() (bool, error) {
		return node.NewRegistry(client, layout, quiet(t)).Register(t.Context(), name, record)
	})
}

// ready asks whether an API server may start, until etcd answers in time.
func ready(t *testing.T, client *clientv3.Client, layout etcd.Layout, name string, b release.Build) (bool, string) {
	t.Helper()
	verdict := gate.Verdict{}
	eventually(t, "an answer of etcd", func() bool {
		verdict, _ = NewDoor(Ready{Client: client, Layout: layout, Node: name, Build: b, Logger: quiet(t)}).Ask(t.Context())
		return !strings.HasPrefix(verdict.Reason, "etcd cannot be read")
	})
	return verdict.OK, verdict.Reason
}

var errBroken = errors.New("the API server does not answer")

func joined(lines []string) string { return strings.Join(lines, ", ") }

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
