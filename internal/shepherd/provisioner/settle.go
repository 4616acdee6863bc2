package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// asksPerPass bounds how many direct questions of one kind a pass asks besides its list.
const asksPerPass = 20

// inTurn returns the elements in an order that begins with another one in the next pass, so that
// each is asked for some time, where there are more than a pass asks for.
func inTurn[T any](p *pass, all []T) []T {
	if len(all) == 0 {
		return nil
	}
	first := int(p.work.Epoch % fleet.Epoch(len(all)))
	return slices.Concat(all[first:], all[:first])
}

// questions are those of one kind that a pass asks, asksPerPass at most.
type questions struct {
	*pass
	begun int
}

// errNotAsked is the error of a question that is not asked.
var errNotAsked = fleet.Errorf(fleet.KindUnknown, "not asked")

// askFor asks the provider something about one machine, of that ID or token. After a question that
// has no answer in time, no more are asked in that pass: each could take as long. The passes after
// it ask nothing about that machine, until one of them has an answer to all that it asks. So all
// others have their turn, however many machines the provider hangs about.
func (q *questions) askFor(about string, question func() (provider.Entry, error)) (provider.Entry, error) {
	q.begun++
	if q.begun > asksPerPass || q.hangs || q.source.hangsAbout(about) {
		return provider.Entry{}, errNotAsked
	}
	entry, err := question()
	if q.hangs = fleet.KindOf(err) == fleet.KindTimeout; q.hangs {
		q.source.hangs(about)
	}
	return entry, err
}

// ask asks for a machine by its ID, under askFor's condition.
func (q *questions) ask(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	return q.askFor(string(id), func() (provider.Entry, error) { return q.source.Ask(ctx, id) })
}

// settle closes the intents whose outcome the list tells, and adopts machines which carry one of
// our tokens, or that operators asked for. This is recorded before the provider is asked anything,
// which may take long. What the answers say besides is returned.
func (p *pass) settle(ctx context.Context) ([]bmdb.Change, error) {
	changes, err := p.listChanges(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.note(ctx, changes); err != nil {
		return nil, err
	}
	adopted, unseen := p.adoptionChanges(ctx)
	noted := 0
	for chunk := range slices.Chunk(adopted, machinesNoted) {
		err := p.note(ctx, append(slices.Concat(chunk...), bmdb.UnlessPaused()))
		if errors.Is(err, bmdb.ErrPaused) {
			p.tally.count(endPaused) // they are asked for still when it is resumed
			p.tally.takenIn = min(p.tally.takenIn, noted)
			break
		}
		if err != nil {
			return nil, err
		}
		noted += len(chunk)
	}
	changes, err = p.unseenChanges(ctx, unseen)
	if err != nil {
		return nil, err
	}
	contested, err := p.contestedChanges(ctx)
	return append(changes, contested...), err
}

// machinesNoted is how many machines are written in one transaction: others wait for it.
const machinesNoted = 100

// note records what the list says.
func (p *pass) note(ctx context.Context, changes []bmdb.Change) error {
	if len(changes) == 0 {
		return nil
	}
	if err := p.work.Note(ctx, changes...); err != nil {
		return fmt.Errorf("record what the list says: %w", err)
	}
	return nil
}

// listChanges returns the changes that follow from the list alone.
func (p *pass) listChanges(ctx context.Context) ([]bmdb.Change, error) {
	var changes []bmdb.Change
	now := p.view.Now
	for _, seen := range p.survey.found {
		p.tally.adopted++
		changes = append(changes, p.providedChanges(seen.machine, seen.entry, now)...)
	}
	for _, seen := range p.survey.adopt {
		p.tally.adopted++
		p.logger.WarnContext(ctx, "machine with a closed token surfaced", slog.String("machine", string(seen.machine)))
		changes = append(changes, bmdb.AdoptToken(seen.token, seen.entry.ID, seen.entry.Capacity, seen.entry.Provided(nil, now), p.configured()))
		// What was known of it went when its intent was closed.
		key, err := p.hostKey(seen.token)
		if err != nil {
			return nil, err
		}
		changes = append(changes, injectedChanges(seen.machine, key)...)
	}
	p.survey.cut(p.view, p.source.Config.MaxMachines)
	for _, futile := range p.survey.futile {
		changes = append(changes, bmdb.CloseIntentRejected(futile.intent.Machine, "nothing was created: "+futile.evidence))
	}
	for _, capacity := range p.survey.failedCapacity {
		changes = append(changes, bmdb.SetPenalty(capacity, p.source.Config.Penalty, "the machine on it failed to provision"))
	}
	return changes, nil
}

// contestedChanges returns the changes that close open intents whose capacity another owner has.
// Two complete lists after the settling time must have said so, and the provider must find no
// machine that carries the token.
func (p *pass) contestedChanges(ctx context.Context) ([]bmdb.Change, error) {
	q := questions{pass: p}
	var changes []bmdb.Change
	for _, f := range inTurn(p, p.seenTwice()) {
		intent := f.intent
		entry, err := q.askFor(string(intent.Token), func() (provider.Entry, error) {
			return p.source.Provider.FindByToken(ctx, intent.Capacity, intent.Token)
		})
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("look for the machine of an intent: %w", context.Cause(ctx))
		case err == nil && entry.Invalid == "":
			p.tally.adopted++
			changes = append(changes, p.providedChanges(intent.Machine, entry, p.view.Now)...)
		case err == nil:
			p.logger.WarnContext(ctx, "entry is left alone", slog.String("reason", entry.Invalid))
		case fleet.KindOf(err) == fleet.KindNotFound:
			evidence := fmt.Sprintf("%s, in two complete lists after the settling time of %s", f.evidence, p.source.Config.SettlingTime)
			changes = append(changes, bmdb.CloseIntentOtherOwner(intent.Machine, evidence))
		case errors.Is(err, errNotAsked):
		default:
			p.logger.WarnContext(ctx, "machine of an intent cannot be looked for",
				slog.String("machine", string(intent.Machine)), slog.Any("err", err))
		}
	}
	return changes, nil
}

