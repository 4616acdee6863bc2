package election

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/release"
	"github.com/ironherd/ironherd/reconciler/watch"
)

// Config describes an election and one candidate.
type Config struct {
	Client *clientv3.Client
	// Prefix of the election's keys; it ends with a slash.
	Prefix string
	// TTL is the time after which a leader that is gone is replaced: whole seconds, at least MinTTL.
	TTL time.Duration
	// Candidate is what other processes see of this one.
	Candidate Candidate
	Logger    *slog.Logger
	// Fault is why this candidate cannot do a leader's work; empty: it can. While it is set, a leader
	// hands over to the next candidate that has none. May be nil: there is never one.
	Fault watch.Value[string]
}

// MinTTL is the shortest TTL that etcd grants with its defaults.
const MinTTL = 2 * time.Second

// Candidate describes a candidate to people.
type Candidate struct {
	Name string `json:"name"`
	// Build of the candidate. What the leader decides depends on it.
	Build release.Build `json:"build"`
	// Since is when the candidacy began, by the candidate's own clock.
	Since time.Time `json:"since,omitzero"`
	// Fault is why it cannot do a leader's work, as it says; empty: it can.
	Fault string `json:"fault,omitempty"`
}

// Validate reports every fault, as failure.Invalid.
func (c Config) Validate() error {
	var errs []error
	if c.TTL < MinTTL || c.TTL%time.Second != 0 {
		errs = append(errs, fleet.Errorf(fleet.KindInvalid, "the election's TTL must be whole seconds, at least %s, not %s", MinTTL, c.TTL))
	}
	if c.Prefix == "" || c.Prefix[len(c.Prefix)-1] != '/' {
		errs = append(errs, fleet.Errorf(fleet.KindInvalid, "the election's prefix must end with a slash: %q", c.Prefix))
	}
	if c.Candidate.Name == "" {
		errs = append(errs, fleet.Errorf(fleet.KindInvalid, "the candidate's name must be set"))
	}
	return errors.Join(errs...)
}

func (c Config) candidates() string { return c.Prefix + "candidates/" }

// term is the key whose version counts the leaderships.
func (c Config) term() string { return c.Prefix + "term" }

// Leadership is one term of a leader. Its owner calls Resign in the end, even if it has ended by
// itself.
type Leadership struct {
	// Term counts the leaderships of this election, from 1.
	Term int64

	lease   *lease
	key     string
	created int64
	leads   atomic.Bool
}

// Campaign stands for election and returns when it has won. If ctx ends before that, or anything
// else fails, it gives the candidacy up. The leadership that it returns does not end with ctx.
func Campaign(ctx context.Context, config Config) (*Leadership, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	lease, err := grant(ctx, config.Client, config.TTL, config.Logger)
	if err != nil {
		return nil, err
	}
	l := &Leadership{lease: lease}
	if err := l.win(ctx, config); err != nil {
		if why := lease.window.Cause(); why != nil {
			err = fmt.Errorf("%w: %w", why, err)
		}
		return nil, errors.Join(err, l.Resign(ctx))
	}
	lease.running.Go(func() { l.watch(context.WithoutCancel(ctx), config.Client) })
	return l, nil
}

func (l *Leadership) win(ctx context.Context, config Config) error {
	ctx, cancel := l.Bind(ctx)
	defer cancel()
	candidate := config.Candidate
	candidate.Since = time.Now().UTC()
	text, err := json.Marshal(candidate)
	if err != nil {
		return fmt.Errorf("stand for election: %w", err)
	}
	l.key = config.candidates() + strconv.FormatInt(int64(l.lease.id), 16)
	entered, err := config.Client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(l.key), "=", 0)).
		Then(clientv3.OpPut(l.key, string(text), clientv3.WithLease(l.lease.id))).Commit()
	if err != nil {
		return fmt.Errorf("stand for election: %w", err)
	}
	if !entered.Succeeded {
		return fleet.Errorf(fleet.KindConflict, "stand for election: the key %s is taken", l.key)
	}
	l.created = entered.Header.GetRevision()
	if config.Fault != nil {
		telling, release := l.Bind(context.WithoutCancel(ctx))
		l.lease.running.Go(func() {
			defer release()
			l.tell(telling, config, candidate)
		})
	}
	if err := l.await(ctx, config); err != nil {
		return err
	}
	began, err := config.Client.Txn(ctx).If(l.Conditions()...).
		Then(clientv3.OpPut(config.term(), string(text)), clientv3.OpGet(config.term())).Commit()
	if err != nil {
		return fmt.Errorf("begin a term: %w", err)
	}
	if !began.Succeeded {
		return ErrDeposed
	}
	l.Term = began.Responses[1].GetResponseRange().GetKvs()[0].GetVersion()
	l.leads.Store(true)
	return nil
}

// tellEvery is how often a candidate with a fault tries again to tell it, and how often a leader
// with one looks for somebody to hand over to.
const tellEvery = time.Second

