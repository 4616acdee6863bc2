package election_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/reconciler/etcdtest"
	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/release"
	"github.com/ironherd/ironherd/reconciler/watch"
)

var (
	shared   *etcdtest.Cluster
	prefixes atomic.Int64
)

func TestMain(m *testing.M) {
	if os.Getenv(childEndpoint) != "" {
		os.Exit(child())
	}
	os.Exit(etcdtest.Main(context.Background(), m, &shared))
}

func config(client *clientv3.Client, prefix, name string, ttl time.Duration) election.Config {
	return election.Config{
		Client: client, Prefix: prefix, TTL: ttl, Candidate: election.Candidate{Name: name, Build: release.Own()},
		Logger: slog.New(slog.DiscardHandler),
	}
}

func ownPrefix() string { return fmt.Sprintf("/election/%d/", prefixes.Add(1)) }

func campaign(t *testing.T, c election.Config) *election.Leadership {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	l, err := standAgain(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Resign(context.Background()) })
	return l
}

func commits(t *testing.T, client *clientv3.Client, l *election.Leadership, key string) bool {
	t.Helper()
	done, err := client.Txn(t.Context()).If(l.Conditions()...).Then(clientv3.OpPut(key, "x")).Commit()
	if err != nil {
		t.Fatal(err)
	}
	return done.Succeeded
}

func leader(t *testing.T, client *clientv3.Client, prefix string) string {
	t.Helper()
	who, _, err := election.Leader(t.Context(), client, prefix)
	if err != nil {
		t.Fatal(err)
	}
	return who.Name
}

func TestOneLeadsUntilItResigns(t *testing.T) {
	t.Parallel()
	client, prefix := shared.Client(t), ownPrefix()
	if who := leader(t, client, prefix); who != "" {
		t.Errorf("%s leads before anybody stands", who)
	}
	first := campaign(t, config(client, prefix, "a", time.Minute))
	elected := make(chan *election.Leadership)
	go func() {
		l, err := election.Campaign(t.Context(), config(client, prefix, "b", time.Minute))
		if err != nil {
			t.Error(err)
		}
		elected <- l
	}()
	// The second one stands when its key is there; it must not be elected.
	for {
		keys, err := client.Get(t.Context(), prefix+"candidates/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		if keys.Count == 2 {
			break
		}
	}
	if who := leader(t, client, prefix); who != "a" || first.Term != 1 {
		t.Errorf("%s leads, term %d", who, first.Term)
	}
	select {
	case <-elected:
		t.Fatal("two lead")
	default:
	}
	ctx, cancel := first.Bind(t.Context())
	defer cancel()
	if !commits(t, client, first, prefix+"x") || ctx.Err() != nil {
		t.Error("the leader cannot write")
	}
	if err := first.Resign(t.Context()); err != nil {
		t.Error(err)
	}
	if commits(t, client, first, prefix+"x") {
		t.Error("who has resigned can write")
	}
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), election.ErrResigned) || !errors.Is(first.Why(), election.ErrResigned) {
		t.Errorf("cause %v, why %v", context.Cause(ctx), first.Why())
	}
	second := <-elected
	defer func() { _ = second.Resign(t.Context()) }()
	if second.Term != 2 || leader(t, client, prefix) != "b" || !commits(t, client, second, prefix+"x") {
		t.Errorf("term %d", second.Term)
	}
}

// TestDeposition: whatever takes the key away ends the leadership, at once.
func TestDeposition(t *testing.T) {
	t.Parallel()
	for name, depose := range map[string]func(context.Context, *clientv3.Client, string, clientv3.LeaseID) error{
		"key deleted": func(ctx context.Context, client *clientv3.Client, key string, _ clientv3.LeaseID) error {
			_, err := client.Delete(ctx, key)
			return err
		},
		"lease revoked": func(ctx context.Context, client *clientv3.Client, _ string, id clientv3.LeaseID) error {
			_, err := client.Revoke(ctx, id)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, prefix := shared.Client(t), ownPrefix()
			l := campaign(t, config(client, prefix, "a", time.Minute))
			keys, err := client.Get(t.Context(), prefix+"candidates/", clientv3.WithPrefix())
			if err != nil || len(keys.Kvs) != 1 {
				t.Fatal(keys, err)
			}
			if err := depose(t.Context(), client, string(keys.Kvs[0].Key), clientv3.LeaseID(keys.Kvs[0].Lease)); err != nil {
				t.Fatal(err)
			}
			if commits(t, client, l, prefix+"x") {
				t.Error("a deposed leader can write")
			}
			<-l.Done()
			if !errors.Is(l.Why(), election.ErrDeposed) {
				t.Errorf("ended by %v", l.Why())
			}
			again := campaign(t, config(client, prefix, "a", time.Minute))
			if again.Term != 2 {
				t.Errorf("term %d", again.Term)
			}
		})
	}
}

