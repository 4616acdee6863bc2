package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

// jumpState is the state of an agent that is about to jump for an install with the largest data.
func jumpState(t *testing.T) *agentv1.AgentState {
	t.Helper()
	h := newHost(t)
	h.prepare(t, initMessage(1, newAuthority(t)))
	request := installRequest(3, 1, image())
	request.FirstBootData = make([]byte, 64<<10)
	pending, err := proto.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	state := h.state(t)
	state.PendingInstall = pending
	return state
}

// TestStateForTheJump: what the host writes for the agent in memory is what that can read, however
// many warnings there are; what it could not read keeps the jump away.
func TestStateForTheJump(t *testing.T) {
	t.Parallel()
	var warnings []string
	for i := range 3000 {
		warnings = append(warnings, fmt.Sprintf("the address 203.0.%d.%d/20 of bond0 is not carried over, because %s", i/250, i%250, strings.Repeat("é", i*30)))
	}
	for name, test := range map[string]struct {
		warnings, kept int
		last           string
	}{
		"none": {0, 0, ""}, "ten": {10, 10, warnings[9]}, "many": {3000, 10, "2991 more warnings were left out"},
	} {
		state := residentState(jumpState(t), warnings[:test.warnings])
		data, err := encodeState(state)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		root := t.TempDir()
		path := filepath.Join(root, statePath)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		read, err := takeover.NewStore(root).Load()
		if err != nil || !proto.Equal(read, state) {
			t.Errorf("%s: the agent in memory reads %v", name, err)
		}
		told := read.GetJumpWarnings()
		if len(told) != test.kept || test.kept > 0 && !strings.HasPrefix(test.last, strings.TrimSuffix(told[test.kept-1], "?")) {
			t.Errorf("%s: %d warnings: %.200q", name, len(told), told)
		}
		for _, warning := range told {
			if len(warning) > 300 || !utf8.ValidString(warning) {
				t.Errorf("%s: %d bytes: %q", name, len(warning), warning)
			}
		}
	}
	large := jumpState(t)
	for range 2000 {
		large.DisksBefore = append(large.DisksBefore, &agentv1.BlockDevice{Serial: strings.Repeat("x", 200)})
	}
	if _, err := encodeState(large); err == nil || !strings.Contains(err.Error(), "larger than 262144 bytes") {
		t.Errorf("a state that cannot be read: %v", err)
	}
}
