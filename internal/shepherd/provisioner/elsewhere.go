package provisioner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// otherMachine is an entry that the BMDB has as a machine of another provider, or under another ID.
// Without a remedy it was released there, and is no discrepancy.
type otherMachine struct {
	entry            provider.Entry
	evidence, remedy string
	// machine of this provider that it is as well; empty: none.
	machine fleet.MachineID
}

// takeTwins takes the entries that are machines of another provider out of those that nobody knows.
// The provider was renamed, or two providers are one project of one API. Whoever adopted such a
// machine, or removed it at the provider, would take it from the other one. Of those that failed
// it tells which are none.
func (p *pass) takeTwins(ctx context.Context) error {
	twins, err := p.twins(ctx)
	if err != nil {
		return err
	}
	take := func(entry provider.Entry) bool {
		why, is := twins[entry.ID]
		if is {
			p.survey.elsewhere = append(p.survey.elsewhere, otherMachine{entry: entry, evidence: why, remedy: twinRemedy})
			p.survey.unusable = append(p.survey.unusable, why)
		}
		return is
	}
	p.survey.unknown = slices.DeleteFunc(p.survey.unknown, take)
	p.survey.released = slices.DeleteFunc(p.survey.released, func(seen sighting) bool { return take(seen.entry) })
	for _, entry := range p.survey.failed {
		p.survey.unusable = append(p.survey.unusable, cmp.Or(twins[entry.ID], failedHere(entry)))
	}
	return nil
}

// twins returns the entries that are machines of another provider, with that in words.
func (p *pass) twins(ctx context.Context) (map[fleet.ProviderID]string, error) {
	if provider.Keeps(p.source.Provider) { // the IDs of a list are its own: see takeElsewhere
		return nil, nil
	}
	entries := slices.Concat(p.survey.unknown, p.survey.failed)
	for _, seen := range p.survey.released { // the other provider may have adopted it since
		entries = append(entries, seen.entry)
	}
	if len(entries) == 0 {
		return nil, nil
	}
	sought := make(map[fleet.ProviderID][]fleet.Token, len(entries))
	for _, entry := range entries {
		sought[entry.ID] = entry.Tokens
	}
	found, err := p.db.Elsewhere(ctx, p.source.Name, sought)
	if err != nil {
		return nil, fmt.Errorf("look for machines at other providers: %w", err)
	}
	twins := make(map[fleet.ProviderID]string, len(found))
	for _, entry := range entries {
		twin, is := found[entry.ID]
		how := "is"
		if twin.ByToken {
			how = "carries the token of"
		}
		if is {
			twins[entry.ID] = fmt.Sprintf("%s (%s) %s machine %s of provider %s", entry.ID, entry.Hostname, how, twin.Machine, twin.Provider)
		}
	}
	return twins, nil
}

// failedHere names a machine that failed and that is no machine of any provider here.
func failedHere(entry provider.Entry) string {
	return fmt.Sprintf("%s (%s) failed at the provider, which holds %s for it, and is no machine of this database: delete it at the provider",
		entry.ID, cmp.Or(entry.Hostname, "no name"), cmp.Or(string(entry.Capacity), "its capacity"))
}

// twinRemedy tells what to do about a machine that two providers list.
const twinRemedy = "do not remove it at the provider; if this provider was renamed, give it its old name again; if two providers have one project, " +
	"keep the one that has the machines, and remove the other from the configuration"

// comparedHost is an entry of a list that is compared with machines that the BMDB has.
type comparedHost struct {
	provider.Entry
	// machine of this list that it is; empty: it could become one.
	machine fleet.MachineID
}

