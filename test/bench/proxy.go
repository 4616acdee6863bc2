package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ironherd/ironherd/internal/bmdb/postgres"
)

type pgxTx = pgx.Tx

// proxy stands between clients and the server and counts round trips: how often the server says
// that it is ready for the next question. It takes time of its own, so nothing is timed through it.
type proxy struct {
	listener net.Listener
	server   string
	trips    atomic.Int64
	done     sync.WaitGroup
}

func startProxy(ctx context.Context, server string) (*proxy, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, server: u.Host}
	p.done.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.done.Go(func() { p.serve(ctx, client) })
		}
	})
	return p, nil
}

// url is the address of the database through the proxy.
func (p *proxy) url(direct string) (string, error) {
	u, err := url.Parse(direct)
	if err != nil {
		return "", err
	}
	u.Host = p.listener.Addr().String()
	return u.String(), nil
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.done.Wait()
}

func (p *proxy) serve(ctx context.Context, client net.Conn) {
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", p.server)
	if err != nil {
		_ = client.Close()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
	both.Go(func() { _ = p.count(client, server); _ = client.Close() })
	both.Wait()
}

// readyForQuery is the type of the message that ends every answer of the server.
const readyForQuery = 'Z'

// count passes on what the server says: messages of a type, a length that counts itself, and a
// body.
func (p *proxy) count(client io.Writer, server io.Reader) error {
	in, out := bufio.NewReaderSize(server, 1<<16), bufio.NewWriterSize(client, 1<<16)
	var head [5]byte
	for {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		if head[0] == readyForQuery {
			p.trips.Add(1)
		}
		_, err := out.Write(head[:])
		if err == nil {
			_, err = io.CopyN(out, in, int64(binary.BigEndian.Uint32(head[1:]))-4)
		}
		if err == nil && in.Buffered() == 0 {
			err = out.Flush()
		}
		if err != nil {
			return err
		}
	}
}

// roundTrips counts, for some thousand cycles, how often each side asks.
func (b *bench) roundTrips(ctx context.Context, ours *subject, reference *riverSide) error {
	cycles := 20 * b.batch
	our, err := b.tripsOf(ctx, b.pg.URL(ours.name), func(url string) (n int, err error) {
		db, err := open(ctx, url, postgres.Options{}, false)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		session, err := startSession(ctx, db, "initializer")
		if err != nil {
			return 0, err
		}
		c := &cycler{db: db, session: session, batch: b.batch, hold: b.machines / 2}
		if n, err = c.run(ctx, time.Now().Add(time.Minute), cycles); err != nil {
			return 0, err
		}
		return n, session.Close(ctx, "done")
	})
	if err != nil {
		return err
	}
	if err := reference.fresh(ctx); err != nil {
		return err
	}
	if err := reference.insert(ctx, cycles); err != nil {
		return err
	}
	theirs, err := b.tripsOf(ctx, b.pg.URL(reference.name), func(url string) (int, error) {
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			return 0, err
		}
		defer pool.Close()
		return reference.run(ctx, pool, time.Minute, cycles)
	})
	if err != nil {
		return err
	}
	b.table.add(row{what: "lease cycle: round trips", ours: number(our), reference: number(theirs), ratio: number(our / theirs)})
	return nil
}

func (b *bench) tripsOf(ctx context.Context, direct string, do func(url string) (int, error)) (float64, error) {
	p, err := startProxy(ctx, direct)
	if err != nil {
		return 0, err
	}
	through, err := p.url(direct)
	if err != nil {
		return 0, err
	}
	n, err := do(through)
	p.close()
	if err != nil {
		return 0, err
	}
	return float64(p.trips.Load()) / float64(max(n, 1)), nil
}
