package reconciler

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestQuestionsAreShared: whoever comes while a question is under way gets the answer to the next
// one, together with all who come until that begins.
func TestQuestionsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var put, yes atomic.Int64
		var running sync.WaitGroup
		q := sharedAnswer[bool]{start: running.Go, put: func() bool {
			n := put.Add(1)
			time.Sleep(time.Second)
			return n == 1 // the API server may not serve any more
		}}
		var asking sync.WaitGroup
		ask := func(callers int) {
			for range callers {
				asking.Go(func() {
					if is, _ := q.ask(t.Context()); is {
						yes.Add(1)
					}
				})
			}
		}
		ask(1)
		time.Sleep(time.Second / 2)
		ask(1000)
		asking.Wait()
		running.Wait()
		if put.Load() != 2 || yes.Load() != 1 {
			t.Errorf("%d questions, and %d were told yes", put.Load(), yes.Load())
		}
		ask(1)
		asking.Wait()
		running.Wait()
		if put.Load() != 3 {
			t.Errorf("%d questions, with one asked later", put.Load())
		}
	})
}

// waiting tells when somebody begins to wait for its end.
type waiting struct {
	context.Context
	begun func()
}

func (w waiting) Done() <-chan struct{} {
	w.begun()
	return w.Context.Done()
}

// TestServingIsAskedTogether: load balancers that ask at the same time cost etcd and the API server
// one question together, and each gets an answer to one that began after he asked.
func TestServingIsAskedTogether(t *testing.T) {
	t.Parallel()
	layout, client := ownLayout(), shared.Client(t)
	register(t, client, layout, "n1", "v1.0.0")
	text, err := done("v1.0.0", "v1.0.0").Encode()
	if err == nil {
		_, err = client.Put(t.Context(), layout.Status(), string(text))
	}
	if err != nil {
		t.Fatal(err)
	}
	door := NewDoor(Ready{Client: client, Layout: layout, Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Logger: quiet(t)})
	var probes atomic.Int64
	asked, goOn := make(chan struct{}, 100), make(chan struct{})
	ask := door.Serving(t.Context(), func(context.Context) error {
		asked <- struct{}{}
		<-goOn
		if probes.Add(1) > 1 {
			return errBroken
		}
		return nil
	})
	var asking sync.WaitGroup
	asking.Go(func() {
		if verdict := ask(t.Context()); !verdict.OK {
			t.Errorf("the first is told no: %s", verdict.Reason)
		}
	})
	<-asked
	const many = 50
	var in sync.WaitGroup
	in.Add(many)
	for range many {
		asking.Go(func() {
			if verdict := ask(waiting{t.Context(), in.Done}); verdict.OK || verdict.Reason != errBroken.Error() {
				t.Errorf("a later one is told of what was before he asked: %+v", verdict)
			}
		})
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if verdict := ask(late); verdict.OK || verdict.Reason == "" {
		t.Errorf("who does not wait is told %+v", verdict)
	}
	in.Wait()
	close(goOn)
	asking.Wait()
	if n := probes.Load(); n != 2 {
		t.Errorf("%d that asked at the same time cost %d questions", many+1, n)
	}
}

// TestExposeLimitsEachSource: one address takes a quarter of the places, whatever it does.
func TestExposeLimitsEachSource(t *testing.T) {
	t.Parallel()
	layout, client := ownLayout(), shared.Client(t)
	register(t, client, layout, "n1", "v1.0.0")
	text, err := done("v1.0.0", "v1.0.0").Encode()
	if err == nil {
		_, err = client.Put(t.Context(), layout.Status(), string(text))
	}
	if err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	e := Expose{
		Target: greeting(t), Logger: quiet(t), most: 8,
		Door: NewDoor(Ready{Client: client, Layout: layout, Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Logger: quiet(t)}),
	}
	open := e.open(t.Context(), listenAt(t, address))
	defer open.close()
	// kept reports whether a new connection gets to the API server, which has a word for it.
	kept := func(from string) (net.Conn, bool) {
		t.Helper()
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		n, _ := conn.Read(make([]byte, 1)) // nothing, when it is refused
		if n == 0 {
			_ = conn.Close()
		}
		return conn, n == 1
	}
	first, ok := kept("127.0.0.1")
	_, second := kept("127.0.0.1")
	_, third := kept("127.0.0.1")
	_, other := kept("127.0.0.2")
	if !ok || !second || third || !other {
		t.Errorf("kept: %t, %t, one too many %t, of another source %t", ok, second, third, other)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for { // as soon as its end is seen
		if _, ok := kept("127.0.0.1"); ok {
			break
		}
	}
}

// greeting says one letter to whoever connects, and nothing else until he goes.
func greeting(t *testing.T) (where string) {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = conn.Write([]byte("h")) // the other end may be gone
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}()
		}
	}()
	return ln.Addr().String()
}

func TestSourceOf(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32", "2001:db8:1:2:3::4": "2001:db8:1:2::/64",
	} {
		if got := sourceOf(&net.TCPAddr{IP: net.ParseIP(address)}); got.String() != want {
			t.Errorf("%s: %s", address, got)
		}
	}
}
