package fleetapi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/server"
)

const (
	// lateAfter is how long a machine may be in a state on its way before somebody should look.
	lateAfter = time.Hour
	// overdueAfter is how long work may be due before somebody should look: the loops take what is due
	// within seconds.
	overdueAfter = 5 * time.Minute
	// failingAfter is how long the janitor may fail to do a duty before somebody should look. Some
	// come every ten minutes only, and one failure of those is nothing.
	failingAfter = 15 * time.Minute
)

// concerns lists what somebody should look at. All is well exactly if it is empty, so that nobody
// has to decide that again.
func (s *Service) concerns(ctx context.Context, summary bmdb.Summary, providers []bmdb.ProviderRow) (all []*fleetv1.Concern, err error) {
	env, err := s.db.Environment(ctx)
	if err != nil {
		return nil, err
	}
	all = slices.Concat(s.readOnly(ctx), restored(env), s.violated(), s.undone(time.Now()), deaf(env, summary), crowded(env, summary.At), s.certificates(time.Now()), s.tokens(time.Now()),
		missing(summary), refusedHostKeys(summary), refusingHosts(summary), unaskedSystems(summary))
	for _, p := range providers {
		all = slices.Concat(all, unservedProvider(p), failingProvider(p), unusableEntries(p))
	}
	for _, state := range fleet.States() {
		switch n := summary.States[state]; {
		case n == 0:
		case state.Trouble():
			all = append(all, concern(fleet.ConcernState, string(state), n, "%d %s", n, state)...)
		case state.Moving():
			late, since, err := s.db.CountLate(ctx, state, summary.At.Add(-lateAfter))
			if err != nil {
				return nil, err
			}
			if late > 0 {
				all = append(all, concern(fleet.ConcernLate, string(state), late,
					"%d %s for more than %s, the oldest for %s", late, state, words(lateAfter), words(summary.At.Sub(since)))...)
			}
		}
	}
	all = append(all, disagreeing(summary.Discrepancies, providers)...)
	for _, p := range summary.Processes {
		if slices.Contains(summary.Missing, p.Process.Role()) {
			continue // told above
		}
		if !p.Process.Looped() {
			continue
		}
		if age := summary.At.Sub(s.dueSince(p, summary.At)); p.Startable() > 0 && age > overdueAfter {
			all = append(all, concern(fleet.ConcernOverdue, string(p.Process), p.Startable(),
				"%s is overdue for %s, %s: no loop does it, or it is busy", p.Process, words(age), countedUp(p.Startable(), "is waiting", "are waiting"))...)
		}
	}
	return all, nil
}

// concern returns the one that is about so many things, in a list of its own.
func concern(kind fleet.ConcernKind, subject string, count int, format string, args ...any) []*fleetv1.Concern {
	return []*fleetv1.Concern{{Kind: string(kind), Subject: subject, Count: int64(count), Text: fmt.Sprintf(format, args...)}}
}

// ofMachines returns a concern about so many machines, in a sentence about one or many of them, and
// what to do about the first; none where there is none.
func ofMachines(kind fleet.ConcernKind, machines bmdb.Counted, one, many, advice string) []*fleetv1.Concern {
	if machines.N == 0 {
		return nil
	}
	which := one
	if machines.N > 1 {
		which = countedUp(machines.N, "", many)
	}
	return concern(kind, string(machines.First), machines.N, "%s: %s", which, fmt.Sprintf(advice, machines.First))
}

// disagreeing returns a concern while there are so many discrepancies, at some of the providers.
func disagreeing(n int, providers []bmdb.ProviderRow) []*fleetv1.Concern {
	const named = 3
	var where []string
	for _, p := range providers {
		if p.Discrepancies > 0 {
			where = append(where, string(p.Name))
		}
	}
	switch {
	case n == 0:
		return nil
	case len(where) == 0: // they came, or went, between two looks
		where = []string{"that provider"}
	case len(where) > named:
		where = append(where[:named], fmt.Sprintf("%d more", len(where)-named))
	}
	return concern(fleet.ConcernDiscrepancy, "", n, "%s, so nothing new is created at %s: `ironherd discrepancy list` says what ends each",
		countedUp(n, "discrepancy", "discrepancies"), strings.Join(where, ", "))
}

