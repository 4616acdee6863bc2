// Package providertest is the suite that every kind of provider passes: what package provider
// promises, as tests.
//
// A kind brings a Harness: a provider on a backend of its own, and functions that change the
// backend or make it fail. A function that a kind cannot have is nil, and the suite skips the tests
// that need it. The suite does not look at how a provider works.
package providertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// Harness is one provider on one fresh backend.
type Harness struct {
	Provider provider.Provider
	// Free are at least four pieces of capacity that nobody uses.
	Free []fleet.CapacityID
	// Absent is the ID of a machine that could exist and does not.
	Absent fleet.ProviderID
	// AbsentCapacity is the ID of capacity that could exist and does not.
	AbsentCapacity fleet.CapacityID
	// NotAnID cannot be an ID at this kind of provider; empty where everything can be.
	NotAnID fleet.ProviderID

	// Machines counts the machines in the backend, without asking the provider. Nil where nothing is
	// ever created.
	Machines func() int
	// LoseCreateReply makes the next create succeed and its reply get lost.
	LoseCreateReply func()
	// Occupy puts somebody else's machine on a piece of capacity.
	Occupy func(fleet.CapacityID)
	// Shuffle makes the provider give lists in another order each time.
	Shuffle func()
	// Remove makes a machine vanish.
	Remove func(fleet.ProviderID)
	// Seen tells what has become of a machine in the backend, without asking the provider. A kind that
	// can reboot, power or reinstall its machines has it.
	Seen func(fleet.ProviderID) Seen
	// Break has, for a kind of error, what makes every further call fail with it.
	Break map[fleet.Kind]func()
	// Stall makes every further call hang until its caller gives up.
	Stall func()
}

// Seen is what has become of a machine since it was created.
type Seen struct {
	On bool
	// Starts counts how often it was started, by its creation, a reset, power or an install. Installs
	// counts how often the provider's operating system was put on it.
	Starts, Installs int
}

// Run runs the suite. Open is called once for each test.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"list":           testList,
		"list machines":  testListMachines,
		"list order":     testListOrder,
		"get":            testGet,
		"get not found":  testNotFound,
		"create":         testCreate,
		"create again":   testCreateAgain,
		"before call":    testBeforeCall,
		"reply lost":     testReplyLost,
		"race lost":      testRaceLost,
		"create refused": testCreateRefused,
		"find by token":  testFindByToken,
		"cancelled":      testCancelled,
		"stalled":        testStalled,
		"concurrent":     testConcurrent,
		"reboot":         testReboot,
		"power":          testPower,
		"reinstall":      testReinstall,
		"release":        testRelease,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			harness := open(t)
			if len(harness.Free) < 4 {
				t.Fatalf("the harness has %d pieces of free capacity, and four are needed", len(harness.Free))
			}
			test(t, harness)
		})
	}
	t.Run("errors", func(t *testing.T) { testErrors(t, open) })
}

func request(capacity fleet.CapacityID) provider.CreateRequest {
	return provider.CreateRequest{Capacity: capacity, Token: fleet.NewToken(), Machine: fleet.NewMachineID()}
}

func create(t *testing.T, h Harness, request provider.CreateRequest) provider.Entry {
	t.Helper()
	entry, err := h.Provider.Create(t.Context(), request)
	if err != nil {
		t.Fatalf("create: %v (%s)", err, fleet.KindOf(err))
	}
	checkMachine(t, entry, request)
	return entry
}

// checkMachine checks a machine that was made by a request.
func checkMachine(t *testing.T, entry provider.Entry, request provider.CreateRequest) {
	t.Helper()
	if entry.ID == "" || entry.Capacity != request.Capacity || entry.Invalid != "" {
		t.Errorf("the machine on %s is given as %+v", request.Capacity, entry)
	}
	if entry.Availability == fleet.AvailabilityKnownUsed && !slices.Contains(entry.Tokens, request.Token) {
		t.Errorf("the machine does not show its token: %v", entry.Tokens)
	}
}

