// Package freeport finds ports of loopback for servers that tests stop and start again.
//
// A port belongs to the process that has found it until that process ends: no other test of this
// host finds it, also while nobody listens on it. It is below the ports that others of this host
// draw without asking: simulated worlds and virtual machines from 20,000 on, and outgoing
// connections from 32,768 on. None of them takes it meanwhile.
package freeport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// lowest and count are the range.
const lowest, count = 10_000, 10_000

// owned are the sockets of the ports that were found. Who lets go of one has it closed.
var owned struct {
	sync.Mutex
	sockets []net.Listener
}

// Find returns a port of 127.0.0.1 that nobody listens on.
func Find(ctx context.Context) (port int, err error) {
	var config net.ListenConfig
	for range 1000 {
		port = lowest + rand.IntN(count) //nolint:gosec // any will do
		// The name of an abstract socket is free again when its process has ended, however that ended.
		socket, err := config.Listen(ctx, "unix", fmt.Sprintf("@ironherd-test-port-%d", port))
		if err != nil {
			continue
		}
		if l, err := config.Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			owned.Lock()
			defer owned.Unlock()
			owned.sockets = append(owned.sockets, socket)
			return port, l.Close()
		}
		_ = socket.Close()
	}
	return 0, errors.New("find a free port: all that were tried are taken")
}
