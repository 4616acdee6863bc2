package cli

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// selector says which machines are meant where none is named: those that fit all of it.
type selector struct {
	provider                  string
	states, locations, labels []string
	// limit is how many of them; 0, which nobody may ask for: all.
	limit int
	// flags is nil in a command without a selector.
	flags *pflag.FlagSet
	// after is the ID of a machine: only those behind it.
	after string
}

// selectorFlags adds the flags of a selector to a command. those begins the sentence of each, such
// as "only machines".
func (a *app) selectorFlags(cmd *cobra.Command, s *selector, those string) {
	flags := cmd.Flags()
	flags.StringVar(&s.provider, "provider", "", those+" of this provider")
	flags.StringSliceVar(&s.states, "state", nil, those+" in this state; may be given more than once")
	flags.StringArrayVar(&s.locations, "location", nil, those+" in this location, as their provider names it; may be given more than once")
	flags.StringArrayVar(&s.labels, "label", nil, those+" with this label, NAME=VALUE, or NAME whatever its value; given more than once, with all of them")
	flags.IntVar(&s.limit, "limit", 0, "only this many of the machines that are selected, the first in the order of their IDs")
	s.flags = flags
	flags.StringVar(&s.after, "after", "", "of the machines that are selected, only those behind the one of this ID, in the order of their IDs")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(fleet.Strings(fleet.States()), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("after", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("provider", a.completeProviders)
	_ = cmd.RegisterFlagCompletionFunc("location", a.completeFrom(func(m *fleetv1.Machine) []string { return []string{m.GetLocation()} }))
	_ = cmd.RegisterFlagCompletionFunc("label", a.completeFrom((*fleetv1.Machine).GetLabels))
}

// narrows reports whether it fits some machines and not others.
func (s *selector) narrows() bool {
	return s.provider != "" || len(s.states)+len(s.locations)+len(s.labels) > 0
}

// selects reports whether any of its flags was given.
func (s *selector) selects() bool { return s.narrows() || s.limits() || s.after != "" }

// limits reports whether --limit was given.
func (s *selector) limits() bool { return s.given("limit") }

// given reports whether a flag was given, also with nothing in it.
func (s *selector) given(flag string) bool { return s.flags != nil && s.flags.Changed(flag) }

func (s *selector) check() error {
	const most = 1 << 30
	switch {
	case s.limits() && (s.limit < 1 || s.limit > most): // a script whose number is 0 does not mean all
		return fleet.Errorf(fleet.KindInvalid, "--limit must be from 1 to %d, not %d: leave it out to mean all machines that are selected", most, s.limit)
	// Nor does one whose variable is not set.
	case s.given("provider") && s.provider == "":
		return fleet.Errorf(fleet.KindInvalid, "--provider must name a provider: leave it out to mean those of all")
	case s.given("state") && len(s.states) == 0:
		return fleet.Errorf(fleet.KindInvalid, "--state must name a state: leave it out to mean any")
	case s.given("after") && s.after == "":
		return fleet.Errorf(fleet.KindInvalid, "--after must be the ID of a machine: leave it out to begin with the first")
	case slices.Contains(s.locations, ""):
		return fleet.Errorf(fleet.KindInvalid, "--location must name a location")
	}
	for _, label := range s.labels {
		if _, err := fleet.ParseLabelSelector(label); err != nil {
			return fleet.Errorf(fleet.KindInvalid, "--label: %w", err)
		}
	}
	if s.after != "" {
		id, err := fleet.ParseMachineID(s.after)
		if err != nil {
			return fleet.Errorf(fleet.KindInvalid, "--after must be the ID of a machine, not %q", s.after)
		}
		s.after = string(id)
	}
	return checkStates(s.states)
}

// each calls take with page after page of the machines that the selector fits. Each page is given
// so long to come; 0: no limit.
func (s *selector) each(ctx context.Context, client fleetClient, limit time.Duration, take func(page []*fleetv1.Machine) error) error {
	request := &fleetv1.ListMachinesRequest{
		Provider: s.provider, States: s.states, Locations: s.locations, Labels: s.labels, PageSize: pageSize, PageToken: s.after,
	}
	if s.limit > 0 {
		request.PageSize = int32(min(s.limit, pageSize))
	}
	left := cmp.Or(s.limit, math.MaxInt)
	var failure error
	err := eachPage(ctx, client, limit, request, func(page []*fleetv1.Machine) (more bool) {
		page = page[:min(len(page), left)]
		left -= len(page)
		if slices.ContainsFunc(page, s.lacksLabel) {
			failure = fleet.Errorf(fleet.KindUnknown, "the control plane is too old to know --label: upgrade it, or leave it out")
			return false
		}
		failure = take(page)
		return failure == nil && left > 0
	})
	return cmp.Or(failure, err)
}

// lacksLabel reports whether a machine does not have a label that was asked for.
func (s *selector) lacksLabel(m *fleetv1.Machine) bool {
	return slices.ContainsFunc(s.labels, func(label string) bool { return !fleet.LabelSelector(label).Fits(m.GetLabels()) })
}

// pageSize is how many machines are asked for at once.
const pageSize = 1000

// eachPage asks for page after page, until there is none or no more are wanted. Each is given so
// long to come, whatever take does in between; 0: no limit.
func eachPage(
	ctx context.Context, client fleetClient, limit time.Duration, request *fleetv1.ListMachinesRequest, take func([]*fleetv1.Machine) (more bool),
) error {
	for {
		bounded, cancel := withTimeout(ctx, limit)
		response, err := client.ListMachines(bounded, request)
		cancel()
		if err != nil {
			return err
		}
		next := response.GetNextPageToken()
		if !take(response.GetMachines()) || next == "" {
			return nil
		}
		if next == request.GetPageToken() {
			return fmt.Errorf("the control plane gave the same page of machines twice")
		}
		request.PageToken = next
	}
}

// completeFrom returns what offers words of the machines to the shell.
func (a *app) completeFrom(wordsOf func(*fleetv1.Machine) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return a.completed(cmd, func(ctx context.Context, client fleetClient) (words []string, err error) {
			err = eachPage(ctx, client, 0, &fleetv1.ListMachinesRequest{PageSize: pageSize}, func(page []*fleetv1.Machine) (more bool) {
				for _, m := range page {
					for _, word := range wordsOf(m) {
						if word != "" && !slices.Contains(words, word) {
							words = offer(words, typed, word, "")
						}
					}
				}
				return len(words) < offered
			})
			slices.Sort(words)
			return words, err
		})
	}
}

func checkStates(states []string) error {
	for _, s := range states {
		if _, err := fleet.ParseState(s); err != nil {
			return err
		}
	}
	return nil
}
