package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// tally counts what a pass did.
type tally struct {
	// ended counts the creations by how they ended.
	ended [endBlocked + 1]int
	// adopted counts machines that carry a token of ours, and takenIn those that operators asked to be
	// managed.
	adopted, takenIn int
	// waiting counts what is left for later passes, and full what max_machines does not allow.
	waiting, full int
	// unlisted counts machines that the list lacks and that the provider has, asked for by their IDs.
	unlisted int
}

// creationResult is how one creation ended.
type creationResult int

const (
	endCreated creationResult = iota
	endFailed
	// endRefused: the provider refused the request itself, or does not allow it, which another piece
	// of capacity does not mend.
	endRefused
	// endNotBegun: the piece of capacity failed before a request was made.
	endNotBegun
	// endUnanswered: a request was made, and nobody knows what became of it.
	endUnanswered
	// endPaused: nothing was asked for, because a person has paused the provider.
	endPaused
	// endTaken: a machine of another provider has the address of the host. The next pass looks at it.
	endTaken
	// endBlocked: what every creation needs has failed, or the provider wants to be asked less often.
	endBlocked
)

func (t *tally) count(how creationResult) {
	t.ended[how]++
	if how == endTaken {
		t.waiting++
	}
}

// failed counts the creations that came to nothing.
func (t *tally) failed() int { return t.ended[endFailed] + t.ended[endRefused] + t.ended[endNotBegun] }

// paused reports whether a person has paused the provider meanwhile: nothing more is created.
func (t *tally) paused() bool { return t.ended[endPaused] > 0 }

// create creates the chunk of a pass, as far as nobody pauses the provider meanwhile. While
// anything is free, open intents get at most half of the chunk: where their creations go on
// failing, the others are not kept from theirs.
func (p *pass) create(ctx context.Context) error {
	held, err := p.closeHeld(ctx)
	if err != nil {
		return err
	}
	retry, err := p.giveWay(ctx, p.longestAgoFirst(p.survey.retry))
	if err != nil {
		return err
	}
	room := p.source.Config.ChunkSize
	// Of an odd chunk, one pass after the other gives the odd one to either side.
	half := (room + int(p.work.Epoch%2)) / 2
	first := min(len(retry), max(half, room-len(p.survey.free)))
	opened, err := p.open(ctx, room-first, first)
	if errors.Is(err, bmdb.ErrPaused) {
		p.tally.count(endPaused)
		return nil
	}
	if err != nil {
		return err
	}
	p.tally.full += held
	// More of them, where max_machines has left room.
	all := min(len(retry), room-len(opened))
	p.tally.waiting += len(retry) - all
	if err := p.createAll(ctx, slices.Concat(retry[:first], opened, retry[first:all])); err != nil {
		return err
	}
	return p.refusedAll(ctx)
}

// closeHeld closes the intents that are held as soon as that is safe, and returns how many stay
// open. Their capacity has no penalty: nothing was wrong with it.
func (p *pass) closeHeld(ctx context.Context) (held int, err error) {
	why := fmt.Sprintf("there may be %d machines at most (max_machines)", p.source.Config.MaxMachines)
	for _, intent := range inTurn(p, p.survey.held) {
		done, err := p.closeUnanswered(ctx, intent, why, 0)
		if err != nil {
			return 0, err
		}
		if !done {
			held++
		}
	}
	return held, nil
}

// enoughCalls is how many calls for one intent may have no answer before it gives way.
const enoughCalls = 10

// crowded reports whether max_machines keeps free capacity from being tried.
func (p *pass) crowded() bool {
	limit, open := p.source.Config.MaxMachines, len(p.view.Intents)-len(p.survey.futile)
	return limit > 0 && len(p.survey.free) > 0 && len(p.view.Machines)+open >= limit
}

// giveWay returns those of the intents that are tried again. Where other capacity waits for their
// place, those that call after call had no answer are closed as soon as that is safe, which needs
// that they are not tried before the settling time is over, and that the provider can be asked.
func (p *pass) giveWay(ctx context.Context, retry []fleet.Intent) (again []fleet.Intent, err error) {
	if !p.crowded() {
		return retry, nil
	}
	for _, intent := range retry {
		calls, done := intent.Calls-intent.Rejected, false
		switch {
		case calls >= enoughCalls && !p.isSettled(intent):
			p.tally.waiting++
			continue
		case calls >= enoughCalls && p.wayLeft():
			why := fmt.Sprintf("%d requests were not answered, and other capacity waits for its place", calls)
			if done, err = p.closeUnanswered(ctx, intent, why, p.source.Config.Penalty); err != nil {
				return nil, err
			}
		}
		if !done {
			again = append(again, intent)
		}
	}
	return again, nil
}

