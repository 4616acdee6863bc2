package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

// networks is how many networks there are, from 127.16.0.0/16 to 127.255.0.0/16.
const networks = 240

// networkOf is the network that the addresses of a new world begin in. The seed decides it, so that
// worlds with seeds next to each other can share an SSH port.
func networkOf(seed uint64) int { return int((seed - 1) % networks) } //nolint:gosec // below 240

// claimAddress belongs to no machine.
func claimAddress(network int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(16 + network), 0, 1})
}

// publicAddress is the address of the machine in a slot. In network 0 they are 127.16.0.2 to
// 127.16.0.254, then 127.16.1.2, and so on.
func publicAddress(network, slot int) netip.Addr {
	block := slot / 253
	return netip.AddrFrom4([4]byte{127, byte(16 + (network+block/256)%networks), byte(block % 256), byte(2 + slot%253)})
}

// privateAddress and publicAddress6 are only told; nothing answers there.
func privateAddress(slot int) netip.Addr {
	n := 2 + 2*slot
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

func publicAddress6(slot int) netip.Addr {
	address := netip.MustParseAddr("2001:db8:1607::").As16()
	n := 2 + 2*slot
	address[13], address[14], address[15] = byte(n>>16), byte(n>>8), byte(n)
	return netip.AddrFrom16(address)
}

// Ports that are chosen lie below those that Linux gives to outgoing connections, so that they are
// still free after a restart.
const (
	firstPort = 20_000
	lastPort  = 32_000
)

// listenOn listens on an address; its port 0 means any that is free.
func listenOn(ctx context.Context, address string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: want address:port", address)
	}
	if port != "0" {
		return listenAgain(ctx, address)
	}
	var config net.ListenConfig
	for range 1000 {
		l, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(firstPort+rand.IntN(lastPort-firstPort))))
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return nil, fmt.Errorf("listen on %s: no free port from %d to %d", host, firstPort, lastPort)
}

// forking is for how long a port that was just given back may still be taken. A process that this
// one starts holds all its sockets until it executes its own program.
const forking = 2 * time.Second

// listenAgain listens on an address that this world may have listened on before.
func listenAgain(ctx context.Context, address string) (net.Listener, error) {
	var config net.ListenConfig
	for deadline := time.Now().Add(forking); ; {
		l, err := config.Listen(ctx, "tcp", address)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
		if !until(ctx, time.Now().Add(5*time.Millisecond)) {
			return nil, ctx.Err()
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("listen on %s: the port is %w", address, ErrInUse)
		}
	}
}