// refresh records what a list of hosts says of those that the BMDB knows, also that one is back: a
// list does not lag, and was edited by somebody who looks whether that counts. Of other providers
// only the updater reads this.
func (p *pass) refresh(ctx context.Context, entries []provider.Entry) error {
	if !provider.Keeps(p.source.Provider) {
		return nil
	}
	listed := make(map[fleet.ProviderID]provider.Entry, len(entries))
	for _, entry := range entries {
		if entry.Invalid == "" {
			listed[entry.ID] = entry
		}
	}
	var changes []bmdb.Change
	for _, m := range p.view.Machines {
		entry, there := listed[m.ProviderID]
		if !there || m.Provided == nil || m.Releasing && m.Provided.Status == fleet.ProviderStatusGone {
			continue
		}
		if fact := entry.Provided(m.Provided, p.view.Now); !provider.SameFact(fact, *m.Provided) {
			changes = append(changes, bmdb.SetProvided(m.ID, m.ProviderID, fact))
		}
	}
	for chunk := range slices.Chunk(changes, machinesNoted) {
		if err := p.note(ctx, chunk); err != nil {
			return err
		}
	}
	return nil
}

// seenTwice counts this list as a look at each contested intent, and returns the intents that have
// had two looks in a row.
func (p *pass) seenTwice() []finding {
	s := p.source
	s.mu.Lock()
	defer s.mu.Unlock()
	looks := make(map[fleet.MachineID]int)
	var twice []finding
	for _, f := range p.survey.contested {
		if !p.isSettled(f.intent) {
			continue
		}
		looks[f.intent.Machine] = s.looks[f.intent.Machine] + 1
		if looks[f.intent.Machine] >= 2 {
			twice = append(twice, f)
		}
	}
	s.looks = looks // an intent that is not contested this time starts again
	return twice
}

// isSettled reports whether the last call for an intent that was not answered had its effect before
// this pass began, if it had any.
func (p *pass) isSettled(intent fleet.Intent) bool {
	called := intent.OpenedAt
	if intent.CalledAt != nil {
		called = *intent.CalledAt
	}
	return p.view.Now.Sub(called) >= p.source.Config.SettlingTime
}

