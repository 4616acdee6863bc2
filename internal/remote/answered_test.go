package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestAnswered: what a failed dial says of the host.
func TestAnswered(t *testing.T) {
	t.Parallel()
	dial := func(errno syscall.Errno) error {
		return fleet.Errorf(fleet.KindTemporary, "192.0.2.1:22: %w",
			&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno)})
	}
	for name, c := range map[string]struct {
		err  error
		want fleet.Answer
	}{
		"no connection":        {fleet.Errorf(fleet.KindTimeout, "did not accept a connection within 2s"), fleet.AnswerNone},
		"no end of the dialog": {fmt.Errorf("dial: %w", fleet.Errorf(fleet.KindTimeout, "no handshake")), fleet.AnswerNone},
		"no route to the host": {dial(syscall.EHOSTUNREACH), fleet.AnswerNone},
		"it is down":           {dial(syscall.EHOSTDOWN), fleet.AnswerNone},
		"it went away":         {fmt.Errorf("GET: %w", dial(syscall.ETIMEDOUT)), fleet.AnswerNone},
		"refused":              {dial(syscall.ECONNREFUSED), fleet.AnswerGiven},
		"reset":                {fleet.Errorf(fleet.KindTemporary, "handshake: %w", said{dial(syscall.ECONNRESET)}), fleet.AnswerGiven},
		"reset before a write": {dial(syscall.EPIPE), fleet.AnswerGiven},
		"our key is refused":   {fleet.Errorf(fleet.KindUnauthenticated, "refuses the key"), fleet.AnswerRefused},
		"another host key":     {&HostKeyError{}, fleet.AnswerOtherKey},
		"anything else":        {errors.New("it broke"), fleet.AnswerGiven},
		"no error":             {nil, fleet.AnswerGiven},
	} {
		if got := Answered(c.err); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestFaultsOfOurOwnHost: what keeps us from connecting says nothing of the host, and the error
// says whose fault it is.
func TestFaultsOfOurOwnHost(t *testing.T) {
	t.Parallel()
	key, _, err := NewKey("test")
	if err != nil {
		t.Fatal(err)
	}
	target := Target{Address: netip.MustParseAddrPort("192.0.2.1:22"), User: "root", Trust: Trust{FirstUse: true}}
	for _, errno := range []syscall.Errno{
		syscall.EPERM, syscall.EACCES, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EAGAIN,
		syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EADDRNOTAVAIL, syscall.EADDRINUSE, syscall.EAFNOSUPPORT, syscall.EINVAL,
	} {
		dialer := NewDialer(key, Options{Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno)}
		}})
		_, err := dialer.Dial(t.Context(), target)
		words := "192.0.2.1:22: " + errno.Error() + " (the fault is of this host: "
		if got := Answered(err); got != fleet.AnswerUnknown || fleet.KindOf(err) != fleet.KindTemporary || !strings.HasPrefix(err.Error(), words) {
			t.Errorf("%v: %d, %s: %v", errno, got, fleet.KindOf(err), err)
		}
	}
}

// TestARouterOnTheWayAnswersForTheHost: our kernel tells the ICMP of a router with the words of its
// own routes and filters. It has a route then.
func TestARouterOnTheWayAnswersForTheHost(t *testing.T) {
	t.Parallel()
	key := newTestKey(t)
	for name, c := range map[string]struct {
		address string
		errno   syscall.Errno
		route   error
		want    fleet.Answer
	}{
		"no route there":                    {"192.0.2.1:22", syscall.ENETUNREACH, nil, fleet.AnswerNone},
		"no route there, IPv6":              {"[2001:db8::1]:22", syscall.ENETUNREACH, nil, fleet.AnswerNone},
		"prohibited there":                  {"[2001:db8::1]:22", syscall.EACCES, nil, fleet.AnswerNone},
		"no route here":                     {"192.0.2.1:22", syscall.ENETUNREACH, syscall.ENETUNREACH, fleet.AnswerUnknown},
		"prohibited here":                   {"[2001:db8::1]:22", syscall.EACCES, syscall.EACCES, fleet.AnswerUnknown},
		"no ICMP of IPv4 is told like this": {"192.0.2.1:22", syscall.EACCES, nil, fleet.AnswerUnknown},
		"nor under an address of IPv6":      {"[::ffff:192.0.2.1]:22", syscall.EACCES, nil, fleet.AnswerUnknown},
		"a filter here":                     {"[2001:db8::1]:22", syscall.EPERM, nil, fleet.AnswerUnknown},
		"a limit of ours":                   {"192.0.2.1:22", syscall.EMFILE, nil, fleet.AnswerUnknown},
		"it does not answer its router":     {"192.0.2.1:22", syscall.EHOSTUNREACH, nil, fleet.AnswerNone},
	} {
		dialer := NewDialer(key, Options{Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", c.errno)}
		}})
		dialer.route = func(context.Context, string) error { return c.route }
		_, err := dialer.Probe(t.Context(), Target{Address: netip.MustParseAddrPort(c.address), User: "root", Trust: Trust{FirstUse: true}})
		ours := strings.Contains(err.Error(), "of this host")
		if got := Answered(err); got != c.want || ours != (c.want == fleet.AnswerUnknown) || fleet.KindOf(err) != fleet.KindTemporary || !errors.Is(err, c.errno) ||
			!strings.HasPrefix(err.Error(), c.address+": "+c.errno.Error()) {
			t.Errorf("%s: %d, want %d: %v", name, got, c.want, err)
		}
	}
	if err := route(t.Context(), "127.0.0.1:22"); err != nil {
		t.Errorf("there is no route to ourselves: %v", err)
	}
	if err := route(t.Context(), "[fe80::1]:22"); err == nil { // of which interface, nothing says
		t.Error("there is a route to anywhere")
	}
}