func TestCampaignObeysItsContext(t *testing.T) {
	t.Parallel()
	client, prefix := shared.Client(t), ownPrefix()
	campaign(t, config(client, prefix, "a", time.Minute))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := election.Campaign(ctx, config(client, prefix, "b", time.Minute))
		ended <- err
	}()
	time.AfterFunc(50*time.Millisecond, cancel)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	keys, err := client.Get(t.Context(), prefix+"candidates/", clientv3.WithPrefix())
	if err != nil || len(keys.Kvs) != 1 {
		t.Errorf("who has given up still stands: %v, %v", keys, err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]election.Config{
		"short":  config(nil, "/x/", "a", time.Second),
		"half":   config(nil, "/x/", "a", 2500*time.Millisecond),
		"prefix": config(nil, "/x", "a", 10*time.Second),
		"name":   config(nil, "/x/", "", 10*time.Second),
	} {
		if _, err := election.Campaign(t.Context(), c); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTrustEndsBeforeTheLease cuts a leader off from etcd. It must stop trusting its leadership
// before another one can be elected.
func TestTrustEndsBeforeTheLease(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	for range 3 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			link := etcdtest.NewLink(t, shared.Endpoints()[0])
			cut, err := etcd.Dial(t.Context(), etcd.Config{Endpoints: []string{link.URL()}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cut.Close() }()
			prefix := ownPrefix()
			first := campaign(t, config(cut, prefix, "a", ttl))
			link.Cut()
			campaign(t, config(shared.Client(t), prefix, "b", ttl))
			if why := first.Why(); !errors.Is(why, election.ErrExpired) {
				t.Errorf("another one leads, and the leadership before it was ended by %v", why)
			}
		})
	}
}

// TestHandsOver: a leader that cannot do its work hands over to the candidate that can, past one
// that cannot, and stays if nobody can.
func TestHandsOver(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client, prefix := shared.Client(t), ownPrefix()
	var faults [3]watch.Memory[string]
	won := make(chan *election.Leadership, 3)
	stand := func(n int) {
		c := config(client, prefix, fmt.Sprintf("n%d", n), time.Minute)
		c.Candidate.Fault, _ = faults[n].Get()
		c.Fault = &faults[n]
		l, err := election.Campaign(ctx, c)
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		won <- l
	}
	faults[0].Set("")
	stand(0)
	first := <-won
	for n := 1; n < 3; n++ {
		faults[n].Set("its API server is dead")
		go stand(n)
		await(t, "the candidates stand", func() bool {
			answer, err := client.Get(t.Context(), prefix+"candidates/", clientv3.WithPrefix(), clientv3.WithCountOnly())
			return err == nil && answer.Count == int64(n+1)
		})
	}
	faults[0].Set("its API server hangs")
	await(t, "the leader tells its fault", func() bool {
		who, _, err := election.Leader(t.Context(), client, prefix)
		return err == nil && who.Fault == "its API server hangs"
	})
	select {
	case <-first.Done():
		t.Fatalf("it handed over, though nobody can do better: %v", first.Why())
	case <-time.After(2500 * time.Millisecond): // longer than it takes to look twice
	}
	faults[2].Set("")
	for range 2 {
		select {
		case <-first.Done():
		case <-ctx.Done():
			t.Fatal("nobody hands over, though another candidate can do the work")
		}
		if !errors.Is(first.Why(), election.ErrHandedOver) {
			t.Fatalf("it ended: %v", first.Why())
		}
		if err := first.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if first = <-won; first == nil {
			return
		}
	}
	if who := leader(t, client, prefix); who != "n2" {
		t.Errorf("%s leads", who)
	}
	_ = first.Resign(t.Context())
}

func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(time.Minute); !so(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