// wayLeft reports whether one more intent may give way: no more do in a pass than capacity waits.
func (p *pass) wayLeft() bool { return int(p.gaveWay.Add(1)) <= len(p.survey.free) }

// longestAgoFirst sorts open intents by when this process tried them last, and forgets those that
// are not open any more.
func (p *pass) longestAgoFirst(intents []fleet.Intent) []fleet.Intent {
	s := p.source
	s.mu.Lock()
	defer s.mu.Unlock()
	tried := make(map[fleet.MachineID]fleet.Epoch, len(intents))
	for _, intent := range intents {
		tried[intent.Machine] = s.tried[intent.Machine]
	}
	s.tried = tried
	slices.SortStableFunc(intents, func(a, b fleet.Intent) int { return cmp.Compare(tried[a.Machine], tried[b.Machine]) })
	return intents
}

// tries notes that the pass tries an intent.
func (p *pass) tries(intent fleet.Intent) {
	p.source.mu.Lock()
	defer p.source.mu.Unlock()
	p.source.tried[intent.Machine] = p.work.Epoch
}

// open opens at most room intents on free capacity, in one commit. ahead counts the creations that
// come before them.
func (p *pass) open(ctx context.Context, room, ahead int) ([]fleet.Intent, error) {
	free := p.survey.free
	if len(free) > room {
		p.tally.waiting += len(free) - room
		free = free[:room]
	}
	if len(free) == 0 {
		return nil, nil
	}
	wanted := make([]bmdb.NewIntent, len(free))
	for i, capacity := range free {
		wanted[i] = bmdb.NewIntent{
			Capacity: capacity, Machine: fleet.NewMachineID(), Token: fleet.NewToken(), PlannedAt: p.plannedStart(ahead + i), Install: p.source.Config.Install,
			ConfiguredAt: p.source.Config.ReadAt,
		}
	}
	var opened []fleet.Intent
	if err := p.work.Note(ctx, bmdb.OpenIntents(p.source.Config.MaxMachines, wanted, &opened)); err != nil {
		return nil, fmt.Errorf("open intents: %w", err)
	}
	p.tally.full = len(wanted) - len(opened)
	return opened, nil
}

// plannedStart is about when a creation will begin that has n others before it.
func (p *pass) plannedStart(n int) time.Time {
	short := float64(n+1) - p.source.limiter.Tokens()
	return p.view.Now.Add(time.Duration(max(0, short) * float64(p.source.Config.CreateRate.Every)))
}

// createAll creates in order and at the configured rate, at which requests are sent, too (see
// sending). It goes on after a creation that failed by its piece of capacity. It stops when the
// provider is paused, and, with the error, when a creation failed by what every other one needs;
// creations that are under way then come to their end, those that are put off at the rate.
func (p *pass) createAll(ctx context.Context, intents []fleet.Intent) error {
	var mu sync.Mutex // of the tally, and of block
	var block error
	stopped := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return p.tally.paused() || block != nil
	}
	group, working := errgroup.WithContext(ctx)
	hands := make(chan struct{}, p.source.Config.CreateParallelism)
	for _, intent := range intents {
		hands <- struct{}{} // before the token, which would be spent while all hands are full
		if err := p.source.limiter.Wait(working); err != nil || stopped() {
			break
		}
		group.Go(func() error {
			defer func() { <-hands }()
			result, err := p.createOne(working, intent)
			mu.Lock()
			defer mu.Unlock()
			if result == endBlocked {
				block = err
				return nil // an error would end what is under way
			}
			if err == nil {
				p.tally.count(result)
			}
			return err
		})
	}
	switch err := group.Wait(); {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return block
}