// tell keeps the fault of this candidate in its key, until ctx ends. It ends the leadership of a
// candidate with a fault when another one has none.
func (l *Leadership) tell(ctx context.Context, config Config, candidate Candidate) {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	faults, told := config.Fault.Watch(ctx), candidate.Fault
	for {
		select {
		case fault, ok := <-faults:
			if !ok {
				return
			}
			candidate.Fault = fault
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if candidate.Fault != told && l.put(ctx, config, candidate) == nil {
			told = candidate.Fault
		}
		if candidate.Fault != "" && l.leads.Load() && l.otherIsFit(ctx, config) {
			l.lease.window.Close(ErrHandedOver)
			return
		}
	}
}

// put writes what others see of a candidate into its key.
func (l *Leadership) put(ctx context.Context, config Config, candidate Candidate) error {
	text, err := json.Marshal(candidate)
	if err != nil {
		return fmt.Errorf("describe a candidate: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, config.TTL/4)
	defer cancel()
	_, err = config.Client.Txn(ctx).If(l.Conditions()...).Then(clientv3.OpPut(l.key, string(text), clientv3.WithLease(l.lease.id))).Commit()
	return err
}

// otherIsFit reports whether there is another candidate, one without a fault.
func (l *Leadership) otherIsFit(ctx context.Context, config Config) bool {
	ctx, cancel := context.WithTimeout(ctx, config.TTL/4)
	defer cancel()
	answer, err := config.Client.Get(ctx, config.candidates(), clientv3.WithPrefix())
	if err != nil {
		return false
	}
	for _, kv := range answer.Kvs {
		var other Candidate
		if string(kv.Key) != l.key && json.Unmarshal(kv.Value, &other) == nil && other.Fault == "" {
			return true
		}
	}
	return false
}

// await waits until there is no older candidate.
func (l *Leadership) await(ctx context.Context, config Config) error {
	for {
		older, err := config.Client.Get(ctx, config.candidates(),
			append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(l.created-1))...)
		if err != nil {
			return fmt.Errorf("wait to be elected: %w", err)
		}
		if len(older.Kvs) == 0 {
			return nil
		}
		l.awaitGone(ctx, config.Client, string(older.Kvs[0].Key), older.Header.GetRevision())
		if ctx.Err() != nil {
			return fmt.Errorf("wait to be elected: %w", context.Cause(ctx))
		}
	}
}

// rewatch is the time after which a watch is begun anew: one that has lost its connection is
// silent.
const rewatch = 5 * time.Second

// awaitGone returns when the key has been deleted after the revision, or when the watch has ended.
func (l *Leadership) awaitGone(ctx context.Context, client *clientv3.Client, key string, revision int64) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), rewatch)
	defer cancel()
	for answer := range client.Watch(ctx, key, clientv3.WithRev(revision+1), clientv3.WithFilterPut()) {
		if len(answer.Events) > 0 {
			return
		}
		if answer.Err() != nil {
			break
		}
	}
	l.lease.clock.Sleep(ctx, time.Second/4) // the watch has failed: pause before the next one
}

// watch ends the leadership when its key is gone.
func (l *Leadership) watch(ctx context.Context, client *clientv3.Client) {
	ctx, cancel := l.Bind(ctx)
	defer cancel()
	for ctx.Err() == nil {
		attempt, done := context.WithTimeout(ctx, rewatch)
		answer, err := client.Get(attempt, l.key)
		done()
		switch {
		case err != nil: // the lease tells how long the leadership may still be trusted
			l.lease.clock.Sleep(ctx, time.Second/4)
		case len(answer.Kvs) == 0 || answer.Kvs[0].CreateRevision != l.created:
			l.lease.window.Close(ErrDeposed)
		default:
			l.awaitGone(ctx, client, l.key, answer.Header.GetRevision())
		}
	}
}

// Conditions returns the conditions under which etcd accepts a transaction from the leader alone.
func (l *Leadership) Conditions() []clientv3.Cmp {
	return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(l.key), "=", l.created)}
}

// Bind returns a context that ends with ctx, or earlier when the leadership can no longer be
// trusted. Its cause is why it has ended.
func (l *Leadership) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	return l.lease.window.Guard(ctx)
}

// Done is closed when the leadership can no longer be trusted.
func (l *Leadership) Done() <-chan struct{} { return l.lease.window.Done() }

// Why returns why the leadership is over: one of this package's errors. It returns nil before.
func (l *Leadership) Why() error { return l.lease.window.Cause() }

// Depose ends the leadership in this process. Its caller has seen a transaction refused under
// Conditions.
func (l *Leadership) Depose() { l.lease.window.Close(ErrDeposed) }

// Resign ends the leadership at once: first what is bound to it, then the key in etcd, so that a
// successor need not wait. It may be called again. After an error the successor has to wait until
// the lease expires.
func (l *Leadership) Resign(ctx context.Context) error {
	l.lease.window.Close(ErrResigned)
	l.lease.running.Wait()
	return l.lease.revoke(ctx)
}

// Leader returns the candidate that leads; found is false when none does.
func Leader(ctx context.Context, client *clientv3.Client, prefix string) (leader Candidate, found bool, err error) {
	config := Config{Prefix: prefix}
	answer, err := client.Get(ctx, config.candidates(), clientv3.WithFirstCreate()...)
	if err != nil {
		return Candidate{}, false, fmt.Errorf("ask who leads: %w", err)
	}
	if len(answer.Kvs) == 0 {
		return Candidate{}, false, nil
	}
	if leader = CandidateOf(answer.Kvs[0].Value); leader.Name == "" {
		leader.Name = string(answer.Kvs[0].Key) // its candidate cannot be read, but it leads
	}
	return leader, true, nil
}

// CandidateOf reads the stored form of a candidate; it has no name if it cannot be read.
func CandidateOf(text []byte) Candidate {
	var c Candidate
	if err := json.Unmarshal(text, &c); err != nil {
		return Candidate{}
	}
	return c
}
