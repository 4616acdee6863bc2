package remote

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestAnswered: what a failed dial says of the host.
func TestAnswered(t *testing.T) {
	t.Parallel()
	dial := func(errno syscall.Errno) error {
		return fleet.Errorf(fleet.KindTemporary, "connect: %w",
			&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno)})
	}
	for name, c := range map[string]struct {
		err  error
		want fleet.Answer
	}{
		"no connection":        {fleet.Errorf(fleet.KindTimeout, "did not accept a connection within 2s"), fleet.AnswerNone},
		"no end of the dialog": {fmt.Errorf("dial: %w", fleet.Errorf(fleet.KindTimeout, "no handshake")), fleet.AnswerNone},
		"no route to the host": {dial(syscall.EHOSTUNREACH), fleet.AnswerNone},
		"our network is away":  {dial(syscall.ENETUNREACH), fleet.AnswerUnknown},
		"refused":              {dial(syscall.ECONNREFUSED), fleet.AnswerGiven},
		"our key is refused":   {fleet.Errorf(fleet.KindUnauthenticated, "refuses the key"), fleet.AnswerGiven},
		"another host key":     {&HostKeyError{}, fleet.AnswerGiven},
		"anything else":        {errors.New("it broke"), fleet.AnswerGiven},
		"no error":             {nil, fleet.AnswerGiven},
	} {
		if got := Answered(c.err); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