// createOne makes one machine. An error means that the pass cannot go on. Where the result is
// blocked, the intent stays open, and its capacity has no penalty.
func (p *pass) createOne(ctx context.Context, intent fleet.Intent) (creationResult, error) {
	p.tries(intent)
	key, err := p.hostKey(intent.Token)
	if err != nil {
		return endFailed, err
	}
	calls, stopped := 0, false
	turn := p.source.sending.turn()
	defer turn.end()
	entry, failure := p.source.Provider.Create(ctx, provider.CreateRequest{
		Capacity: intent.Capacity, Token: intent.Token, Machine: intent.Machine, HostKey: key,
		BeforeCall: func(ctx context.Context) error {
			if wait := turn.take(); wait > 0 {
				return provider.PutOff(wait)
			}
			if err := p.work.Note(ctx, append(injectedChanges(intent.Machine, key), bmdb.IntentCalled(intent.Machine))...); err != nil {
				stopped = errors.Is(err, bmdb.ErrPaused)
				return fmt.Errorf("record the call: %w", err)
			}
			calls++
			return nil
		},
	})
	if failure == nil && entry.Invalid != "" {
		failure = provider.OfCapacity(fleet.Errorf(fleet.KindUnknown, "the provider's answer cannot be used: %s", entry.Invalid))
	}
	switch {
	case failure == nil:
		return p.recordCreated(ctx, intent, entry)
	case stopped: // its intent stays open, for the pass after the pause
		if answers := answeredChanges(intent, calls, failure); len(answers) > 0 {
			err = p.work.Note(ctx, answers...)
		}
		return endPaused, err
	case ctx.Err() != nil:
		// The intent stays open, and the next pass finds out.
		return endFailed, fmt.Errorf("create: %w", context.Cause(ctx))
	case errors.Is(failure, fleet.ErrLeaseLost):
		return endFailed, failure
	case calls == 0 && !provider.ConcernsCapacity(failure):
		return endBlocked, fmt.Errorf("nothing can be created now: %w", failure)
	}
	result, err := p.recordFailure(ctx, intent, calls, failure)
	if err == nil && fleet.KindOf(failure) == fleet.KindThrottled { // so would the others be
		return endBlocked, fmt.Errorf("nothing can be created now: %w", failure)
	}
	return result, err
}

// hostKey returns the host key for the machine of that token; its zero value where the provider
// puts none into machines.
func (p *pass) hostKey(token fleet.Token) (key provider.HostKey, err error) {
	injector, can := p.source.Provider.(provider.Injector)
	if !can || !injector.InjectsHostKey() || p.makeHostKey == nil {
		return key, nil
	}
	if key, err = p.makeHostKey(token); err != nil {
		return provider.HostKey{}, fmt.Errorf("make a host key: %w", err)
	}
	return key, nil
}

// providedChanges returns the changes that close an intent on its machine, which is to run what is
// configured now.
func (p *pass) providedChanges(machine fleet.MachineID, entry provider.Entry, now time.Time) []bmdb.Change {
	return []bmdb.Change{
		bmdb.InstallAsConfigured(machine, p.configured()),
		bmdb.CloseIntentProvided(machine, entry.ID, entry.Provided(nil, now)),
	}
}

// configured is what the configuration asks for on the machines that are created.
func (p *pass) configured() bmdb.Configured {
	return bmdb.Configured{Actor: fleet.ConfigurationOf(p.source.Name), Install: p.source.Config.Install, ReadAt: p.source.Config.ReadAt}
}

// injectedChanges returns the change that remembers a host key, where there is one.
func injectedChanges(machine fleet.MachineID, key provider.HostKey) []bmdb.Change {
	if key.IsZero() {
		return nil
	}
	return []bmdb.Change{bmdb.InjectHostKey(machine, key.Public, key.Fingerprint)}
}

// recordCreated records the machine that a creation has made. A host of a list is taken in by that
// alone, and so not any more when the provider is paused, nor when another list was faster.
func (p *pass) recordCreated(ctx context.Context, intent fleet.Intent, entry provider.Entry) (creationResult, error) {
	now, err := p.db.Now(ctx)
	if err == nil {
		changes := p.providedChanges(intent.Machine, entry, now)
		if provider.Keeps(p.source.Provider) {
			changes = append(changes, bmdb.UnlessPaused(), bmdb.UnlessTaken(entry.Address, p.apart[intent.Capacity]))
		}
		err = p.work.Note(ctx, changes...)
	}
	switch {
	case errors.Is(err, bmdb.ErrPaused):
		return endPaused, nil
	case errors.Is(err, bmdb.ErrTaken):
		p.logger.WarnContext(ctx, "host is not taken in", slog.String("machine", string(intent.Machine)), slog.Any("err", err))
		return endTaken, nil
	}
	if err != nil {
		return endFailed, fmt.Errorf("record the machine: %w", err)
	}
	p.logger.InfoContext(ctx, "machine created",
		slog.String("machine", string(intent.Machine)), slog.String("provider_id", string(entry.ID)))
	return endCreated, nil
}