// refused checks a failure: its kind, and that no value came with it.
func refused(t *testing.T, what string, entry provider.Entry, err error, kinds ...fleet.Kind) {
	t.Helper()
	if err == nil || !slices.Contains(kinds, fleet.KindOf(err)) {
		t.Errorf("%s gives %v (%s), want one of %v", what, err, fleet.KindOf(err), kinds)
	}
	if !empty(entry) {
		t.Errorf("%s gives a value besides its error: %+v", what, entry)
	}
}

func empty(entry provider.Entry) bool {
	return entry.ID == "" && entry.Capacity == "" && entry.Availability == "" && entry.Status == "" && !entry.Address.IsValid() &&
		entry.Hostname == "" && len(entry.Tokens) == 0
}

func testGet(t *testing.T, h Harness) {
	t.Helper()
	made := request(h.Free[0])
	machine := create(t, h, made)
	entry, err := h.Provider.Get(t.Context(), machine.ID)
	if err != nil {
		t.Fatal(err)
	}
	checkMachine(t, entry, made)
	if entry.ID != machine.ID {
		t.Errorf("asked for %s, got %s", machine.ID, entry.ID)
	}
}

func testNotFound(t *testing.T, h Harness) {
	t.Helper()
	entry, err := h.Provider.Get(t.Context(), h.Absent)
	refused(t, "get of an absent machine", entry, err, fleet.KindNotFound)
	if h.NotAnID != "" {
		entry, err = h.Provider.Get(t.Context(), h.NotAnID)
		refused(t, "get of what is no ID", entry, err, fleet.KindInvalid)
	}
	if h.Remove == nil {
		return
	}
	machine := create(t, h, request(h.Free[0]))
	h.Remove(machine.ID)
	entry, err = h.Provider.Get(t.Context(), machine.ID)
	refused(t, "get of a machine that vanished", entry, err, fleet.KindNotFound)
	if slices.ContainsFunc(list(t, h), func(e provider.Entry) bool { return e.ID == machine.ID }) {
		t.Error("a machine that vanished is still listed")
	}
}

func testCreate(t *testing.T, h Harness) {
	t.Helper()
	before := 0
	if h.Machines != nil {
		before = h.Machines()
	}
	create(t, h, request(h.Free[0]))
	if h.Machines != nil && h.Machines() != before+1 {
		t.Errorf("one create made %d machines", h.Machines()-before)
	}
}

func testCreateAgain(t *testing.T, h Harness) {
	t.Helper()
	again := request(h.Free[0])
	first := create(t, h, again)
	count := 0
	if h.Machines != nil {
		count = h.Machines()
	}
	again.BeforeCall = func(context.Context) error {
		t.Error("a call is made for a machine that exists already")
		return nil
	}
	if second := create(t, h, again); second.ID != first.ID {
		t.Errorf("the same token gave %s and then %s", first.ID, second.ID)
	}
	if h.Machines != nil && h.Machines() != count {
		t.Error("a second machine was made for the same token")
	}
}

func testBeforeCall(t *testing.T, h Harness) {
	t.Helper()
	if h.Machines == nil {
		t.Skip("nothing is ever created here")
	}
	before := h.Machines()
	stop := errors.New("not now")
	made := request(h.Free[0])
	made.BeforeCall = func(context.Context) error { return stop }
	entry, err := h.Provider.Create(t.Context(), made)
	if !errors.Is(err, stop) || !empty(entry) || h.Machines() != before {
		t.Errorf("BeforeCall refuses: %+v, %v, %d machines more", entry, err, h.Machines()-before)
	}
	calls := 0
	made.BeforeCall = func(context.Context) error {
		calls++
		if h.Machines() != before {
			t.Error("BeforeCall comes after the call")
		}
		return nil
	}
	create(t, h, made)
	if calls != 1 {
		t.Errorf("BeforeCall was called %d times for one create", calls)
	}
}

