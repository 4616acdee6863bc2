package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// line is one line of the log.
type line struct {
	at      time.Time
	pid     int
	version string
	event   string
	process string
	machine fleet.MachineID
	epoch   fleet.Epoch
	// detail is how a work ended, or what went wrong.
	detail string
}

// held is one lease of a machine's host.
type held struct {
	machine fleet.MachineID
	epoch   fleet.Epoch
}

// judge compares the log with the database.
func (s *scene) judge(ctx context.Context) error {
	s.r.took = time.Since(s.begun)
	lines, err := readLog(s.log)
	if err != nil {
		return err
	}
	err = s.withDatabase(ctx, false, func(db *bmdb.DB) error {
		if _, err := db.CollectSessions(ctx); err != nil {
			return err
		}
		if err := s.check(ctx, db); err != nil {
			return err
		}
		ends, err := s.history(ctx, db)
		if err != nil {
			return err
		}
		s.compare(lines, ends)
		s.takeovers(lines, ends)
		return nil
	})
	if err != nil {
		return err
	}
	for _, id := range s.unclaimed(lines) {
		s.r.fault("machine %s was not claimed any more when the previous version was gone", id)
	}
	s.tested(lines)
	return errors.Join(s.r.faults...)
}

func readLog(path string) (lines []line, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	// The last line may be incomplete, because a worker is writing it.
	for text := range strings.Lines(string(text[:bytes.LastIndexByte(text, '\n')+1])) {
		var l line
		var micros int64
		// An error means that there were too few fields, which n tells as well.
		n, _ := fmt.Sscan(text, &micros, &l.pid, &l.version, &l.event, &l.process, &l.machine, &l.epoch)
		if n < 7 {
			return nil, fmt.Errorf("the log has a line %q", text)
		}
		l.at = time.UnixMicro(micros)
		l.detail = strings.Join(strings.Fields(text)[7:], " ")
		lines = append(lines, l)
	}
	return lines, nil
}

// holders returns which process has each lease that it has claimed and not given up yet.
func holders(lines []line) map[held]int {
	pids := make(map[held]int)
	for _, l := range lines {
		switch l.event {
		case "claim":
			pids[held{l.machine, l.epoch}] = l.pid
		case "done", "lost", "left", "unsure":
			delete(pids, held{l.machine, l.epoch})
		}
	}
	return pids
}

// history returns how each lease ended, and checks the shape of the history: one row for each
// lease, which says when it started and how it ended. An epoch that no row tells of is one that a
// quarantine used up. A lease that was taken from a holder who still had it would leave out
// another: a lane knows of one at a time.
func (s *scene) history(ctx context.Context, db *bmdb.DB) (map[held]string, error) {
	ends := make(map[held]string)
	for _, id := range s.machines {
		rows, err := db.History(ctx, id, 1_000_000)
		if err != nil {
			return nil, err
		}
		last := fleet.Epoch(0)
		for _, h := range slices.Backward(rows) {
			switch h.Event {
			case fleet.EventQuarantined:
				last++
				continue
			case fleet.EventStarted:
				s.r.fault("machine %s: epoch %d was started and has not ended", id, h.Epoch)
			case fleet.EventFinished, fleet.EventFailed, fleet.EventCancelled, fleet.EventExpired, fleet.EventRevoked:
				s.ended(id, h)
				ends[held{id, h.Epoch}] = string(h.Event)
				s.r.ends[string(h.Event)]++
			default:
				continue
			}
			if h.Epoch != last+1 {
				s.r.fault("machine %s: epoch %d %s after epoch %d had come to its end", id, h.Epoch, h.Event, last)
			}
			last = h.Epoch
		}
	}
	return ends, nil
}

// ended checks one end. Its holder ends a lease by a later transaction than it was claimed by; the
// instant of somebody else's, which may have waited, says less.
func (s *scene) ended(id fleet.MachineID, h bmdb.HistoryRow) {
	slack := time.Duration(0)
	if h.Event == fleet.EventExpired || h.Event == fleet.EventRevoked {
		slack = lease
	}
	switch {
	case h.StartedAt.IsZero() || h.Why == "":
		s.r.fault("machine %s: epoch %d %s, and history does not say when and why it was started", id, h.Epoch, h.Event)
	case h.At.Before(h.StartedAt.Add(-slack)):
		s.r.fault("machine %s: epoch %d %s at %s, before its start at %s", id, h.Epoch, h.Event, h.At, h.StartedAt)
	}
}