// takeElsewhere takes the hosts that are machines already out of those that could become machines.
// They are two names of one host: in two lists, in a list whose provider was renamed, in a list
// with what was bought, or in one list whose ID of the host has changed. Whoever took such a host
// in would install over it. A machine of this list is told that is one of another provider, too.
//
// The machines of other providers are read only where a list has hosts that are not known, or whose
// addresses they share, which is not so as a rule. The BMDB has the addresses of machines. Port
// and jump host are asked of the other provider. Where that is not configured here, the address
// decides.
func (p *pass) takeElsewhere(ctx context.Context, entries []provider.Entry) error {
	if !provider.Keeps(p.source.Provider) {
		return nil
	}
	hosts, err := p.compared(ctx, entries)
	if err != nil || len(hosts) == 0 {
		return err
	}
	found := p.renamed(entries, hosts)
	p.keptOut(ctx, p.source.Name, p.view.Penalties, hosts, found)
	rows, err := p.db.Providers(ctx)
	if err != nil {
		return fmt.Errorf("look for hosts at other providers: %w", err)
	}
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
			if m.Provided != nil && len(hosts[m.Provided.Address]) > 0 {
				p.compareHosts(ctx, row.Name, m, hosts[m.Provided.Address], found)
			}
		}
		p.keptOut(ctx, row.Name, view.Penalties, hosts, found)
	}
	p.survey.leave(entries, found)
	return nil
}

// compared returns the hosts that are to be compared, by their addresses: those that could become
// machines, and machines whose address a machine of another provider has, too.
func (p *pass) compared(ctx context.Context, entries []provider.Entry) (map[netip.Addr][]comparedHost, error) {
	shared, err := p.db.SharedAddresses(ctx, p.source.Name)
	if err != nil {
		return nil, fmt.Errorf("look for machines at other providers: %w", err)
	}
	wanted := make(map[fleet.CapacityID]bool)
	for _, capacity := range p.survey.free {
		wanted[capacity] = true
	}
	for _, intent := range p.survey.retry {
		wanted[intent.Capacity] = true
	}
	machines := make(map[fleet.ProviderID]fleet.MachineID)
	for _, m := range p.view.Machines {
		machines[m.ProviderID] = m.ID
	}
	hosts := make(map[netip.Addr][]comparedHost)
	for _, entry := range entries {
		machine, used := machines[entry.ID]
		if entry.Invalid == "" && entry.Address.IsValid() && (wanted[entry.Capacity] || used && shared[entry.Address]) {
			hosts[entry.Address] = append(hosts[entry.Address], comparedHost{entry, machine})
		}
	}
	return hosts, nil
}

// compareHosts adds to found those of the hosts that are this machine of another provider, whose
// address they have. Of those that are not it notes so. A host is free, or a machine of this list:
//
//	the machine of the other provider             the free host    the machine of this list
//	was bought, and is gone                       is another one   is another one
//	is reached in another way                     is another one   is another one
//	is on its list no more                        may be it        needs more than that
//	is reached in a way that it does not say      is it            is it if an earlier pass said so
//	is reached in this way, as far as is known    is it            is it, and is two machines
func (p *pass) compareHosts(
	ctx context.Context, name fleet.ProviderName, m bmdb.ProviderMachine, hosts []comparedHost, found map[fleet.CapacityID]otherMachine,
) {
	_, asked := p.sources[name]
	unlisted := m.Provided.Status == fleet.ProviderStatusGone
	gone := unlisted && p.bought(name)
	entry, known := provider.Entry{}, false
	if !gone {
		entry, known = p.entryAt(ctx, name, m.ProviderID, m.Provided.Address)
	}
	unsaid := asked && !known
	for _, h := range hosts {
		says := func(is string) string {
			return fmt.Sprintf("host %s (%s) %s machine %s (%s) of provider %s", h.ID, h.Address, is, m.ID, nameOf(m), name)
		}
		isTwo := says("is") + ", and machine " + string(h.machine) + " of this one"
		another := gone || known && !sameAccess(h.Access, entry.Access)
		free := h.machine == ""
		switch {
		case another:
			p.apart[h.Capacity] = append(p.apart[h.Capacity], m.ID)
		case free && unlisted: // how it was reached is not known any more
			found[h.Capacity] = otherMachine{entry: h.Entry, evidence: says("may be") + ", which does not list it any more", remedy: movedRemedy(m.ID)}
		case free:
			remedy := elsewhereRemedy(m.ID)
			if !asked { // nobody would carry a release out, perhaps
				remedy += unservedRemedy(name, m.ID)
			}
			found[h.Capacity] = otherMachine{entry: h.Entry, evidence: says("is"), remedy: remedy}
		case !unlisted && (!unsaid || p.toldBefore(isTwo)):
			found[h.Capacity] = otherMachine{
				entry: h.Entry, evidence: isTwo, remedy: sharedRemedy(name, m.ProviderID, p.source.Name, h.ID), machine: h.machine,
			}
		}
	}
}