// readOnly returns a concern while the database takes no changes, as with a full disk. Roles and
// listeners then look as if they were missing, because they can leave no sign of life.
func (s *Service) readOnly(ctx context.Context) []*fleetv1.Concern {
	err := s.writable(ctx)
	if err == nil {
		return nil
	}
	return concern(fleet.ConcernDatabase, "", 1, "%s: this control plane does nothing, and what is told of missing roles and listeners may come of that", err)
}

// writable says why the database takes no changes; nil where it does, or where nobody knows.
func (s *Service) writable(ctx context.Context) error {
	if s.options.Writable == nil {
		return nil
	}
	return s.options.Writable(ctx)
}

// restored returns a concern while the database looks restored or copied.
func restored(env fleet.Environment) []*fleetv1.Concern {
	if env.Restored == "" {
		return nil
	}
	return concern(fleet.ConcernRestored, "", 1,
		"the database looks restored or copied (%s): whatever destroys or restarts machines waits for `ironherd db accept-restore`; %s", env.Restored, toAccept)
}

// violated returns a concern while the database breaks an invariant.
func (s *Service) violated() []*fleetv1.Concern {
	if s.options.Findings == nil {
		return nil
	}
	found := s.options.Findings()
	if len(found) == 0 {
		return nil
	}
	first := found[0]
	return concern(fleet.ConcernFinding, "", len(found), "the check of the database has found %s, which the log has; the first one is of %s at %s: %s",
		counted(len(found), "fault", "faults"), first.Invariant, first.Subject, first.Detail)
}

// undone returns a concern while the janitor of this process fails for long to do what it has to.
// It has its role all the while, so nothing else shows it.
func (s *Service) undone(now time.Time) []*fleetv1.Concern {
	if s.options.Failing == nil {
		return nil
	}
	duties, since, cause := s.options.Failing(now.Add(-failingAfter))
	if len(duties) == 0 {
		return nil
	}
	others := ""
	if len(duties) > 1 {
		others = " (and at " + strings.Join(duties[1:], ", ") + ")"
	}
	return concern(fleet.ConcernDuty, duties[0], len(duties), "the janitor of this control plane has failed at %s for %s%s: %s", duties[0], words(now.Sub(since)), others, cause)
}

// deaf returns a concern while no agent listener is up, so that nothing is heard of any machine.
// The states of the machines do not show it, because no silence counts meanwhile.
func deaf(env fleet.Environment, summary bmdb.Summary) []*fleetv1.Concern {
	if !env.ListenerUpSince.IsZero() {
		return nil
	}
	agents := 0
	for _, state := range fleet.States() {
		if state.Calls() {
			agents += summary.States[state]
		}
	}
	if agents == 0 {
		return nil
	}
	return concern(fleet.ConcernListener, "", agents, "no agent listener is up: nothing is heard of %s", counted(agents, "machine", "machines"))
}

// crowded returns a concern while agents do not get through to an agent listener, or did not until
// a few minutes ago. The states of the machines do not show it, because none becomes silent
// meanwhile.
func crowded(env fleet.Environment, now time.Time) []*fleetv1.Concern {
	if !now.Before(env.ListenerFullUntil) {
		return nil
	}
	return concern(fleet.ConcernListener, "room", 1, "%s: "+
		"no silence counts, and recovery waits; renew that certificate, which the log of its process names, or raise agent_api.max_connections, "+
		"max_connections_per_address (a fleet behind one address) or max_unadmitted, "+
		"or keep out the strangers that its log names",
		turnedAway(env, now))
}

// turnedAway says since when agents do not get through to an agent listener. Which of the causes it
// is, its process alone knows.
func turnedAway(env fleet.Environment, now time.Time) string {
	return "an agent listener has turned callers away for want of room, or has a certificate that agents refuse, since " + clock(env.ListenerFullSince, now)
}

// missing returns a concern for each role that nobody has and that has something to do.
func missing(summary bmdb.Summary) (all []*fleetv1.Concern) {
	for _, role := range summary.Missing {
		count, effect := 1, ": many silent machines do not stop recovery, installs do not run out of time, and a new policy reaches no machine"
		if p := summary.OfRole(role); p.Due > 0 {
			count, effect = p.Due, fmt.Sprintf(": %s is due %s", p.Process, countedUp(p.Due, "time", "times"))
		}
		all = append(all, concern(fleet.ConcernRole, string(role), count, "%s", nobodyHas(role, effect))...)
	}
	return all
}

