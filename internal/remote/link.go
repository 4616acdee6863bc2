package remote

import (
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/crypto/ssh"
)

// link is the connection below SSH. When the connection ends, link makes the SSH library refuse
// every further write, and only then tells it that nothing more can be read.
//
// The order matters because of how golang.org/x/crypto/ssh opens a channel: it puts the channel on
// a list, writes the request and waits for the answer. When nothing can be read any more, the
// library ends the channels that are on the list, and a moment later it begins to refuse writes. A
// channel that is opened between the two waits for ever. That the write itself fails does not help:
// the library keeps the error for the next writer.
//
// Where the library itself finds the end in what it reads, a disconnect message for instance, link
// does not learn of it in time. Then Host.bounded keeps the next operation out of that gap.
type link struct {
	net.Conn
	// lost tells that the host or the network ended the connection. The library forgets it in the
	// middle of an authentication, and reports a refused key instead.
	lost atomic.Bool
	// closed tells that we end it, as the library does once a key is refused. What reads and writes
	// find then says nothing of the host: behind a jump host it is the end of a stream.
	closed atomic.Bool

	// heard is called when the host has said something. Nil: nobody wants to know.
	heard func()

	mu sync.Mutex
	// err is what ended the connection. Nil: it has not ended.
	err error
	// above is the library's connection. Nil: the handshake is not over.
	above ssh.Conn
}

// Read reads. When that fails, the library already refuses writes.
func (l *link) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if n > 0 && l.heard != nil {
		l.heard()
	}
	if err != nil {
		l.failed()
		l.end(err)
	}
	return n, err
}

// Write writes. After the end it fails with the error of the read, which the library would report.
func (l *link) Write(p []byte) (int, error) {
	if err := l.endCause(); err != nil {
		return 0, err
	}
	n, err := l.Conn.Write(p)
	if err != nil {
		l.failed() // before the library gives up and closes, which may be before the read fails
		if cause := l.endCause(); cause != nil {
			return n, cause
		}
	}
	return n, err
}

// Close closes the connection.
func (l *link) Close() error {
	l.closed.Store(true)
	return l.Conn.Close()
}

// failed notes that a read or a write failed.
func (l *link) failed() {
	if !l.closed.Load() {
		l.lost.Store(true)
	}
}

func (l *link) endCause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// attach tells link which connection of the library is above it. When attach returns, the library
// refuses writes if the link has ended already.
func (l *link) attach(above ssh.Conn) {
	l.mu.Lock()
	l.above = above
	ended := l.err != nil
	l.mu.Unlock()
	if ended {
		failWrite(above)
	}
}

// end closes the connection, which frees a writer that hangs, and makes the library refuse writes.
func (l *link) end(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	above := l.above
	l.mu.Unlock()
	_ = l.Conn.Close()
	if above != nil {
		failWrite(above)
	}
}

// failWrite has the library fail at a write, after which it refuses all others. Any request that
// needs no answer does. The wait is bounded because the library may be exchanging keys: then it
// queues writes, and once its queue is full it makes them wait for that very read.
func failWrite(above ssh.Conn) {
	failed := make(chan struct{})
	go func() {
		defer close(failed)
		_, _, _ = above.SendRequest("keepalive@openssh.com", false, nil)
	}()
	settled(failed)
}
