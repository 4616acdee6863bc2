package provisioner

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// elsewhere is an entry that the BMDB has as a machine of another provider.
type elsewhere struct {
	entry            provider.Entry
	evidence, remedy string
}

// takeTwins takes the entries that are machines of another provider out of those that nobody knows.
// The provider was renamed, or two providers are one project of one API. Whoever adopted such a
// machine, or removed it at the provider, would take it from the other one.
func (p *pass) takeTwins(ctx context.Context) error {
	if provider.Keeps(p.source.Provider) { // the IDs of a list are its own: see takeElsewhere
		return nil
	}
	sought := make(map[fleet.ProviderID][]fleet.Token)
	for _, entry := range p.survey.unknown {
		sought[entry.ID] = entry.Tokens
	}
	for _, seen := range p.survey.released { // the other provider may have adopted it since
		sought[seen.entry.ID] = seen.entry.Tokens
	}
	if len(sought) == 0 {
		return nil
	}
	found, err := p.db.Elsewhere(ctx, p.source.Name, sought)
	if err != nil {
		return fmt.Errorf("look for machines at other providers: %w", err)
	}
	take := func(entry provider.Entry) bool {
		twin, is := found[entry.ID]
		if !is {
			return false
		}
		how := "is"
		if twin.ByToken {
			how = "carries the token of"
		}
		why := fmt.Sprintf("%s (%s) %s machine %s of provider %s", entry.ID, entry.Hostname, how, twin.Machine, twin.Provider)
		p.survey.elsewhere = append(p.survey.elsewhere, elsewhere{entry, why, twinRemedy})
		p.survey.unusable = append(p.survey.unusable, why)
		return true
	}
	p.survey.unknown = slices.DeleteFunc(p.survey.unknown, take)
	p.survey.released = slices.DeleteFunc(p.survey.released, func(seen sighting) bool { return take(seen.entry) })
	return nil
}

// twinRemedy tells what to do about a machine that two providers list.
const twinRemedy = "do not remove it at the provider; if this provider was renamed, give it its old name again; if two providers have one project, " +
	"keep the one that has the machines, and remove the other from the configuration"

// takeElsewhere takes the hosts that are machines of another provider out of those that could
// become machines. They are two names of one host: in two lists, in a list whose provider was
// renamed, or in a list with what was bought. Whoever took such a host in would install over it.
//
// The BMDB is asked only where a list has hosts that are not known, which is not so as a rule. It
// has the addresses of machines; port and jump host are asked of the other provider. Where that is
// not configured here, the address decides.
func (p *pass) takeElsewhere(ctx context.Context, entries []provider.Entry) error {
	if !provider.Keeps(p.source.Provider) || len(p.survey.free)+len(p.survey.retry) == 0 {
		return nil
	}
	wanted := make(map[fleet.CapacityID]bool)
	for _, capacity := range p.survey.free {
		wanted[capacity] = true
	}
	for _, intent := range p.survey.retry {
		wanted[intent.Capacity] = true
	}
	hosts := make(map[netip.Addr][]provider.Entry)
	for _, entry := range entries {
		if wanted[entry.Capacity] && entry.Address.IsValid() {
			hosts[entry.Address] = append(hosts[entry.Address], entry)
		}
	}
	rows, err := p.db.Providers(ctx)
	if err != nil {
		return fmt.Errorf("look for hosts at other providers: %w", err)
	}
	found := make(map[fleet.CapacityID]elsewhere)
	for _, row := range rows {
		if row.Name == p.source.Name {
			continue
		}
		view, err := p.db.ViewProvider(ctx, row.Name)
		if fleet.KindOf(err) == fleet.KindNotFound { // it was forgotten meanwhile
			continue
		}
		if err != nil {
			return fmt.Errorf("look for hosts at provider %s: %w", row.Name, err)
		}
		for _, m := range view.Machines {
			if m.Provided == nil || len(hosts[m.Provided.Address]) == 0 {
				continue
			}
			gone := m.Provided.Status == fleet.ProviderStatusGone
			if gone && p.bought(row.Name) {
				continue
			}
			access, known := p.accessOf(ctx, row.Name, m.ProviderID)
			for _, entry := range hosts[m.Provided.Address] {
				if !known || sameAccess(entry.Access, access) {
					is, tail, remedy := "is", "", elsewhereRemedy(m.ID)
					if gone { // how it was reached is not known any more
						is, tail, remedy = "may be", ", which does not list it any more", movedRemedy(m.ID)
					}
					found[entry.Capacity] = elsewhere{entry, fmt.Sprintf("host %s (%s) %s machine %s (%s) of provider %s%s",
						entry.ID, entry.Address, is, m.ID, nameOf(m), row.Name, tail), remedy}
				}
			}
		}
	}
	p.survey.leave(entries, found)
	return nil
}

