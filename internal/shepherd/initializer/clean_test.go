package initializer_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// TestClean: over a real SSH server, the agent's files are removed, again and again; a host that
// does not answer is an error.
func TestClean(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if outcome, ok := b.start().(shepherd.Finish); !ok {
		t.Fatalf("got %T %+v\n%s", outcome, outcome, b.log.String())
	}
	directory := filepath.Join(b.root, "root/agent")
	if files, err := os.ReadDir(directory); err != nil || len(files) == 0 {
		t.Fatalf("files %v, %v", files, err)
	}
	check(t, b.db.SetLevers(t.Context(), source, []fleet.Lever{fleet.LeverRelease}))
	_, err := b.db.RequestOperation(t.Context(), "ada", b.machine, fleet.OperationRelease, "sold")
	check(t, err)
	session, err := b.db.StartSession(t.Context(), bmdb.SessionOptions{Component: "operations", Host: "test", Lease: time.Minute})
	check(t, err)
	claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessOperation, Providers: []fleet.ProviderName{source}, Limit: 1})
	check(t, err)
	handler, err := newInitializer(b)
	check(t, err)
	entry, err := b.fake.Get(t.Context(), b.device.ID)
	check(t, err)
	for range 2 {
		if err := handler.Clean(t.Context(), claim.Works[0], entry); err != nil {
			t.Fatalf("%v\n%s", err, b.log.String())
		}
		if _, err := os.Stat(directory); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the agent's directory is there still: %v", err)
		}
	}
	b.config.Port = 1
	handler, err = newInitializer(b)
	check(t, err)
	if err := handler.Clean(t.Context(), claim.Works[0], entry); err == nil || !strings.Contains(err.Error(), "dial") {
		t.Errorf("a host that does not answer: %v", err)
	}
	check(t, session.Close(t.Context(), "done"))
}
