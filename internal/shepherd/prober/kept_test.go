package prober

import (
	"errors"
	"net"
	"testing"
)

// TestWhatComesLateIsNotRead: a host that goes on talking when its answer is judged is not heard,
// which the HTTP client would log. The connection is open still, so that its way can be asked.
func TestWhatComesLateIsNotRead(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer func() { _ = ours.Close() }()
	kept := &keptOpen{Conn: ours}
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { _, err := theirs.Write([]byte("late")); written <- err }()
	if n, err := kept.Read(make([]byte, 4)); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("read %d bytes, %v", n, err)
	}
	if err := <-written; err != nil {
		t.Errorf("the connection was closed: %v", err)
	}
}
