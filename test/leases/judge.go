package main

import (
	"bufio"
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

// line is one line of the log. Its place in the log is when it happened; at is when its writer last
// looked at the clock before.
type line struct {
	at      time.Time
	pid     int
	event   string
	machine fleet.MachineID
	epoch   fleet.Epoch
	how     string
}

// lease is one lease as history has it.
type lease struct {
	machine fleet.MachineID
	epoch   fleet.Epoch
}

// ending is how a lease ended, and when, by the database's clock, the transactions began that
// started it and that ended it.
type ending struct {
	event    string
	from, at time.Time
}

// report is what came of it.
type report struct {
	claims, acts, done, lost, unsure int
	// takenOver leases were void before their holders could end them.
	takenOver int
	// heldAtBlow is how many leases the struck processes had; slowest, how long the slowest of them
	// took to be claimed again.
	heldAtBlow int
	slowest    time.Duration
	// residual effects were made by a process that was stopped between its last look and the effect.
	residual int
	// refused commits of holders that had been stopped past their lease.
	refused int
	took    time.Duration
	faults  []error
}

func (r *report) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf(format, args...))
}

// head is the head of the table of reports.
const head = `| engine | SIGKILL | SIGSTOP past the lease | leases taken | effects | commits acknowledged | leases that expired | late commits refused | leases struck | slowest to be claimed again | effects of the residual kind | took |
|---|---|---|---|---|---|---|---|---|---|---|---|`

// row is the report as a row of the table.
func (r *report) row(engine string, t torture) string {
	return fmt.Sprintf("| %s | %d | %d | %d | %d | %d | %d | %d | %d | %s | %d | %s |", engine, t.kills, t.stops, r.claims, r.acts, r.done,
		r.takenOver, r.refused, r.heldAtBlow, r.slowest.Round(10*time.Millisecond), r.residual, r.took.Round(time.Second))
}