func testReplyLost(t *testing.T, h Harness) {
	t.Helper()
	if h.LoseCreateReply == nil {
		t.Skip("no reply can be lost here")
	}
	before := h.Machines()
	made := request(h.Free[0])
	h.LoseCreateReply()
	entry, err := h.Provider.Create(t.Context(), made)
	if err == nil || !empty(entry) {
		t.Fatalf("a create whose reply is lost gives %+v, %v", entry, err)
	}
	if !provider.MayHaveCreated(err) {
		t.Errorf("a create whose reply is lost is taken for one that did nothing: %v (%s)", err, fleet.KindOf(err))
	}
	if got := h.Machines(); got != before+1 {
		t.Fatalf("one create made %d machines", got-before)
	}
	found, err := h.Provider.FindByToken(t.Context(), made.Capacity, made.Token)
	if err != nil {
		t.Fatalf("the machine is not found by its token: %v", err)
	}
	checkMachine(t, found, made)
	if again := create(t, h, made); again.ID != found.ID {
		t.Errorf("the token has %s and %s", found.ID, again.ID)
	}
	if got := h.Machines(); got != before+1 {
		t.Errorf("the same token made %d machines", got-before)
	}
}

func testRaceLost(t *testing.T, h Harness) {
	t.Helper()
	if h.Occupy == nil {
		t.Skip("nobody else can come first here")
	}
	h.Occupy(h.Free[2])
	before := h.Machines()
	entry, err := h.Provider.Create(t.Context(), request(h.Free[2]))
	refused(t, "create on occupied capacity", entry, err, fleet.KindRaceLost)
	if provider.MayHaveCreated(err) || h.Machines() != before {
		t.Errorf("a lost race leaves a doubt, or a machine: %v, %d more", err, h.Machines()-before)
	}

	other := request(h.Free[3])
	// Somebody else takes the capacity after it was looked at.
	other.BeforeCall = func(context.Context) error { h.Occupy(h.Free[3]); return nil }
	entry, err = h.Provider.Create(t.Context(), other)
	refused(t, "create on capacity that was taken in the last moment", entry, err, fleet.KindRaceLost, fleet.KindConflict)
	if provider.MayHaveCreated(err) {
		t.Errorf("a lost race leaves a doubt: %v", err)
	}
}

func testCreateRefused(t *testing.T, h Harness) {
	t.Helper()
	absent := request(h.AbsentCapacity)
	entry, err := h.Provider.Create(t.Context(), absent)
	refused(t, "create on capacity that does not exist", entry, err, fleet.KindNotFound, fleet.KindForbidden, fleet.KindInvalid)
	if provider.MayHaveCreated(err) {
		t.Errorf("a refused create leaves a doubt: %v", err)
	}
	if !provider.ConcernsCapacity(err) {
		t.Errorf("capacity that does not exist is not blamed for it: %v", err)
	}
	for what, wrong := range map[string]provider.CreateRequest{
		"no capacity": {Token: fleet.NewToken(), Machine: fleet.NewMachineID()},
		"no token":    {Capacity: h.Free[0], Machine: fleet.NewMachineID()},
	} {
		entry, err := h.Provider.Create(t.Context(), wrong)
		refused(t, "create with "+what, entry, err, fleet.KindInvalid)
	}
}

func testFindByToken(t *testing.T, h Harness) {
	t.Helper()
	made := request(h.Free[0])
	machine := create(t, h, made)
	found, err := h.Provider.FindByToken(t.Context(), made.Capacity, made.Token)
	if err != nil || found.ID != machine.ID {
		t.Errorf("the token of %s finds %s: %v", machine.ID, found.ID, err)
	}
	checkMachine(t, found, made)
	if found.Availability == fleet.AvailabilityKnownUsed {
		// The machine is where it is, whatever capacity is named.
		if found, err := h.Provider.FindByToken(t.Context(), h.Free[1], made.Token); err != nil || found.ID != machine.ID {
			t.Errorf("the token of %s, asked for at another capacity, finds %s: %v", machine.ID, found.ID, err)
		}
		entry, err := h.Provider.FindByToken(t.Context(), made.Capacity, fleet.NewToken())
		refused(t, "find by a token that nothing carries", entry, err, fleet.KindNotFound)
	}
	entry, err := h.Provider.FindByToken(t.Context(), h.AbsentCapacity, fleet.NewToken())
	refused(t, "find at capacity that does not exist", entry, err, fleet.KindNotFound, fleet.KindForbidden)
}

