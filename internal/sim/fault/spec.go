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

// Kind is what goes wrong; see Descriptions.
type Kind string

// The kinds.
const (
	LostReply            Kind = "lost-reply"
	LostRequest          Kind = "lost-request"
	Throttled            Kind = "429"
	ThrottledBare        Kind = "429-bare"
	Internal             Kind = "500"
	BadGateway           Kind = "502"
	Slow                 Kind = "slow"
	ListOrder            Kind = "list-order"
	StaleGet             Kind = "stale-get"
	ListEarly            Kind = "list-early"
	GoneIs403            Kind = "gone-is-403"
	ReservationNamesLate Kind = "reservation-names-late"
	TokenRevoked         Kind = "token-revoked"
	CapacityStolen       Kind = "capacity-stolen"
	DeviceVanishes       Kind = "device-vanishes"
	ProvisionFail        Kind = "provision-fail"
	ReinstallFail        Kind = "reinstall-fail"
	UserDataIgnored      Kind = "user-data-ignored"
	SSHRefused           Kind = "ssh-refused"
	SSHDropped           Kind = "ssh-dropped"
	AgentStart           Kind = "agent-start"
	HostHangs            Kind = "host-hangs"
	HostFrozen           Kind = "host-frozen"
	HostDiskLost         Kind = "host-disk-lost"
	HostDies             Kind = "host-dies"
)

// Description says what a kind is.
type Description struct {
	Kind Kind `json:"name"`
	// Duration is what its rule gets unless it says another; zero: the rule takes no duration.
	Duration time.Duration `json:"-"`
	// Opportunity is what a share is a share of, and what numbers count.
	Opportunity string `json:"opportunity"`
	// Meaning says what happens.
	Meaning string `json:"meaning"`
}

// What the opportunities of several kinds are.
const (
	aRequest       = "API request"
	aCreation      = "creation of a device"
	aConnection    = "SSH connection"
	anInstallation = "installation of a device by the provider"
	aBoot          = "boot of the provider's system"
)

var kinds = []Description{
	{LostReply, 0, aCreation + " that succeeded", "the device is created, and the connection is cut before the answer"},
	{LostRequest, 0, aRequest, "the connection is cut before the request is looked at"},
	{Throttled, time.Second, aRequest, "429 with Retry-After: DURATION"},
	{ThrottledBare, 0, aRequest, "429 without Retry-After"},
	{Internal, 0, aRequest, "500 before anything was done"},
	{BadGateway, 0, aRequest, "502 with HTML, as from a proxy"},
	{Slow, time.Second, aRequest, "the answer takes DURATION longer"},
	{ListOrder, 0, "page of devices, reservations or projects", "the list comes in a random order, unless the request sorts it"},
	{StaleGet, 2 * time.Second, "GET of a device", "it answers what was true DURATION ago, while lists are up to date: 404 of a new device, an earlier state"},
	{ListEarly, 2 * time.Second, "page of reservations", "it says that what is being removed can be used again, DURATION before that is so"},
	{GoneIs403, 0, "request for a device that is gone", "403 instead of 404, as if it were somebody else's"},
	{ReservationNamesLate, 0, "end of a device on a reservation", "the reservation names the device until it can be used again"},
	{TokenRevoked, 5 * time.Second, aRequest, "the token does not count: this request and all others get 401 for DURATION"},
	{
		CapacityStolen, 5 * time.Second, "creation of a device on a named reservation",
		"somebody else's device takes the reservation first, and is gone DURATION after its provisioning",
	},
	{DeviceVanishes, 5 * time.Second, aCreation, "it is gone DURATION after its provisioning, as if somebody had deleted it"},
	{ProvisionFail, 0, aCreation, "its provisioning fails: on a reservation it stays as failed, else it vanishes"},
	{ReinstallFail, 0, "reinstall of a device", "it fails: on a reservation the device stays as failed, else it vanishes"},
	{UserDataIgnored, 0, anInstallation, "its image ignores the user data, so that it makes an SSH host key of its own"},
	{SSHRefused, 0, aConnection, "it is reset as it is accepted"},
	{SSHDropped, 100 * time.Millisecond, aConnection, "it is reset after DURATION"},
	{AgentStart, 0, "start of an uploaded agent", "it exits with an error or writes garbage, by turns"},
	{HostHangs, 30 * time.Second, aBoot, "DURATION later nothing runs or answers on the machine, until it is restarted"},
	{HostFrozen, 30 * time.Second, aBoot, "the same, until it is switched off and on"},
	{HostDiskLost, 30 * time.Second, aBoot, "the same, until the provider reinstalls it"},
	{HostDies, 30 * time.Second, aBoot, "the same, for good"},
}

// Descriptions describes every kind, in the order of Kinds.
func Descriptions() []Description { return slices.Clone(kinds) }

// Kinds lists every kind, as Parse knows them.
func Kinds() []Kind {
	all := make([]Kind, len(kinds))
	for i, k := range kinds {
		all[i] = k.Kind
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
	i := slices.IndexFunc(kinds, func(k Description) bool { return string(k.Kind) == strings.TrimSpace(name) })
	if i < 0 {
		return "", rule{}, fmt.Errorf("unknown fault %q: known are %s", name, join(Kinds()))
	}
	kind := kinds[i].Kind
	r := rule{duration: kinds[i].Duration}
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