// compare goes through the log in its order.
func (s *scene) compare(lines []line, ends map[held]string) {
	owner, newest := make(map[held]int), make(map[fleet.MachineID]fleet.Epoch)
	for _, l := range lines {
		k := held{l.machine, l.epoch}
		switch l.event {
		case "claim":
			s.r.claims[l.version]++
			if other, twice := owner[k]; twice {
				s.r.fault("machine %s, epoch %d was claimed by processes %d and %d", l.machine, l.epoch, other, l.pid)
			}
			if _, ended := ends[k]; !ended {
				s.r.fault("machine %s, epoch %d was claimed, and history has no end of it", l.machine, l.epoch)
			}
			owner[k], newest[l.machine] = l.pid, max(newest[l.machine], l.epoch)
		case "act":
			s.r.acts++
			// A holder whose lease people revoke learns of it at its next extension.
			if newest[l.machine] > l.epoch && ends[k] != "revoked" {
				s.r.fault("machine %s: an effect of epoch %d came after the claim of epoch %d", l.machine, l.epoch, newest[l.machine])
			}
		case "done":
			s.r.done++
			if ends[k] != l.detail {
				s.r.fault("machine %s, epoch %d: %s was acknowledged, history says %q", l.machine, l.epoch, l.detail, ends[k])
			}
		case "lost":
			if ends[k] == l.detail {
				s.r.fault("machine %s, epoch %d: %s was refused, and is in history", l.machine, l.epoch, l.detail)
			}
		case "error":
			kind, text, _ := strings.Cut(l.detail, ": ")
			if s.r.errors[l.version+" "+kind]++; s.r.errors[l.version+" "+kind] == 1 {
				s.u.progress("  the first of its kind, %s, after %s: %s: %s", l.version, l.at.Sub(s.begun).Round(100*time.Millisecond), kind, text)
			}
			// The previous version says it in other words when its own time is up.
			late := l.version == before && (strings.HasPrefix(kind, fleet.KindTimeout.String()+" ") || strings.Contains(text, "(SQLSTATE 57014)"))
			if !strings.HasPrefix(kind, fleet.KindTemporary.String()+" ") && !late {
				s.r.fault("a %s worker met an error that does not pass: %s", l.version, l.detail)
			}
		}
	}
}

// takeovers counts the leases that killed processes held, by their version and that of the next
// holder.
func (s *scene) takeovers(lines []line, ends map[held]string) {
	last := make(map[fleet.MachineID]line)
	for _, l := range lines {
		if l.event != "claim" {
			continue
		}
		if was, ok := last[l.machine]; ok && ends[held{was.machine, was.epoch}] == "expired" {
			if at, killed := s.killed[was.pid]; killed {
				s.r.takeovers[was.version+" to "+l.version]++
				s.r.slowest = max(s.r.slowest, l.at.Sub(at))
			}
		}
		last[l.machine] = l
	}
}

// unclaimed returns the machines that the new version has not claimed since the previous one was
// gone and its leases were over.
func (s *scene) unclaimed(lines []line) (list []fleet.MachineID) {
	claimed := make(map[fleet.MachineID]bool)
	for _, l := range lines {
		if l.event == "claim" && l.at.After(s.replaced.Add(lease)) {
			claimed[l.machine] = true
		}
	}
	for _, id := range s.machines {
		if !claimed[id] {
			list = append(list, id)
		}
	}
	return list
}

// tested reports what the run has not tested.
func (s *scene) tested(lines []line) {
	claims := make(map[string]int)
	for _, l := range lines {
		if l.event == "claim" && l.at.After(s.migrated) && l.at.Before(s.replaced) {
			claims[l.version+" "+l.process]++
		}
	}
	for _, version := range []string{before, after} {
		for _, p := range pools {
			if claims[version+" "+p] == 0 {
				s.r.fault("the %s version claimed nothing for %s while both were there: the test tests nothing", version, p)
			}
		}
	}
}

// pools are the processes that workers claim.
var pools = []string{string(fleet.ProcessAgentStart), string(fleet.ProcessRecovery)}