// compare returns the discrepancies between the provider and the BMDB, and the changes that record
// which machines are gone, and which of those are back.
func (p *pass) compare(ctx context.Context) ([]bmdb.Discrepancy, []bmdb.Change, error) {
	found, err := p.givenBackDiscrepancies(ctx)
	if err != nil {
		return nil, nil, err
	}
	changes, err := p.returnedChanges(ctx)
	if err != nil {
		return nil, nil, err
	}
	unknown, err := p.unknownDiscrepancies(ctx)
	if err != nil {
		return nil, nil, err
	}
	found = append(found, unknown...)
	for _, seen := range p.survey.duplicate {
		found = append(found, bmdb.Discrepancy{
			Kind: fleet.DiscrepancyDuplicateMachine, ProviderID: seen.entry.ID, Machine: seen.machine,
			Evidence: fmt.Sprintf("the provider lists %s with the token of machine %s, which is another one", seen.entry.ID, seen.machine),
			Remedy:   fleet.DiscrepancyDuplicateMachine.Remedy(p.source.Name, seen.entry.ID),
		})
	}
	found = append(found, p.survey.elsewhereDiscrepancies()...)
	for _, m := range p.survey.gone {
		found = append(found, p.missingDiscrepancy(m, "the provider said so when asked for it"))
	}
	if provider.SuddenLoss(p.survey.known, len(p.survey.missing)) {
		return append(found, bmdb.Discrepancy{
			Kind:     fleet.DiscrepancyListLoss,
			Evidence: fmt.Sprintf("%d of %d machines are missing from the provider's list", len(p.survey.missing), p.survey.known),
			Remedy:   fleet.DiscrepancyListLoss.Remedy(p.source.Name, ""),
		}), changes, nil
	}
	confirmed, gone, err := p.confirm(ctx)
	return append(found, confirmed...), append(changes, gone...), err
}

// returnedChanges asks for each machine that was gone and is in the list again by its ID: lists
// lag. It returns the changes that record what the provider says.
func (p *pass) returnedChanges(ctx context.Context) ([]bmdb.Change, error) {
	if provider.Keeps(p.source.Provider) { // see refresh
		return nil, nil
	}
	q := questions{pass: p}
	var changes []bmdb.Change
	for _, m := range inTurn(p, p.survey.back) {
		entry, err := q.ask(ctx, m.ProviderID)
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("ask for a machine that is listed again: %w", context.Cause(ctx))
		case err == nil && entry.Invalid == "":
			changes = append(changes, bmdb.SetProvided(m.ID, m.ProviderID, entry.Provided(m.Provided, p.view.Now)))
		}
	}
	return changes, nil
}

// unknownDiscrepancies asks for each machine that nobody knows by its ID before it is recorded as
// such: one that was adopted and given back carries no token, and lists lag. Where the provider
// gives no definite answer, or is not asked, the list counts. Of very many it is not asked.
func (p *pass) unknownDiscrepancies(ctx context.Context) (found []bmdb.Discrepancy, err error) {
	recorded, q := p.recordedUnknown(), questions{pass: p}
	for _, entry := range inTurn(p, p.survey.unknown) {
		if _, wanted := p.view.Adoptions[entry.ID]; wanted {
			continue
		}
		// What there is no room to record would be asked for in each pass.
		if _, was := recorded[entry.ID]; !was && len(recorded) < recordedOfAKind {
			now, err := q.ask(ctx, entry.ID)
			switch {
			case ctx.Err() != nil:
				return nil, fmt.Errorf("ask for an unknown machine: %w", context.Cause(ctx))
			case fleet.KindOf(err) == fleet.KindNotFound, err == nil && ending(now):
				continue
			}
		}
		d := bmdb.Discrepancy{
			Kind: fleet.DiscrepancyUnknownMachine, ProviderID: entry.ID,
			Evidence: fmt.Sprintf("the provider lists %s as used (%s, created %s); the BMDB does not know it",
				entry.ID, entry.Hostname, age(entry.CreatedAt)),
			Remedy: fleet.DiscrepancyUnknownMachine.Remedy(p.source.Name, entry.ID),
		}
		if machine, was := p.survey.forgotten[entry.ID]; was {
			d.Evidence += fmt.Sprintf(" any more: it was machine %s, which was forgotten while the provider had it", machine)
		} else if len(entry.Tokens) > 0 {
			d.Evidence += ". It carries the token of an Ironherd: another control plane, with a database of its own, has this project, or this database has lost it"
			d.Remedy = fleet.RemedyOfToken(p.source.Name, entry.ID)
		}
		found = append(found, d)
	}
	return found, nil
}