// keptOut adds to found those of the hosts whose address another one had, under another ID or at
// that other provider, when it was released. Only a person lets them be used again. They are no
// discrepancy.
func (p *pass) keptOut(
	ctx context.Context, name fleet.ProviderName, penalties map[fleet.CapacityID]bmdb.Penalty, hosts map[netip.Addr][]comparedHost, found map[fleet.CapacityID]otherMachine,
) {
	open := func(h comparedHost) bool { return h.machine == "" && found[h.Capacity].evidence == "" }
	for _, capacity := range slices.Sorted(maps.Keys(penalties)) {
		penalty := penalties[capacity]
		if !penalty.ForEver() || !slices.ContainsFunc(hosts[penalty.Address], open) {
			continue
		}
		entry, known := p.entryAt(ctx, name, fleet.ProviderID(capacity), penalty.Address)
		moved := ""
		if entry.Address.IsValid() && entry.Address != penalty.Address {
			moved = fmt.Sprintf("; that command lets %s be taken in as well, which is at %s now: take it off its list first", capacity, entry.Address)
		}
		for _, h := range hosts[penalty.Address] {
			if !open(h) || known && !sameAccess(h.Access, entry.Access) {
				continue
			}
			found[h.Capacity] = otherMachine{entry: h.Entry, evidence: fmt.Sprintf(
				"host %s has the address (%s) that %s of provider %s had when it was released (%s): it stays out until `ironherd provider retry %s --capacity %s --reason WHY`%s",
				h.ID, h.Address, capacity, name, penalty.Cause, name, capacity, moved)}
		}
	}
}

// toldBefore reports whether an earlier pass recorded a discrepancy with that evidence.
func (p *pass) toldBefore(evidence string) bool {
	return slices.ContainsFunc(p.view.Discrepancies, func(d bmdb.Discrepancy) bool { return d.Evidence == evidence })
}

// renamed returns the hosts that have the address of a machine of this list, of which the list does
// not say where it is: somebody has changed its ID, perhaps.
func (p *pass) renamed(entries []provider.Entry, hosts map[netip.Addr][]comparedHost) map[fleet.CapacityID]otherMachine {
	listed := make(map[fleet.ProviderID]provider.Entry, len(entries))
	for _, entry := range entries {
		listed[entry.ID] = entry
	}
	found := make(map[fleet.CapacityID]otherMachine)
	for _, m := range p.view.Machines {
		entry, there := listed[m.ProviderID]
		says := there && entry.Invalid == ""
		if says || m.Provided == nil {
			continue
		}
		for _, h := range hosts[m.Provided.Address] {
			if h.machine != "" {
				continue
			}
			why, remedy := "which the list does not have any more", renamedRemedy(h.ID, m)
			switch {
			case there && entry.Address.IsValid() && entry.Address != h.Address: // see shepherd.Source.Look
				why, remedy = "whose entry has another address now", renumberedRemedy(h.ID, m)
			case there:
				why = "whose entry cannot be used"
			}
			evidence := fmt.Sprintf("host %s (%s) may be machine %s (%s), %s", h.ID, h.Address, m.ID, m.ProviderID, why)
			found[h.Capacity] = otherMachine{entry: h.Entry, evidence: evidence, remedy: remedy}
			p.moved[m.ID] = remedy
		}
	}
	return found
}

// bought reports whether what that provider does not have any more is gone: somebody else may have
// the address by now. A list that leaves a host out says nothing of the host, which may have moved
// to another list with all that it runs.
func (p *pass) bought(name fleet.ProviderName) bool {
	other, configured := p.sources[name]
	return configured && !provider.Keeps(other.Provider)
}