// bought reports whether what that provider does not have any more is gone: somebody else may have
// the address by now. A list that leaves a host out says nothing of the host, which may have moved
// to another list with all that it runs.
func (p *pass) bought(name fleet.ProviderName) bool {
	other, configured := p.sources[name]
	return configured && !provider.Keeps(other.Provider)
}

// accessOf returns how another provider has a machine reached; not known where that is not
// configured here, or does not say.
func (p *pass) accessOf(ctx context.Context, name fleet.ProviderName, id fleet.ProviderID) (provider.Access, bool) {
	other, configured := p.sources[name]
	switch {
	case !configured:
		return provider.Access{}, false
	case !provider.Keeps(other.Provider): // it is reached as all machines are
		return provider.Access{}, true
	}
	entry, err := other.Provider.Get(ctx, id)
	return entry.Access, err == nil && entry.Invalid == ""
}

// sameAccess reports whether one address, reached in these two ways, may be one host. A port that
// is not named is one that this package does not know.
func sameAccess(a, b provider.Access) bool {
	var left, right netip.AddrPort
	if a.Jump != nil {
		left = a.Jump.Address
	}
	if b.Jump != nil {
		right = b.Jump.Address
	}
	return left == right && (a.Port == b.Port || a.Port == 0 || b.Port == 0)
}

// leave has the survey leave hosts alone, for the reasons that are given by their capacity. An
// intent that is open on one has made no call, as none is made for a host of a list.
func (s *survey) leave(entries []provider.Entry, known map[fleet.CapacityID]elsewhere) {
	for _, entry := range entries {
		if twin, ours := known[entry.Capacity]; ours {
			s.elsewhere = append(s.elsewhere, twin)
			s.unusable = append(s.unusable, twin.evidence)
		}
	}
	s.free = slices.DeleteFunc(s.free, func(c fleet.CapacityID) bool { return known[c].evidence != "" })
	s.retry = slices.DeleteFunc(s.retry, func(intent fleet.Intent) bool {
		why := known[intent.Capacity].evidence
		if why != "" {
			s.futile = append(s.futile, finding{intent, why})
		}
		return why != ""
	})
}

// elsewhereRemedy tells what to do about such a host, which is a machine of another provider.
func elsewhereRemedy(machine fleet.MachineID) string {
	return fmt.Sprintf("remove it from this list, or give back the machine of the other provider (`ironherd machine release %s --reason WHY`); "+
		"where the provider was renamed, give it its old name again", machine)
}

// movedRemedy tells what to do about one that has moved from another list.
func movedRemedy(machine fleet.MachineID) string {
	return fmt.Sprintf("where it is another host, or is to be managed anew with all that this list configures, `ironherd machine forget %s --reason WHY` "+
		"removes that machine; else put it back where it was", machine)
}

// duplicates returns the discrepancies of entries that are machines of other providers. Of many it
// returns the first; the result of the pass names more.
func (s *survey) duplicates() (found []bmdb.Discrepancy) {
	for _, twin := range s.elsewhere[:min(len(s.elsewhere), asksPerPass)] {
		found = append(found, bmdb.Discrepancy{
			Kind: fleet.DiscrepancyDuplicateMachine, ProviderID: twin.entry.ID, Evidence: twin.evidence, Remedy: twin.remedy,
		})
	}
	return found
}
