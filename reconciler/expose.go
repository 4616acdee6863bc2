package reconciler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ironherd/ironherd/reconciler/gate"
)

// Expose lets clients reach this node's API server while it may serve, and only then. It forwards
// connections as they are, so that TLS is between the client and the API server.
//
// While the API server may not serve, or does not answer, Expose does not listen: whoever looks for
// a working API server finds the port closed. An open port closes at once when the API server may
// not serve any more. When nobody can tell, because etcd or the API server does not answer, it
// closes after five to eight seconds of that, so that a change of etcd's leader cuts no connection.
//
// For each connection it connects to the API server first, and then asks etcd. The record of a
// node changes only while no API server runs there. So if the record still names our release after
// the connection was made, then the process at its other end is of our release, however long we
// were stopped in between. One question answers for all connections that were made before it began;
// a connection that comes while one is under way waits for that one, too.
//
// Whoever reaches the port may connect. One source, which is an IPv4 address or the /64 of an IPv6
// address, takes a quarter of the places at most; what is above that is closed at once.
type Expose struct {
	// Address is where clients connect, and Target where the API server listens: HOST:PORT.
	Address, Target string
	Door            *Door
	// Probe asks the API server whether it is ready. It should not matter whether the API server
	// knows who asks.
	Probe  func(context.Context) error
	Logger *slog.Logger

	patience time.Duration // 0: exposePatience
	most     int           // 0: maxExposed
}

// How often Expose asks whether the API server may serve and is ready, how long an answer may take,
// for how long an open port stays open without one (the last answer is awaited to its end), and for
// how long a connection that the API server has ended waits for the client.
const (
	exposeEvery    = time.Second
	exposeTimeout  = 3 * time.Second
	exposePatience = 5 * time.Second
	exposeLinger   = 2 * time.Second
)

// Run exposes the API server until ctx ends, and then returns nil. An address at which it cannot
// listen is logged and tried again.
func (e Expose) Run(ctx context.Context) error {
	tick := time.NewTicker(exposeEvery)
	defer tick.Stop()
	var open *exposed
	defer func() { open.close() }()
	last, yes := "", time.Time{}
	for {
		verdict, certain := e.Door.askReady(ctx, e.Probe)
		if verdict.OK {
			yes = time.Now()
		}
		if verdict.OK && open == nil {
			listener, err := new(net.ListenConfig).Listen(ctx, "tcp", e.Address)
			if err == nil {
				open = e.open(ctx, listener)
			} else {
				verdict = gate.Verdict{Reason: err.Error()}
			}
		}
		if !verdict.OK && (certain || time.Since(yes) >= cmp.Or(e.patience, exposePatience)) {
			open.close()
			open = nil
		}
		if verdict.Reason != last && ctx.Err() == nil {
			last = verdict.Reason
			e.Logger.InfoContext(ctx, "whether clients reach the API server", slog.Bool("open", open != nil), slog.String("reason", last))
		}
		select {
		case <-tick.C:
		case <-open.refused():
		case <-ctx.Done():
			return nil
		}
	}
}

// exposed is an open port. Nil is a closed one.
type exposed struct {
	listener net.Listener
	stop     context.CancelFunc
	running  sync.WaitGroup
	no       chan struct{} // has one when a connection was refused
}

// maxExposed is how many connections are forwarded at a time. The unit of expose has the files for
// them. exposedShare is the part of them that may come from one source: clients behind one address
// may be many.
const (
	maxExposed   = 16384
	exposedShare = 4
)

func (e Expose) open(ctx context.Context, listener net.Listener) *exposed {
	ctx, cancel := context.WithCancel(ctx)
	o := &exposed{listener: listener, stop: cancel, no: make(chan struct{}, 1)}
	most := cmp.Or(e.most, maxExposed)
	room := places{total: most, each: most / exposedShare, by: map[netip.Prefix]int{}}
	admits := sharedAnswer[bool]{start: o.running.Go, put: func() bool {
		ctx, cancel := context.WithTimeout(ctx, exposeTimeout)
		defer cancel()
		verdict, _ := e.Door.Ask(ctx)
		return verdict.OK
	}}
	o.running.Go(func() {
		var logged time.Time
		log := func(why error) {
			if time.Since(logged) >= logInterval {
				logged = time.Now()
				e.Logger.WarnContext(ctx, "a client cannot connect", slog.Any("err", why))
			}
		}
		for {
			client, err := listener.Accept()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil: // too many files, or a client that went away
				log(err)
				sleep(ctx, exposeEvery/10)
				continue
			}
			from := sourceOf(client.RemoteAddr())
			if !room.enter(from) {
				_ = client.Close()
				log(fmt.Errorf("%s has too many connections, or all have: at most %d of one address, and %d in all", from, room.each, room.total))
				continue
			}
			o.running.Go(func() {
				defer room.leave(from)
				if !e.forward(ctx, client, admits.ask) {
					select {
					case o.no <- struct{}{}:
					default:
					}
				}
			})
		}
	})
	return o
}

// close closes the port and every connection.
func (o *exposed) close() {
	if o != nil {
		_ = o.listener.Close()
		o.stop()
		o.running.Wait()
	}
}

// refused returns a channel that receives when a connection was refused.
func (o *exposed) refused() <-chan struct{} {
	if o == nil {
		return nil
	}
	return o.no
}

// forward connects a client with the API server, and returns when that has ended. It returns false
// if the client was not let in: admits asks whether the API server may serve.
func (e Expose) forward(ctx context.Context, client net.Conn, admits func(context.Context) (yes, ok bool)) bool {
	defer func() { _ = client.Close() }()
	server, ok := e.connect(ctx, admits)
	if !ok {
		return false
	}
	defer func() { _ = server.Close() }()
	stop := context.AfterFunc(ctx, func() { _, _ = client.Close(), server.Close() })
	defer stop()
	var copying sync.WaitGroup
	copying.Go(func() { pipe(server, client) })
	pipe(client, server)
	// Nobody reads what the client still sends, and a silent one must not keep its place for ever.
	end := time.Now().Add(exposeLinger)
	_, _ = client.SetReadDeadline(end), server.SetWriteDeadline(end)
	copying.Wait()
	return true
}

// connect connects to the API server first, and asks then.
func (e Expose) connect(ctx context.Context, admits func(context.Context) (yes, ok bool)) (server net.Conn, ok bool) {
	dialer := net.Dialer{Timeout: exposeTimeout}
	server, err := dialer.DialContext(ctx, "tcp", e.Target)
	if err != nil {
		return nil, false
	}
	if yes, _ := admits(ctx); !yes {
		_ = server.Close()
		return nil, false
	}
	return server, true
}

// pipe copies until from has ended, and tells to.
func pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from) // either end may end it
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		return
	}
	_ = to.Close()
}
