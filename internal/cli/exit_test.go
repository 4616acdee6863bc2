package cli

import (
	"net"
	"os"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	"github.com/ironherd/ironherd/internal/fleet"
)

func TestEveryKindHasAnExitCode(t *testing.T) {
	t.Parallel()
	for _, kind := range fleet.Kinds() {
		code, ok := exitCodes[kind]
		if !ok || code == exitDone {
			t.Errorf("%s has exit code %d (%v)", kind, code, ok)
		}
	}
	if len(exitCodes) != len(fleet.Kinds()) {
		t.Error("there is an exit code for a kind that does not exist")
	}
}

// TestSocketOfAnotherUser: that a control plane cannot be asked does not mean that none runs.
func TestSocketOfAnotherUser(t *testing.T) {
	t.Parallel()
	err := explainUnreachable(t.Context(), "unix:///s.sock",
		connect.NewError(connect.CodeUnavailable, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)}))
	want := "the control plane at unix:///s.sock may not be asked by this user (permission denied): be root, or use --server with a token"
	if fleet.KindOf(err) != fleet.KindForbidden || err.Error() != want {
		t.Errorf("got %s: %v", fleet.KindOf(err), err)
	}
}