// entryAt returns the entry of a host in the list of a provider, and whether it says how the host
// is reached at that address: not where the provider is not configured here, or where the list
// gives the host another address by now. A list that cannot be asked is asked no more in this pass:
// each question could take as long, and what hangs must not stop the passes of another provider.
func (p *pass) entryAt(ctx context.Context, name fleet.ProviderName, id fleet.ProviderID, at netip.Addr) (provider.Entry, bool) {
	other, configured := p.sources[name]
	switch {
	case !configured:
		return provider.Entry{}, false
	case !provider.Keeps(other.Provider): // it is reached as all machines are
		return provider.Entry{}, true
	case p.othersFail[name]:
		return provider.Entry{}, false
	}
	entry, err := other.Ask(ctx, id)
	p.othersFail[name] = err != nil && fleet.KindOf(err) != fleet.KindNotFound
	return entry, err == nil && entry.Invalid == "" && entry.Address == at
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
func (s *survey) leave(entries []provider.Entry, found map[fleet.CapacityID]otherMachine) {
	for _, entry := range entries {
		other, is := found[entry.Capacity]
		switch {
		case !is:
			continue
		case other.remedy == "":
			s.keptOutAt = append(s.keptOutAt, other.evidence)
			continue
		case other.machine == "":
			s.unusable = append(s.unusable, other.evidence)
		}
		s.elsewhere = append(s.elsewhere, other)
	}
	s.free = slices.DeleteFunc(s.free, func(c fleet.CapacityID) bool { return found[c].evidence != "" })
	s.retry = slices.DeleteFunc(s.retry, func(intent fleet.Intent) bool {
		why := found[intent.Capacity].evidence
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

// unservedRemedy adds what to do where nobody can give that machine back.
func unservedRemedy(name fleet.ProviderName, machine fleet.MachineID) string {
	return fmt.Sprintf("; where no control plane serves provider %s any more, and the host is to be managed anew with all that this list configures, "+
		"`ironherd machine forget %s --reason WHY` removes that machine", name, machine)
}

// movedRemedy tells what to do about one that has moved from another list.
func movedRemedy(machine fleet.MachineID) string {
	return fmt.Sprintf("where it is another host, or is to be managed anew with all that this list configures, `ironherd machine forget %s --reason WHY` "+
		"removes that machine; else put it back where it was", machine)
}

// renamedRemedy tells what to do about one that has the address of a machine of the same list.
func renamedRemedy(id fleet.ProviderID, m bmdb.ProviderMachine) string {
	return fmt.Sprintf("give host %s, which has its address, the id %s again; only where it is another host, or is to be managed anew with all that this list configures, "+
		"`ironherd machine forget %s --reason WHY` removes that machine, once it is a %s", id, m.ProviderID, m.ID, fleet.DiscrepancyMissingMachine)
}

// renumberedRemedy tells what to do about one that has the address which a machine of the same list
// had before.
func renumberedRemedy(id fleet.ProviderID, m bmdb.ProviderMachine) string {
	return fmt.Sprintf("give the hosts of the list the ids again that they had; only where %s is another host, and %s has a new address, take %s off the list, "+
		"with all others of which this is told, until `ironherd machine show %s` has that address, and put them back then", id, m.ProviderID, id, m.ID)
}

// unlistedRemedy tells what to do about a host that its list does not have any more.
func unlistedRemedy(name fleet.ProviderName, id fleet.ProviderID) string {
	return fmt.Sprintf("put it back on the list as %s; only where the host is given up, `ironherd discrepancy forget %s %s --reason WHY` removes its machine: "+
		"a list that has the host takes it in anew, and what runs on it ends", id, name, id)
}

// sharedRemedy tells what to do about a host that is two machines.
func sharedRemedy(other fleet.ProviderName, otherID fleet.ProviderID, own fleet.ProviderName, id fleet.ProviderID) string {
	return fmt.Sprintf("give it its own address again where that was changed; else remove it from one of the two, and once it is a %s there, have that machine forgotten "+
		"(`ironherd discrepancy forget %s %s --reason WHY`, or `ironherd discrepancy forget %s %s --reason WHY`)",
		fleet.DiscrepancyMissingMachine, other, otherID, own, id)
}

// elsewhereDiscrepancies returns the discrepancies of entries that are machines already. Of many it
// returns the first; the result of the pass names more.
func (s *survey) elsewhereDiscrepancies() (found []bmdb.Discrepancy) {
	for _, other := range s.elsewhere[:min(len(s.elsewhere), asksPerPass)] {
		found = append(found, bmdb.Discrepancy{
			Kind: fleet.DiscrepancyDuplicateMachine, ProviderID: other.entry.ID, Machine: other.machine, Evidence: other.evidence, Remedy: other.remedy,
		})
	}
	return found
}
