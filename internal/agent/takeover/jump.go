package takeover

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// RecordJump records that the host is about to jump from that boot, for the agent that init put in
// charge. The host knows from it that it has returned, when it is booted again.
func (s *Store) RecordJump(init *agentv1.TakeoverInit, bootID string) error {
	_, err := s.Update(init, func(state *agentv1.AgentState) error {
		state.Jump = &agentv1.Jump{BootId: bootID, At: timestamppb.Now()}
		return nil
	})
	return err
}

// ForgetJump takes back that record, because the jump did not take place. Where a newer takeover
// has replaced the state, there is nothing to take back.
func (s *Store) ForgetJump(init *agentv1.TakeoverInit) error {
	_, err := s.Update(init, func(state *agentv1.AgentState) error {
		state.Jump = nil
		return nil
	})
	if errors.Is(err, ErrSuperseded) {
		return nil
	}
	return err
}

// lookBack says what became of the last takeover by kexec, if this host has jumped and is back in
// the system that it jumped from.
func (r *run) lookBack(bootID string) *agentv1.ReturnedTakeover {
	state, err := r.store.Load()
	if err != nil || state.GetInit().GetMachineId() != r.init.GetMachineId() {
		return nil // the past of another machine: of a record before, or of the disk that was cloned
	}
	jump := state.GetJump()
	if jump == nil || jump.GetBootId() == bootID {
		return state.GetReturned() // of one before, if its takeover did not succeed since
	}
	returned := &agentv1.ReturnedTakeover{
		TakeoverGeneration: state.GetInit().GetTakeoverGeneration(), JumpedAt: jump.GetAt(),
	}
	if r.options.LastWords != nil {
		words := r.options.LastWords()
		if words.GetMachineId() == state.GetInit().GetMachineId() && words.GetTakeoverGeneration() == returned.GetTakeoverGeneration() {
			returned.Cause = strings.ToValidUTF8(words.GetCause(), "?")
			// The word is of its own jump. One before, which nobody was told of, may have written.
			before := state.GetReturned()
			returned.NothingWritten = words.GetNothingWritten() && (before == nil || before.GetNothingWritten())
			return returned
		}
	}
	returned.Cause = conclude(jump.GetAt().AsTime(), bootTime(r.options.Root), ContactLimit(state.GetInit()))
	return returned
}

// SilenceLimit is how long an agent in memory that was admitted may go without being admitted
// again, or its contact limit where that is longer, before it returns to the old system.
const SilenceLimit = 24 * time.Hour

// conclude says what the times of jump and boot tell, where nothing was left to read.
func conclude(jumped, booted time.Time, limit time.Duration) string {
	took := booted.Sub(jumped).Round(time.Second)
	switch {
	case booted.IsZero():
		return "the agent in memory left no word, and the old system does not know when it was started"
	case took < 0:
		return "the agent in memory left no word, and the clock does not tell when the old system was started"
	case took < limit:
		return fmt.Sprintf("the old system was started %s after the jump, before the limit of %s for contact: "+
			"the kernel in memory has crashed, or somebody has restarted the machine", took, limit)
	}
	lost := ""
	if took >= SilenceLimit {
		lost = fmt.Sprintf("or lost it for %s, ", SilenceLimit)
	}
	return fmt.Sprintf("the old system was started %s after the jump: the agent in memory had no contact with the control plane within %s, "+
		"%sor the machine was restarted later", took, limit, lost)
}

// bootTime returns when the system below root was started, zero when it does not say.
func bootTime(root string) time.Time {
	data, err := os.ReadFile(filepath.Join(root, "proc/stat"))
	if err != nil {
		return time.Time{}
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "btime "); ok {
			if seconds, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil {
				return time.Unix(seconds, 0)
			}
		}
	}
	return time.Time{}
}