// everyCall calls each method once, each with a context of its own that ends after that time, or
// with that of the test; zero: it does not end.
func everyCall(ctx context.Context, within time.Duration, h Harness) map[string]error {
	failures := make(map[string]error)
	call := func(name string, do func(ctx context.Context) error) {
		own := ctx
		if within > 0 {
			timed, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			own = timed
		}
		failures[name] = do(own)
	}
	listing := func(list func(context.Context) ([]provider.Entry, error)) func(context.Context) error {
		return func(ctx context.Context) error {
			entries, err := list(ctx)
			if err != nil && entries != nil {
				err = errors.Join(err, errors.New("and a list came with it"))
			}
			return err
		}
	}
	call("list", listing(h.Provider.List))
	call("list machines", listing(h.Provider.ListMachines))
	call("get", func(ctx context.Context) error { _, err := h.Provider.Get(ctx, h.Absent); return err })
	call("find", func(ctx context.Context) error {
		_, err := h.Provider.FindByToken(ctx, h.Free[0], fleet.NewToken())
		return err
	})
	call("create", func(ctx context.Context) error { _, err := h.Provider.Create(ctx, request(h.Free[0])); return err })
	for name, act := range actions(h.Provider) {
		call(name, func(ctx context.Context) error { return act(ctx, h.Absent) })
	}
	return failures
}

// patience is how long an adapter waits for an answer, unless its settings or its caller say less:
// see provider.Limits.
const patience = 30 * time.Second

func testCancelled(t *testing.T, h Harness) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("people said so")
	cancel(cause)
	start := time.Now()
	for call, err := range everyCall(ctx, 0, h) {
		if !errors.Is(err, context.Canceled) && !errors.Is(err, cause) {
			t.Errorf("%s with a cancelled context gives %v", call, err)
		}
	}
	if took := time.Since(start); took > patience {
		t.Errorf("calls with a cancelled context took %s", took)
	}
}

func testStalled(t *testing.T, h Harness) {
	t.Helper()
	if h.Stall == nil {
		t.Skip("nothing can hang here")
	}
	h.Stall()
	const within = 200 * time.Millisecond
	start := time.Now()
	for call, err := range everyCall(t.Context(), within, h) {
		if fleet.KindOf(err) != fleet.KindTimeout {
			t.Errorf("%s at a provider that hangs gives %v (%s)", call, err, fleet.KindOf(err))
		}
	}
	if took := time.Since(start); took > patience {
		t.Errorf("the calls took %s, each with a deadline of %s", took, within)
	}
}

func testConcurrent(t *testing.T, h Harness) {
	t.Helper()
	var callers sync.WaitGroup
	made := make([]fleet.ProviderID, 4)
	for i, capacity := range h.Free[:4] {
		wanted := request(capacity)
		callers.Go(func() {
			entry, err := h.Provider.Create(t.Context(), wanted)
			if err != nil {
				t.Errorf("create beside others: %v", err)
				return
			}
			made[i] = entry.ID
		})
		callers.Go(func() {
			entries, err := h.Provider.List(t.Context())
			if err != nil {
				t.Errorf("list beside creates: %v", err)
			}
			checkList(t, entries)
		})
	}
	callers.Wait()
	entries := list(t, h)
	for _, id := range made {
		if !slices.ContainsFunc(entries, func(e provider.Entry) bool { return e.ID == id }) {
			t.Errorf("%q is not listed after it was created", id)
		}
	}
}

// testErrors breaks one backend in each way that the harness has.
func testErrors(t *testing.T, open func(*testing.T) Harness) {
	t.Helper()
	for kind := range open(t).Break {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			h := open(t)
			h.Break[kind]()
			for call, err := range everyCall(t.Context(), 0, h) {
				if fleet.KindOf(err) != kind {
					t.Errorf("%s gives %v (%s), want %s", call, err, fleet.KindOf(err), kind)
				}
				if call == "create" && provider.ConcernsCapacity(err) {
					t.Errorf("a piece of capacity is blamed for what every call fails with: %v", err)
				}
				if provider.MayHaveCreated(err) && call == "create" && kind != fleet.KindTemporary && kind != fleet.KindTimeout {
					t.Errorf("a create that was refused leaves a doubt: %v", err)
				}
			}
		})
	}
}
