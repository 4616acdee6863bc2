package reconciler

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/reconciler/etcdtest"
	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/node"
)

// TestFaultHandsOver: a leader whose API server does not answer says so, though a pass had nothing
// to ask, and hands over to one whose answers. If nobody's answers, it stays.
func TestFaultHandsOver(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	var r resources
	config := Config{Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, TTL: 15 * time.Second}
	first := start(t, client, config, &r)
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
	first.hand.fail(errors.New("the API server hangs"))
	eventually(t, "it tells", func() bool {
		for _, h := range first.tree.Health(t.Context()) {
			if h.Name == "lead" && strings.Contains(h.Error, "the API server hangs") {
				return true
			}
		}
		return false
	})
	if first.State().Term != 1 {
		t.Error("it has given up, and there was nobody else")
	}
	config.Node = "n2"
	second := start(t, client, config, &r)
	eventually(t, "the other leads", func() bool { return second.State().Term > 0 && first.State().Term == 0 })
	first.hand.fail(nil)
	eventually(t, "all are healthy", func() bool {
		for _, h := range first.tree.Health(t.Context()) {
			if h.Error != "" {
				return false
			}
		}
		return true
	})
}

// TestFaultBesideFailures: a manifest that always fails does not hide that the API server does not
// answer. What the pass compared may be old, so nothing is ready by it.
func TestFaultBesideFailures(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	r := resources{broken: errors.New("a manifest fails"), optional: true}
	config := Config{Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, TTL: 5 * time.Second}
	leader := start(t, client, config, &r)
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
	if state := leader.State(); !state.PassReady || state.PassError == "" {
		t.Errorf("a manifest keeps API servers waiting: %+v", state)
	}
	leader.hand.fail(errors.New("the API server hangs"))
	eventually(t, "the pass is not ready, and says why", func() bool {
		state := leader.State()
		return !state.PassReady && strings.Contains(state.PassError, "the API server hangs")
	})
}

// TestSettlesInEachTerm: a process that leads again waits again, with a status and without one.
func TestSettlesInEachTerm(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	var r resources
	const settle = 1200 * time.Millisecond
	leader := start(t, client, Config{Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, Settle: settle}, &r)
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
	for _, without := range []bool{false, true} {
		term := leader.State().Term
		remove := []clientv3.Op{clientv3.OpDelete(layout.Election()+"candidates/", clientv3.WithPrefix())}
		if without { // both at once: until it is deposed, it writes the status again
			remove = append(remove, clientv3.OpDelete(layout.Status()))
		}
		begun := time.Now()
		if _, err := client.Txn(t.Context()).Then(remove...).Commit(); err != nil {
			t.Fatal(err)
		}
		var passed time.Time // in the new term; until it is deposed, it may pass in the old one
		eventually(t, "it leads and passes again", func() bool {
			state := leader.State()
			passed = state.PassedAt
			return state.Term > term && !passed.IsZero()
		})
		if took := passed.Sub(begun); took < settle {
			t.Errorf("without a status: %v; it passed after %v", without, took)
		}
	}
}

// TestReadyIsLinearizable: a member that has lost the others still has what it knew. Nobody may be
// let serve by that.
func TestReadyIsLinearizable(t *testing.T) {
	t.Parallel()
	cluster, layout := etcdtest.New(t, 3), ownLayout()
	own := build("v1.0.0", "v1.0.0", "v1.0.0")
	register(t, cluster.Client(t), layout, "n1", "v1.0.0")
	text, err := done("v1.0.0", "v1.0.0").Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Client(t).Put(t.Context(), layout.Status(), string(text)); err != nil {
		t.Fatal(err)
	}
	last, err := etcd.Dial(t.Context(), etcd.Config{Endpoints: cluster.Endpoints()[2:]})
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	if ok, why := ready(t, last, layout, "n1", own); !ok {
		t.Fatal(why)
	}
	cluster.Down(0)
	cluster.Down(1)
	door := NewDoor(Ready{Client: last, Layout: layout, Node: "n1", Build: own, Logger: quiet(t)})
	if verdict, _ := door.Ask(t.Context()); verdict.OK {
		t.Errorf("a member without the others lets it serve: %s", verdict.Reason)
	}
}

