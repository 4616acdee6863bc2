// Package fault decides when something goes wrong in a simulated world, and counts it.
//
// A fault has a kind and a rule: a share of its opportunities ("5%"), or their numbers ("#1+4").
// Decisions depend on the seed, the kind and the number of the opportunity alone. A share is spread
// evenly: of any run of n opportunities n·share happen, give or take one, at places that the seed
// decides; so a share that was asked for is a share that has happened.
package fault

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is what goes wrong.
type Kind string

// The kinds.
const (
	// LostReply: a device is created and the answer is lost. An opportunity is a creation that
	// succeeded.
	LostReply Kind = "lost-reply"
	// LostRequest: the connection is cut before a request is read. As the next ones: an opportunity is
	// an API request.
	LostRequest Kind = "lost-request"
	// Throttled: 429 with Retry-After. ThrottledBare: 429 without.
	Throttled     Kind = "429"
	ThrottledBare Kind = "429-bare"
	// Internal: 500 before anything was done.
	Internal Kind = "500"
	// BadGateway: 502 from something in between, which does not speak JSON.
	BadGateway Kind = "502"
	// Slow: the answer takes the rule's duration longer.
	Slow Kind = "slow"
	// ProvisionFail: a device is created and its provisioning fails. An opportunity is a creation.
	ProvisionFail Kind = "provision-fail"
	// SSHRefused: a connection is reset as it is accepted. SSHDropped: it is reset after the rule's
	// duration. An opportunity is a connection.
	SSHRefused Kind = "ssh-refused"
	SSHDropped Kind = "ssh-dropped"
	// AgentStart: an uploaded agent that is executed to take its machine over exits with an error, or
	// writes garbage, by turns.
	AgentStart Kind = "agent-start"
)

// kinds has every kind, with the duration that its rule gets unless it says another; zero: the rule
// takes no duration.
var kinds = []struct {
	kind     Kind
	duration time.Duration
}{
	{LostReply, 0},
	{LostRequest, 0},
	{Throttled, time.Second},
	{ThrottledBare, 0},
	{Internal, 0},
	{BadGateway, 0},
	{Slow, time.Second},
	{ProvisionFail, 0},
	{SSHRefused, 0},
	{SSHDropped, 100 * time.Millisecond},
	{AgentStart, 0},
}

// Kinds lists every kind, as Parse knows them.
func Kinds() []Kind {
	all := make([]Kind, len(kinds))
	for i, k := range kinds {
		all[i] = k.kind
	}
	return all
}

// Spec is a parsed specification.
type Spec struct{ rules map[Kind]rule }

// rule says which opportunities of a kind become faults.
type rule struct {
	// share of the opportunities, in (0, 1]; 0 when at is used.
	share float64
	// at are the numbers of the opportunities, from 1, ascending.
	at       []int
	duration time.Duration
}

// Parse reads a specification such as
//
//	lost-reply=5%,429=5%:2s,slow=2.5%:800ms,agent-start=#1+3
//
// Each entry is a kind, "=", a share in percent or the numbers of the opportunities (from 1), and
// where the kind has one (429: what Retry-After says; slow and ssh-dropped: how long) a duration.
// An empty specification has no faults. The error names every fault of the specification.
func Parse(text string) (Spec, error) {
	spec := Spec{rules: map[Kind]rule{}}
	var errs []error
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		kind, r, err := parseEntry(entry)
		if err == nil {
			if _, twice := spec.rules[kind]; twice {
				err = fmt.Errorf("fault %q is given twice", kind)
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		spec.rules[kind] = r
	}
	if err := errors.Join(errs...); err != nil {
		return Spec{}, err
	}
	return spec, nil
}

func parseEntry(entry string) (Kind, rule, error) {
	name, when, ok := strings.Cut(entry, "=")
	if !ok {
		return "", rule{}, fmt.Errorf("fault %q: want NAME=SHARE%% or NAME=#NUMBER", entry)
	}
	i := slices.IndexFunc(kinds, func(k struct {
		kind     Kind
		duration time.Duration
	},
	) bool {
		return string(k.kind) == strings.TrimSpace(name)
	})
	if i < 0 {
		return "", rule{}, fmt.Errorf("unknown fault %q: known are %s", name, join(Kinds()))
	}
	kind := kinds[i].kind
	r := rule{duration: kinds[i].duration}
	when, duration, has := strings.Cut(strings.TrimSpace(when), ":")
	if has {
		d, err := time.ParseDuration(duration)
		switch {
		case r.duration == 0:
			return "", rule{}, fmt.Errorf("fault %q takes no duration", kind)
		case err != nil || d <= 0:
			return "", rule{}, fmt.Errorf("fault %q: %q is not a positive duration such as 800ms", kind, duration)
		}
		r.duration = d
	}
	var err error
	if numbers, scripted := strings.CutPrefix(when, "#"); scripted {
		r.at, err = parseNumbers(numbers)
	} else {
		r.share, err = parseShare(when)
	}
	if err != nil {
		return "", rule{}, fmt.Errorf("fault %q: %w", kind, err)
	}
	return kind, r, nil
}

func parseShare(text string) (float64, error) {
	number, ok := strings.CutSuffix(text, "%")
	share, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(share > 0 && share <= 100) {
		return 0, fmt.Errorf("%q is not a share above 0%% and up to 100%%", text)
	}
	return share / 100, nil
}

func parseNumbers(text string) ([]int, error) {
	var at []int
	for part := range strings.SplitSeq(text, "+") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not the number of an opportunity (from 1)", part)
		}
		at = append(at, n)
	}
	slices.Sort(at)
	return slices.Compact(at), nil
}

func join(all []Kind) string {
	names := make([]string, len(all))
	for i, k := range all {
		names[i] = string(k)
	}
	return strings.Join(names, ", ")
}