// nobodyHas says that a role is missing, what comes of that, and what ends it.
func nobodyHas(role fleet.Role, effect string) string {
	return fmt.Sprintf("%s%s; start an `ironherd serve` whose `roles` has it", lifecycle.Nobody(role), effect)
}

// refusedHostKeys returns a concern while hosts show keys that are not the known ones: the states
// of their machines do not show it until they are late.
func refusedHostKeys(summary bmdb.Summary) []*fleetv1.Concern {
	return ofMachines(fleet.ConcernHostKey, summary.HostKeyRefused,
		"a machine shows a host key that is not the known one, so no agent is started on it",
		"machines show host keys that are not the known ones, so no agent is started on them", "`ironherd machine explain %s` tells what accepts it")
}

// refusingHosts returns a concern while hosts do not let us in, as where nobody has put our SSH key
// into their authorized_keys. The states of their machines do not show it until they are late,
// either.
func refusingHosts(summary bmdb.Summary) []*fleetv1.Concern {
	return ofMachines(fleet.ConcernRefusal, summary.LoginRefused,
		"a host does not let the control plane in, so no agent is started on it",
		"hosts do not let the control plane in, so no agent is started on them", "`ironherd machine explain %s` tells what it says")
}

// unaskedSystems returns a concern while installed systems cannot be asked whether they are up.
// That says nothing of them, so their states stay as they were found.
func unaskedSystems(summary bmdb.Summary) []*fleetv1.Concern {
	since := " since " + clock(summary.UnaskedSince, summary.At)
	return ofMachines(fleet.ConcernUnasked, summary.Unasked,
		"an installed system cannot be asked whether it is up"+since,
		"installed systems cannot be asked whether they are up, the first"+since, "what is shown was found before; `ironherd machine explain %s` says why")
}

// certificates returns a concern for each certificate of this process that has expired, or that
// expires soon, itself or by one that it leads to.
func (s *Service) certificates(now time.Time) (all []*fleetv1.Concern) {
	for _, c := range s.options.Certificates {
		text := c.Trouble(now)
		if text == "" && c.ExpiresSoon(now) {
			text = expiring(c.Ends(now), fmt.Sprintf("the certificate of the %s", api(c)), now)
		}
		if text != "" {
			all = append(all, concern(fleet.ConcernCertificate, c.Listener(), 1, "%s", text)...)
		}
	}
	return all
}

// expiring says of a certificate that ends soon, or of what it leads to, when it does, or did.
// Clients may accept it still that verify it by others.
func expiring(end server.End, certificate string, now time.Time) string {
	which := certificate
	if end.Of != "" {
		which = fmt.Sprintf("%s, which %s leads to,", end.Of, certificate)
	}
	if !end.At.After(now) {
		return fmt.Sprintf("%s has expired at %s", which, fleet.Instant(end.At))
	}
	return fmt.Sprintf("%s expires in %s (%s), and nobody has renewed it", which, words(end.At.Sub(now)), fleet.Instant(end.At))
}

// tokens returns a concern while the file of tokens cannot be read, where nobody can call from
// other hosts because no token counts, and for each role whose last token expires soon, or has
// expired: whoever uses that, such as a Prometheus, is refused from then on, and may tell nobody.
func (s *Service) tokens(now time.Time) (all []*fleetv1.Concern) {
	if s.options.Tokens == nil {
		return nil
	}
	last, err := s.options.Tokens.Last(now)
	if err != nil {
		return concern(fleet.ConcernToken, "", 1, "no token counts, so nobody can call over TCP: %s", err)
	}
	if counts, _ := s.options.Tokens.Counts(now); !counts && s.options.Exposed {
		all = concern(fleet.ConcernToken, "", 1, "no token counts: nobody can call from other hosts until one is made on this control plane's host with `ironherd token create NAME --role ROLE`")
	}
	for _, t := range last {
		switch {
		case t.Expired(now):
			all = append(all, concern(fleet.ConcernToken, t.Name, 1, "the last token with the role %s, %s, has expired at %s, so whoever uses it is refused: "+
				"make it anew on this control plane's host with `ironherd token create %[2]s --role %[1]s`, or say with `ironherd token revoke %[2]s` that nobody needs it",
				t.Role, t.Name, fleet.Instant(t.Expires))...)
		case t.ExpiresSoon(now):
			all = append(all, concern(fleet.ConcernToken, t.Name, 1, "the last token with the role %s, %s, expires in %s (%s): "+
				"make another one on this control plane's host with `ironherd token create NAME --role %[1]s`",
				t.Role, t.Name, words(t.Expires.Sub(now)), fleet.Instant(t.Expires))...)
		}
	}
	return all
}