// TestDoorRemembers: a status that cannot be read stops nobody who was admitted, and admits nobody.
func TestDoorRemembers(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	put := func(text string) {
		t.Helper()
		if _, err := client.Put(t.Context(), layout.Status(), text); err != nil {
			t.Fatal(err)
		}
	}
	door := func() *Door {
		return NewDoor(Ready{Client: client, Layout: layout, Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Logger: quiet(t)})
	}
	is := func(d *Door, want bool, what string) {
		t.Helper()
		if verdict, _ := d.Ask(t.Context()); verdict.OK != want {
			t.Errorf("%s: %+v", what, verdict)
		}
	}
	register(t, client, layout, "n1", "v1.0.0")
	put(`{"state":"done","version":"v1.0.0","minimumCompatible":"v1.0.0"}`)
	before := door()
	is(before, true, "admitted")
	put("garbled")
	is(before, true, "admitted before, and the status is garbled")
	is(door(), false, "not admitted before")
	put(`{"state":"done","version":"v2.0.0","minimumCompatible":"v2.0.0"}`)
	is(before, false, "excluded")
	put("garbled")
	register(t, client, layout, "n1", "v1.1.0")
	register(t, client, layout, "n1", "v1.0.0")
	is(before, false, "the record was written since")
	if _, err := client.Delete(t.Context(), layout.Status()); err != nil {
		t.Fatal(err)
	}
	is(before, false, "no status")
}

// TestDoorRemembersThroughManifests: what a node's manifests say is in its record, too, and is
// written anew with each edit. That is no other admission.
func TestDoorRemembersThroughManifests(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	registry := node.NewRegistry(client, layout, quiet(t))
	declare := func(digest string) {
		t.Helper()
		wrote := answered(t, func() (bool, error) { return registry.Declare(t.Context(), "n1", node.Source{Digest: digest}) })
		if !wrote {
			t.Errorf("%s is not declared", digest)
		}
	}
	register(t, client, layout, "n1", "v1.0.0")
	door := NewDoor(Ready{Client: client, Layout: layout, Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Logger: quiet(t)})
	for _, step := range []struct {
		status string
		do     func()
		want   bool
	}{
		{status: `{"state":"done","version":"v1.0.0","minimumCompatible":"v1.0.0"}`, do: func() { declare("a") }, want: true},
		{status: "garbled", do: func() { declare("b"); declare("c") }, want: true},
		{status: "garbled", do: func() { declare("d") }, want: true},
		{status: "garbled", do: func() {
			register(t, client, layout, "n1", "v1.1.0")
			declare("e")
			register(t, client, layout, "n1", "v1.0.0")
		}},
	} {
		if _, err := client.Put(t.Context(), layout.Status(), step.status); err != nil {
			t.Fatal(err)
		}
		step.do()
		if verdict, _ := door.Ask(t.Context()); verdict.OK != step.want {
			t.Errorf("%+v: %+v", step, verdict)
		}
	}
}

// TestExposeConnectsFirst: while etcd's answer is on its way, the API server of the old release
// stops, the node's record changes, and one of a new release starts. No client may get to that.
func TestExposeConnectsFirst(t *testing.T) {
	t.Parallel()
	layout, own := ownLayout(), build("v1.0.0", "v1.0.0", "v1.0.0")
	client := shared.Client(t)
	register(t, client, layout, "n1", "v1.0.0")
	text, err := done("v1.0.0", "v1.0.0").Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(t.Context(), layout.Status(), string(text)); err != nil {
		t.Fatal(err)
	}
	link := etcdtest.NewLink(t, shared.Endpoints()[0])
	slow, err := etcd.Dial(t.Context(), etcd.Config{Endpoints: []string{link.URL()}})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	target, stopOld := says(t, "127.77.3.2:0", "old") // whence nobody connects
	e := Expose{
		Target: target, Door: NewDoor(Ready{Client: slow, Layout: layout, Node: "n1", Build: own, Logger: quiet(t)}),
		Probe: func(context.Context) error { return nil }, Logger: quiet(t),
	}
	if got := through(t, e); got != "old" {
		t.Fatalf("a client gets %q", got)
	}
	link.Delay(time.Second)
	var asking sync.WaitGroup
	var got string
	asking.Go(func() { got = through(t, e) })
	<-time.After(500 * time.Millisecond)
	stopOld()
	if _, err := node.NewRegistry(client, layout, quiet(t)).Register(t.Context(), "n1", node.Record{Roles: []string{node.Controller}, Release: v("v2.0.0")}); err != nil {
		t.Fatal(err)
	}
	_, stopNew := says(t, target, "new")
	defer stopNew()
	asking.Wait()
	if got == "new" {
		t.Error("a client got to an API server that nobody has admitted")
	}
	link.Delay(0)
	if got := through(t, e); got != "" {
		t.Errorf("a client gets %q", got)
	}
}