// recordedUnknown returns the unknown machines that an earlier pass has recorded.
func (p *pass) recordedUnknown() map[fleet.ProviderID]bmdb.Discrepancy {
	recorded := make(map[fleet.ProviderID]bmdb.Discrepancy)
	for _, d := range p.view.Discrepancies {
		if d.Kind == fleet.DiscrepancyUnknownMachine {
			recorded[d.ProviderID] = d
		}
	}
	return recorded
}

// givenBackDiscrepancies asks for each machine that was given back and is in the list by its ID:
// lists lag. One that the provider has still is a discrepancy, and never adopted by itself. Where
// the provider gives no definite answer, a discrepancy that an earlier pass found stays.
func (p *pass) givenBackDiscrepancies(ctx context.Context) ([]bmdb.Discrepancy, error) {
	recorded, q := p.recordedUnknown(), questions{pass: p}
	var found []bmdb.Discrepancy
	for _, seen := range inTurn(p, p.survey.released) {
		if _, wanted := p.view.Adoptions[seen.entry.ID]; wanted {
			continue
		}
		entry, err := q.ask(ctx, seen.entry.ID)
		earlier, was := recorded[seen.entry.ID]
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("ask for a machine that was given back: %w", context.Cause(ctx))
		case fleet.KindOf(err) == fleet.KindNotFound, err == nil && ending(entry):
		case err != nil && was:
			found = append(found, earlier)
		case errors.Is(err, errNotAsked):
		case err != nil:
			p.logger.WarnContext(ctx, "machine that was given back cannot be asked for",
				slog.String("provider_id", string(seen.entry.ID)), slog.Any("err", err))
		default:
			found = append(found, bmdb.Discrepancy{
				Kind: fleet.DiscrepancyUnknownMachine, ProviderID: seen.entry.ID,
				Evidence: fmt.Sprintf("%s was machine %s, which was given back, or was gone and then forgotten; asked for it by its ID, the provider has it",
					seen.entry.ID, seen.machine),
				Remedy: fleet.DiscrepancyUnknownMachine.Remedy(p.source.Name, seen.entry.ID),
			})
		}
	}
	return found, nil
}

// adoptionChanges returns, for each machine that operators asked for, the changes that take it in,
// and those machines that are not to be seen. A request for one that is managed already ends, with
// a word in the history.
func (p *pass) adoptionChanges(ctx context.Context) (changes [][]bmdb.Change, unseen []fleet.ProviderID) {
	unknown := make(map[fleet.ProviderID]provider.Entry)
	for _, entry := range p.survey.unknown {
		unknown[entry.ID] = entry
	}
	for _, seen := range p.survey.released {
		unknown[seen.entry.ID] = seen.entry
	}
	managed := make(map[fleet.ProviderID]string)
	for _, m := range p.view.Machines {
		managed[m.ProviderID] = "it is machine " + string(m.ID) + " already"
	}
	for _, other := range p.survey.elsewhere {
		managed[other.entry.ID] = other.evidence
	}
	for _, id := range slices.Sorted(maps.Keys(p.view.Adoptions)) {
		if entry, there := unknown[id]; there {
			p.tally.takenIn++
			machine := fleet.NewMachineID()
			p.logger.InfoContext(ctx, "machine is adopted", slog.String("machine", string(machine)), slog.String("provider_id", string(id)),
				slog.String("asked_by", p.view.Adoptions[id]))
			changes = append(changes, []bmdb.Change{bmdb.AdoptEntry(machine, id, entry.Capacity, entry.Provided(nil, p.view.Now))})
			continue
		}
		if why, known := managed[id]; known {
			changes = append(changes, p.notAdoptedChanges(ctx, id, why))
			continue
		}
		unseen = append(unseen, id)
	}
	return changes, unseen
}

