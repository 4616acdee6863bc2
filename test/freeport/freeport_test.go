package freeport_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/ironherd/ironherd/test/freeport"
)

// TestAPortIsFoundOnce, although nobody listens on it, and is none that others draw; that it can be
// listened on is seen, too.
func TestAPortIsFoundOnce(t *testing.T) {
	t.Parallel()
	t.Cleanup(freeport.LetGo) // others need some, too
	found := make(map[int]bool)
	for range 500 { // two of 10,000 would be the same with near certainty
		port, err := freeport.Find(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if found[port] {
			t.Fatalf("port %d was found twice", port)
		}
		if port >= 20_000 { // there package sim and package vm draw theirs
			t.Fatalf("port %d was found, which others may take while nobody listens on it", port)
		}
		found[port] = true
	}
	port, err := freeport.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}