// judge holds log and database to each other.
func (t *torture) judge(ctx context.Context) (r report, err error) {
	r.took = time.Since(t.begun)
	lines, err := readLog(t.log)
	if err != nil {
		return r, err
	}
	db, err := t.open(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.CollectSessions(ctx); err != nil {
		return r, err
	}
	findings, err := db.Check(ctx)
	if err != nil {
		return r, err
	}
	for _, f := range findings {
		r.fault("the database is not sound: %s %s: %s", f.Invariant, f.Subject, f.Detail)
	}
	ends, err := t.ends(ctx, db, &r)
	if err != nil {
		return r, err
	}
	t.compare(&r, lines, ends)
	t.reclaimed(&r, lines, ends)
	if r.claims == 0 || r.done == 0 || r.heldAtBlow == 0 {
		r.fault("%d claims, %d commits, %d leases struck: the test tests nothing", r.claims, r.done, r.heldAtBlow)
	}
	return r, errors.Join(r.faults...)
}

// endOfLine ends each line of the log.
const endOfLine = " ."

// readLog leaves out lines without an end: their processes were killed before they were written.
func readLog(path string) (lines []line, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	scanner := bufio.NewScanner(bytes.NewReader(text))
	for scanner.Scan() {
		whole, ended := strings.CutSuffix(scanner.Text(), endOfLine)
		if !ended {
			continue
		}
		var l line
		var micros int64
		n, _ := fmt.Sscanf(whole, "%d %d %s %s %d %s", &micros, &l.pid, &l.event, &l.machine, &l.epoch, &l.how)
		if n < 5 {
			return nil, fmt.Errorf("the log has a line %q", scanner.Text())
		}
		l.at = time.UnixMicro(micros)
		lines = append(lines, l)
	}
	return lines, scanner.Err()
}

// ends returns how each lease ended, and holds history to its shape: one row for each epoch, which
// says when the lease started and how it ended, and no epoch that is left out. A lease that was
// taken from a holder who still had it would leave such a gap: a lane knows of one at a time.
func (t *torture) ends(ctx context.Context, db *bmdb.DB, r *report) (map[lease]ending, error) {
	ends := make(map[lease]ending)
	for _, id := range t.machines {
		rows, err := db.History(ctx, id, 1_000_000)
		if err != nil {
			return nil, err
		}
		last := fleet.Epoch(0)
		for _, h := range slices.Backward(rows) {
			if h.Process != fleet.ProcessAgentStart {
				continue
			}
			if h.Epoch != last+1 {
				r.fault("machine %s: epoch %d %s after the end of epoch %d", id, h.Epoch, h.Event, last)
			}
			last = h.Epoch
			switch h.Event {
			case fleet.EventFinished, fleet.EventFailed, fleet.EventCancelled, fleet.EventExpired:
				ends[lease{id, h.Epoch}] = ending{string(h.Event), h.StartedAt, h.At}
			case fleet.EventStarted:
				r.fault("machine %s: epoch %d was started and has not ended", id, h.Epoch)
				continue
			default:
				r.fault("machine %s: epoch %d %s, which nobody does here", id, h.Epoch, h.Event)
			}
			switch {
			case h.StartedAt.IsZero() || h.Why == "":
				r.fault("machine %s: epoch %d %s, and history does not say when and why it was started", id, h.Epoch, h.Event)
			case h.At.Before(h.StartedAt.Add(-t.slack(h.Event))):
				r.fault("machine %s: epoch %d %s at %s, before its start at %s", id, h.Epoch, h.Event, h.At, h.StartedAt)
			}
			if h.Event == fleet.EventExpired {
				r.takenOver++
			}
		}
	}
	return ends, nil
}

// slack is how long before the start of a lease its end may seem to have been, by the instants of
// their transactions. The holder ends it by a later transaction than it was claimed by. Somebody
// else's may have begun before the claim's, and have waited meanwhile, which it does for no longer
// than a lease.
func (t *torture) slack(event fleet.Event) time.Duration {
	if event == fleet.EventExpired {
		return t.lease
	}
	return 0
}

// compare goes through the log in its order.
func (t *torture) compare(r *report, lines []line, ends map[lease]ending) {
	owner, newest := make(map[lease]int), make(map[fleet.MachineID]fleet.Epoch)
	for _, l := range lines {
		k := lease{l.machine, l.epoch}
		switch l.event {
		case "claim":
			r.claims++
			if other, twice := owner[k]; twice {
				r.fault("machine %s, epoch %d was claimed by processes %d and %d", l.machine, l.epoch, other, l.pid)
			}
			if _, ended := ends[k]; !ended {
				r.fault("machine %s, epoch %d was claimed, and history has no end of it", l.machine, l.epoch)
			}
			owner[k], newest[l.machine] = l.pid, max(newest[l.machine], l.epoch)
		case "act":
			r.acts++
			if newest[l.machine] > l.epoch {
				t.late(r, l, newest[l.machine], ends[lease{l.machine, l.epoch + 1}])
			}
		case "done":
			r.done++
			if ends[k].event != l.how {
				r.fault("machine %s, epoch %d: %s was acknowledged, history says %q", l.machine, l.epoch, l.how, ends[k].event)
			}
			// A commit that was made before the stop, and only noted after it, is none of those.
			if b := t.pause(l.pid, l.at); b != nil && t.heldAt(lines, k, b.at) && ends[k].at.After(b.at.Add(t.lease)) && !t.alone {
				r.fault("machine %s, epoch %d: a commit was accepted of process %d, which was stopped from %s to %s", l.machine, l.epoch, l.pid, b.at, b.until)
			}
		case "lost":
			r.lost++
			if b := t.pause(l.pid, l.at); b != nil && t.heldAt(lines, k, b.at) {
				r.refused++
			}
			if ends[k].event == l.how {
				r.fault("machine %s, epoch %d: %s was refused, and is in history", l.machine, l.epoch, l.how)
			}
		case "unsure":
			r.unsure++
		}
	}
}

// late says of an effect after the next holder's claim whether it is the one that nobody can
// prevent: its holder looked at the lease before anybody else had it, and the driver stopped it
// then, or was itself kept from running for longer than the margin of trust. That a busy kernel had
// other things to do for this process alone may be the same, and is a fault until somebody has
// looked at it.
func (t *torture) late(r *report, l line, newest fleet.Epoch, next ending) {
	const near = 5 * time.Millisecond
	if l.at.Before(next.from) && (slices.ContainsFunc(t.blows, func(b blow) bool {
		return b.pid == l.pid && !b.until.IsZero() && l.at.Before(b.at.Add(near)) && l.at.After(b.at.Add(-near))
	}) || slices.ContainsFunc(t.gaps, func(g gap) bool {
		return g.to.Sub(g.from) > t.lease/5 && l.at.Before(g.to) && l.at.After(g.from.Add(-near))
	})) {
		r.residual++
		return
	}
	r.fault("machine %s: an effect of epoch %d came after the claim of epoch %d; process %d looked at the lease at %s, was not stopped then, and the next claim began at %s",
		l.machine, l.epoch, newest, l.pid, l.at, next.from)
}

// pause returns the last stop of the process before the instant.
func (t *torture) pause(pid int, before time.Time) (last *blow) {
	for i := range t.blows {
		if b := &t.blows[i]; b.pid == pid && !b.until.IsZero() && b.until.Before(before) {
			last = b
		}
	}
	return last
}

// heldAt says whether the lease had been claimed and not ended at the instant.
func (t *torture) heldAt(lines []line, k lease, at time.Time) bool {
	for _, l := range lines {
		if l.machine == k.machine && l.epoch == k.epoch && l.event == "claim" {
			return l.at.Before(at)
		}
	}
	return false
}

// reclaimed measures how long the machines that a struck process held were not claimed by anybody.
// A claim that its process did not live to log is in the history.
func (t *torture) reclaimed(r *report, lines []line, ends map[lease]ending) {
	limit := t.lease + 2*time.Second
	for _, b := range t.blows {
		for machine, epoch := range held(lines, b) {
			r.heldAtBlow++
			since := b.at
			next := slices.IndexFunc(lines, func(l line) bool {
				return l.event == "claim" && l.machine == machine && l.epoch > epoch && l.at.After(b.at)
			})
			if next < 0 {
				r.fault("machine %s was never claimed again after process %d had been struck at %s", machine, b.pid, b.at)
				continue
			}
			again := lines[next].at
			if following, known := ends[lease{machine, epoch + 1}]; known && lines[next].epoch > epoch+1 && following.from.After(b.at) {
				again = following.from
			}
			if t.alone { // nobody else can claim while the process is stopped, or dead and not replaced
				for _, o := range t.blows {
					if last := later(o.at, o.until); last.After(since) && last.Before(again) {
						since = last
					}
				}
				for _, l := range lines {
					if l.event == "open" && l.at.After(since) && l.at.Before(again) {
						since = l.at
					}
				}
			}
			took := again.Sub(since)
			r.slowest = max(r.slowest, took)
			if limit := limit + t.kept(since, again); took > limit && !t.locked(b, again.Add(-limit)) {
				r.fault("machine %s was claimed again only %s after process %d had been struck at %s", machine, took, b.pid, b.at)
			}
		}
	}
}

// kept returns for how long of the time between two instants the driver was kept from running.
func (t *torture) kept(since, until time.Time) (sum time.Duration) {
	for _, g := range t.gaps {
		from, to := later(g.from, since), g.to
		if to.After(until) {
			to = until
		}
		sum += max(to.Sub(from), 0)
	}
	return sum
}

// locked says whether another process may have kept everybody from what was struck. It was stopped
// after the blow, in the time that a claim has, and not before the instant. Stopped inside of its
// own claim, it holds the rows until the server ends its transaction, which takes less than a
// lease. When it is killed, that happens at once.
func (t *torture) locked(b blow, from time.Time) bool {
	return slices.ContainsFunc(t.blows, func(o blow) bool {
		return o.pid != b.pid && !o.until.IsZero() && !o.at.Before(from) && o.at.After(b.at) && o.at.Before(b.at.Add(t.lease+2*time.Second))
	})
}

// held returns what the process had claimed and not ended when it was struck.
func held(lines []line, b blow) map[fleet.MachineID]fleet.Epoch {
	held := make(map[fleet.MachineID]fleet.Epoch)
	for _, l := range lines {
		if l.pid != b.pid || l.at.After(b.at) {
			continue
		}
		switch l.event {
		case "claim":
			held[l.machine] = l.epoch
		case "done", "lost", "left":
			delete(held, l.machine)
		}
	}
	return held
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