// TestExposeIsPatient: a failure that passes cuts no client, and one that stays does. A status that
// excludes the API server does so at once.
func TestExposeIsPatient(t *testing.T) {
	t.Parallel()
	layout, client := ownLayout(), shared.Client(t)
	register(t, client, layout, "n1", "v1.0.0")
	put := func(at string) {
		t.Helper()
		text, err := done(at, at).Encode()
		if err == nil {
			_, err = client.Put(t.Context(), layout.Status(), string(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put("v1.0.0")
	var fails atomic.Bool
	asked := make(chan struct{})
	exposed := func(patience time.Duration) string {
		e := Expose{
			Address: freeAddress(t), Target: silent(t),
			Door: NewDoor(Ready{Client: client, Layout: layout, Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Logger: quiet(t)}),
			Probe: func(context.Context) error {
				select {
				case asked <- struct{}{}:
				default:
				}
				if fails.Load() {
					return errors.New("not ready")
				}
				return nil
			},
			Logger: quiet(t), patience: patience,
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx) }()
		t.Cleanup(func() { stop(); <-ended })
		return e.Address
	}
	patient := connectTo(t, exposed(time.Hour))
	fails.Store(true)
	for range 3 {
		<-asked
	}
	if cut(patient, time.Millisecond) {
		t.Error("a failure cuts a client at once")
	}
	fails.Store(false)
	conn := connectTo(t, exposed(time.Millisecond))
	fails.Store(true)
	if !cut(conn, time.Minute) {
		t.Error("a failure that stays cuts no client")
	}
	fails.Store(false)
	put("v2.0.0")
	if !cut(patient, time.Minute) {
		t.Error("the client of an API server that may not serve any more stays")
	}
}

// silent listens, accepts, and says nothing.
func silent(t *testing.T) (where string) {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		var kept []net.Conn
		for {
			conn, err := ln.Accept()
			if err != nil {
				break
			}
			kept = append(kept, conn)
		}
		for _, conn := range kept {
			_ = conn.Close()
		}
	}()
	return ln.Addr().String()
}

// freeAddress is one that nobody listens at, nor connects from.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.77.3.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// listenAt listens, as soon as no process that starts just now holds the port of a socket that was
// closed.
func listenAt(t *testing.T, address string) net.Listener {
	t.Helper()
	for {
		ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
		if err == nil {
			return ln
		}
		if t.Context().Err() != nil || !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// connectTo connects as soon as somebody listens.
func connectTo(t *testing.T, address string) net.Conn {
	t.Helper()
	for {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err == nil && !cut(conn, 100*time.Millisecond) {
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// cut reports whether a connection ends within that time.
func cut(conn net.Conn, within time.Duration) bool {
	_ = conn.SetReadDeadline(time.Now().Add(within))
	_, err := conn.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// says listens, and says a word to each client.
func says(t *testing.T, address, word string) (where string, stop func()) {
	t.Helper()
	ln := listenAt(t, address)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(word)) // the other end may be gone
			_ = conn.Close()
		}
	}()
	stop = sync.OnceFunc(func() { _ = ln.Close() })
	t.Cleanup(stop)
	return ln.Addr().String(), stop
}

// through is what a client gets that is forwarded.
func through(t *testing.T, e Expose) string {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Error(err)
		return ""
	}
	defer ln.Close()
	open := e.open(t.Context(), ln)
	defer open.close()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Error(err)
		return ""
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	var word [3]byte
	n, _ := conn.Read(word[:]) // nothing, when it is refused
	return string(word[:n])
}

// revoking is an etcd client's lease that looks before it is given up.
type revoking struct {
	clientv3.Lease

	look func()
}

func (r revoking) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	r.look()
	return r.Lease.Revoke(ctx, id)
}

// TestResignEndsWhatRunsFirst: when others see that the key is gone, nothing is bound to it any
// more.
func TestResignEndsWhatRunsFirst(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	l, err := campaign(t, client, layout, "n1")
	if err != nil {
		t.Fatal(err)
	}
	bound, release := l.Bind(t.Context())
	defer release()
	revoked := 0
	client.Lease = revoking{client.Lease, func() {
		if revoked++; bound.Err() == nil {
			t.Error("the key is given up before what runs has ended")
		}
	}}
	if err := l.Resign(t.Context()); err != nil || revoked != 1 {
		t.Fatalf("given up %d times: %v", revoked, err)
	}
	if !errors.Is(context.Cause(bound), election.ErrResigned) {
		t.Error(context.Cause(bound))
	}
}
