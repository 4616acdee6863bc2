package cli

import (
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
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

// TestEveryExitCodeIsTold by the help, and by the page for those who write scripts.
func TestEveryExitCodeIsTold(t *testing.T) {
	t.Parallel()
	codes := append(slices.Collect(maps.Values(exitCodes)), exitDone, exitPartly, exitInterrupted)
	for _, code := range codes {
		if !regexp.MustCompile(fmt.Sprintf(`\b%d [a-z]`, code)).MatchString(exitWords) {
			t.Errorf("%d is not told: %s", code, exitWords)
		}
	}
	page, err := os.ReadFile("../../docs/ops/operations.md")
	if err != nil || !strings.Contains(strings.Join(strings.Fields(string(page)), " "), exitWords) {
		t.Errorf("operations.md does not say %q: %v", exitWords, err)
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