// api names the server of a certificate in a sentence.
func api(c *server.Certificates) string { return strings.Replace(c.Listener(), "-api", " API", 1) }

// dueSince returns since when something is due that could start. What was never done is due since
// ever; of that, it returns since when it is known here, unless that is to come: then a clock was
// set back, and it counts anew.
func (s *Service) dueSince(p bmdb.ProcessSummary, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Startable() > 0 && p.OldestDue.Unix() > 0 {
		delete(s.neverDone, p.Process)
		return p.OldestDue
	}
	if p.Startable() == 0 {
		delete(s.neverDone, p.Process)
		return now
	}
	if since, known := s.neverDone[p.Process]; !known || since.After(now) {
		s.neverDone[p.Process] = now
	}
	return s.neverDone[p.Process]
}

// unservedProvider returns a concern for a provider that nobody serves in a role that somebody has,
// as when it has left the configuration: what is due there is not overdue anywhere else.
func unservedProvider(p bmdb.ProviderRow) []*fleetv1.Concern {
	if len(p.Unserved) == 0 {
		return nil
	}
	text := lifecycle.NobodyServes(p.Name, p.Unserved...)
	if p.Abandoned {
		text = lifecycle.NobodyServes(p.Name)
	}
	if p.Machines > 0 {
		text += fmt.Sprintf(", and %s not looked after", counted(p.Machines, "machine there is", "machines there are"))
	}
	text += ": start the control plane that has it in its configuration, or put it back there (under its old name, where it was renamed)"
	if remove := fmt.Sprintf("`ironherd provider forget %s --reason WHY`", p.Name); p.Abandoned && p.Machines == 0 {
		text += fmt.Sprintf("; where it is given up for good, %s removes it here", remove)
	} else if p.Abandoned {
		text += fmt.Sprintf("; where it is given up for good, `%s` removes its machines here, and then %s the rest",
			bmdb.ForgetCommand(p.Name, p.Machines), remove)
	}
	return concern(fleet.ConcernProvider, string(p.Name), 1, "%s", text)
}

// failingProvider returns a concern for a provider whose calls fail, until one succeeds.
func failingProvider(p bmdb.ProviderRow) []*fleetv1.Concern {
	for _, d := range p.Decisions {
		if b := p.Failing(d.Process); b.Failures > 0 {
			return concern(fleet.ConcernProvider, string(p.Name), 1, "provider %s fails, %s so far: %s", p.Name, counted(b.Failures, "time", "times"), b.Cause)
		}
	}
	return nil
}

// unusableEntries returns a concern for a provider of whose list something is left alone. Nobody
// but a person ends that, and the states of the machines do not show it.
func unusableEntries(p bmdb.ProviderRow) []*fleetv1.Concern {
	entries, asOf := p.Unusable(), ""
	if p.Paused != nil { // no pass finds out whether somebody has put them right
		asOf = ", as of the last pass, before the pause"
	}
	switch n := len(entries); n {
	case 0:
		return nil
	case 1:
		return concern(fleet.ConcernProvider, string(p.Name), n, "provider %s: 1 entry of its list is left alone until somebody puts it right%s: %s", p.Name, asOf, entries[0])
	default:
		which := fmt.Sprint(n)
		if n > bmdb.UnusableNamed {
			which = fmt.Sprintf("more than %d", bmdb.UnusableNamed)
		}
		return concern(fleet.ConcernProvider, string(p.Name), n, "provider %s: %s entries of its list are left alone until somebody puts them right%s, the first one because of: %s; "+
			"`ironherd provider show %s` tells more", p.Name, which, asOf, entries[0], p.Name)
	}
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// countedUp is counted for what is counted up to fleet.CountedAtMost.
func countedUp(n int, one, many string) string {
	if n < fleet.CountedAtMost {
		return counted(n, one, many)
	}
	return fmt.Sprintf("%d or more %s", n, many)
}

// words returns a duration in its largest unit.
func words(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", int(d.Hours()))
	case d == time.Hour:
		return "an hour"
	}
	return counted(int(d.Minutes()), "minute", "minutes")
}