// unseenChanges asks for the machines that operators asked to be adopted, and that are not to be
// seen. The request for one stays, because lists lag: it ends, with a word in the history, when the
// provider says that it does not have that machine, or gives it up.
func (p *pass) unseenChanges(ctx context.Context, ids []fleet.ProviderID) ([]bmdb.Change, error) {
	q := questions{pass: p}
	var changes []bmdb.Change
	for _, id := range inTurn(p, ids) {
		switch entry, err := q.ask(ctx, id); {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("ask for a machine that is to be adopted: %w", context.Cause(ctx))
		case fleet.KindOf(err) == fleet.KindNotFound:
			changes = append(changes, p.notAdoptedChanges(ctx, id, "asked for by its ID, the provider does not have it")...)
		case err == nil && entry.Invalid == "" && ending(entry):
			says := entry.Provided(nil, p.view.Now).Says()
			changes = append(changes, p.notAdoptedChanges(ctx, id, "asked for by its ID, the provider says that it is "+says)...)
		case errors.Is(err, errNotAsked):
		default:
			p.logger.InfoContext(ctx, "machine that is to be adopted is not in the list, or cannot be adopted yet",
				slog.String("provider_id", string(id)), slog.Any("err", err))
		}
	}
	return changes, nil
}

// notAdoptedChanges returns the changes that end a request for a machine, and record why.
func (p *pass) notAdoptedChanges(ctx context.Context, id fleet.ProviderID, why string) []bmdb.Change {
	p.logger.WarnContext(ctx, "machine is not adopted", slog.String("provider_id", string(id)), slog.String("reason", why))
	return []bmdb.Change{bmdb.DropAdoption(id), bmdb.RecordHistory(fleet.EventDiscrepancyCleared,
		fmt.Sprintf("%s: %s is not adopted, as %s wanted: %s", fleet.DiscrepancyUnknownMachine, id, p.view.Adoptions[id], why))}
}

// confirm asks for each missing machine by its ID. Only a definite answer makes a discrepancy, and
// the machine gone, so that the remedy of the discrepancy works at once. Where the provider gives
// none, a discrepancy that an earlier pass found stays.
func (p *pass) confirm(ctx context.Context) (found []bmdb.Discrepancy, gone []bmdb.Change, err error) {
	recorded := make(map[fleet.MachineID]bool)
	for _, d := range p.view.Discrepancies {
		recorded[d.Machine] = recorded[d.Machine] || d.Kind == fleet.DiscrepancyMissingMachine
	}
	q := questions{pass: p}
	for _, m := range inTurn(p, p.survey.missing) {
		_, err := q.ask(ctx, m.ProviderID)
		switch {
		case ctx.Err() != nil:
			return nil, nil, fmt.Errorf("ask for a missing machine: %w", context.Cause(ctx))
		case err == nil: // the list lags, or will never have it: a person sees which
			p.tally.unlisted++
		case fleet.KindOf(err) == fleet.KindNotFound:
			p.logger.WarnContext(ctx, "machine is gone", slog.String("machine", string(m.ID)), slog.Any("err", err))
			how := "asked for by its ID, the provider does not have it"
			if provider.WasMoved(err) {
				how = shepherd.Cause(err)
			}
			found = append(found, p.missingDiscrepancy(m, how))
			gone = append(gone, bmdb.SetProvided(m.ID, m.ProviderID, provider.Gone(m.Provided)))
		case recorded[m.ID] && errors.Is(err, errNotAsked):
			found = append(found, p.missingDiscrepancy(m, "an earlier pass asked for it by its ID, and the provider did not have it; the newest one did not ask again"))
		case recorded[m.ID]:
			found = append(found, p.missingDiscrepancy(m, "asked for again by its ID, the provider gave no clear answer"))
		}
	}
	return found, gone, nil
}

func (p *pass) missingDiscrepancy(m bmdb.ProviderMachine, how string) bmdb.Discrepancy {
	remedy := fleet.DiscrepancyMissingMachine.Remedy(p.source.Name, m.ProviderID)
	if provider.Keeps(p.source.Provider) {
		remedy = unlistedRemedy(p.source.Name, m.ProviderID)
	}
	return bmdb.Discrepancy{
		Kind: fleet.DiscrepancyMissingMachine, ProviderID: m.ProviderID, Machine: m.ID,
		Evidence: fmt.Sprintf("machine %s (%s) is not in the provider's list; %s", nameOf(m), m.ProviderID, how),
		Remedy:   cmp.Or(p.moved[m.ID], remedy),
	}
}

// nameOf is what people call a machine.
func nameOf(m bmdb.ProviderMachine) string {
	if m.Provided != nil && m.Provided.Hostname != "" {
		return m.Provided.Hostname
	}
	return string(m.ID)
}

func age(created time.Time) string {
	if created.IsZero() {
		return "at an unknown time"
	}
	return fleet.Instant(created)
}
