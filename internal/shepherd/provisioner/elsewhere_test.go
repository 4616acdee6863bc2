package provisioner_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/static"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
)

const jumpKey = "host_key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJYkuhBCElqTLXHJoZwrvFaOz6bKLQNwNQCcDKZWwOTQ"

// listed registers a provider that lists these hosts, and asks for an install on each.
func (b *bench) listed(name fleet.ProviderName, hosts ...string) provisioner.Source {
	b.t.Helper()
	path := filepath.Join(b.t.TempDir(), "hosts.yaml")
	if err := os.WriteFile(path, []byte("- "+strings.Join(hosts, "\n- ")+"\n"), 0o600); err != nil {
		b.t.Fatal(err)
	}
	p, err := static.New(static.Config{Path: path, InFlight: 1}, provider.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := b.db.RegisterProvider(b.t.Context(), name, "static", 0); err != nil {
		b.t.Fatal(err)
	}
	config := provisioner.ListConfig()
	config.Install = &fleet.InstallRequest{Actor: "configuration", Image: fleet.Image{URL: "http://images.example/os", Digest: "sha256:" + strings.Repeat("ab", 32)}}
	return provisioner.Source{Name: name, Provider: p, Config: config}
}

// manage has one process make a pass of each of these providers, and of no others.
func (b *bench) manage(passes int, sources ...provisioner.Source) {
	b.t.Helper()
	handler, err := provisioner.New(b.db, sources, provisioner.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	loop, err := shepherd.New(b.db, handler, shepherd.DefaultConfig(), shepherd.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	if b.holder, err = loop.Open(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	b.passes(passes * len(sources))
}

// machinesOf returns the names of a provider's machines, and its discrepancies.
func (b *bench) machinesOf(name fleet.ProviderName) (names string, found []bmdb.Discrepancy) {
	b.t.Helper()
	view, err := b.db.ViewProvider(b.t.Context(), name)
	if err != nil || len(view.Intents) > 0 {
		b.t.Fatalf("intents %+v, %v", view.Intents, err)
	}
	for _, m := range view.Machines {
		names += string(m.ProviderID) + " "
	}
	return strings.TrimSpace(names), view.Discrepancies
}

// TestAHostOfAnotherProviderIsLeftAlone: it is a discrepancy that names the machine, and nothing is
// installed on it a second time.
func TestAHostOfAnotherProviderIsLeftAlone(t *testing.T) {
	t.Parallel()
	const first, both = "{id: n1, address: 192.0.2.1}", "{id: x1, address: 192.0.2.1}"
	for name, test := range map[string]struct {
		known, host string
		// renamed: the provider of the known host is not configured any more.
		renamed, shared bool
	}{
		"renamed":                      {first, first, true, true},
		"renamed, a host is new":       {first, "{id: n2, address: 192.0.2.2}", true, false},
		"in two lists":                 {first, both, false, true},
		"a port that one does not say": {first, "{id: x1, address: 192.0.2.1, port: 22}", false, true},
		"another port":                 {"{id: n1, address: 192.0.2.1, port: 22}", "{id: x1, address: 192.0.2.1, port: 2222}", false, false},
		"another jump host":            {first, "{id: x1, address: 192.0.2.1, jump: {address: 192.0.2.9, " + jumpKey + "}}", false, false},
		"the same jump host": {
			"{id: n1, address: 192.0.2.1, jump: {address: 192.0.2.9, " + jumpKey + "}}",
			"{id: x1, address: 192.0.2.1, jump: {address: 192.0.2.9, user: j, " + jumpKey + "}}", false, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &bench{t: t, db: shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})}
				rack := b.listed("rack", test.known)
				b.manage(2, rack)
				sources := []provisioner.Source{b.listed("rack1", test.host)}
				if !test.renamed {
					sources = append(sources, rack)
				}
				b.manage(2, sources...)
				machines, found := b.machinesOf("rack1")
				if (machines == "") != test.shared || (len(found) == 1) != test.shared {
					t.Fatalf("machines %q, discrepancies %+v", machines, found)
				}
				if !test.shared {
					return
				}
				if d := found[0]; d.Kind != fleet.DiscrepancyDuplicateMachine || !strings.Contains(d.Evidence, "(n1) of provider rack") ||
					!strings.Contains(d.Remedy, "old name") {
					t.Errorf("%+v", d)
				}
				if _, found := b.machinesOf("rack"); len(found) != 0 {
					t.Errorf("at the other provider: %+v", found)
				}
				view, err := b.db.ViewProvider(t.Context(), "rack")
				if err != nil || len(view.Machines) != 1 {
					t.Fatalf("%+v, %v", view.Machines, err)
				}
				machine := view.Machines[0].ID
				command := "`ironherd machine forget " + string(machine) + " --reason WHY`"
				if strings.Contains(found[0].Remedy, command) != test.renamed {
					t.Errorf("the remedy is %q", found[0].Remedy)
				}
				if !test.renamed {
					return
				}
				time.Sleep(2 * time.Minute) // until it counts as served by nobody
				b.manage(2, sources...)
				if err := bmdbtest.Forget(t.Context(), b.db, "ada", machine, "the list has another name"); err != nil {
					t.Fatal(err)
				}
				b.manage(2, sources...)
				if machines, found := b.machinesOf("rack1"); machines == "" || len(found) != 0 {
					t.Errorf("after that: machines %q, discrepancies %+v", machines, found)
				}
			})
		})
	}
}

// TestAHostWhoseNewAddressIsNotRecordedYet: how it is reached there says nothing of the host at the
// address that is recorded.
func TestAHostWhoseNewAddressIsNotRecordedYet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, db: shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})}
		b.manage(2, b.listed("rack", "{id: n1, address: 192.0.2.1, port: 2222}"))
		if err := b.db.PauseProvider(t.Context(), "ada", "rack", "it is moved"); err != nil {
			t.Fatal(err)
		}
		b.manage(1, b.listed("all", "{id: x1, address: 192.0.2.1, port: 2222}"), b.listed("rack", "{id: n1, address: 192.0.2.5, port: 22}"))
		if machines, found := b.machinesOf("all"); machines != "" || len(found) != 1 || !strings.Contains(found[0].Evidence, "(n1) of provider rack") {
			t.Errorf("machines %q, discrepancies %+v", machines, found)
		}
	})
}

// TestAHostThatMovesToAnotherList is taken in when a person has the machine of the first one
// forgotten: that a list leaves a host out says nothing of the host, and of the system on it.
func TestAHostThatMovesToAnotherList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, db: shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})}
		b.manage(2, b.listed("rack", "{id: n1, address: 192.0.2.1}", "{id: n2, address: 192.0.2.2}", "{id: n3, address: 192.0.2.3}"))
		time.Sleep(provisioner.ListConfig().SettlingTime)
		rack, rack1 := b.listed("rack", "{id: n1, address: 192.0.2.1}", "{id: n3, address: 192.0.2.3}"), b.listed("rack1", "{id: n2, address: 192.0.2.2}")
		b.manage(4, rack, rack1)
		machines, found := b.machinesOf("rack1")
		if machines != "" || len(found) != 1 || found[0].Kind != fleet.DiscrepancyDuplicateMachine || !strings.Contains(found[0].Evidence, "any more") {
			t.Fatalf("machines %q, discrepancies %+v", machines, found)
		}
		view, err := b.db.ViewProvider(t.Context(), "rack")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range view.Machines {
			if m.ProviderID != "n2" {
				continue
			}
			if want := "`ironherd machine forget " + string(m.ID) + " --reason WHY`"; !strings.Contains(found[0].Remedy, want) {
				t.Errorf("the remedy is %q, want %s in it", found[0].Remedy, want)
			}
			if err := bmdbtest.Forget(t.Context(), b.db, "ada", m.ID, "it has moved"); err != nil {
				t.Fatal(err)
			}
		}
		b.manage(4, rack, rack1)
		if machines, found := b.machinesOf("rack1"); machines != "n2" || len(found) != 0 {
			t.Errorf("machines %q, discrepancies %+v", machines, found)
		}
	})
}

// overtaken is a list that is overtaken by another one when it takes its first host.
type overtaken struct {
	*static.Provider
	by func()
}

func (p *overtaken) Create(ctx context.Context, request provider.CreateRequest) (provider.Entry, error) {
	if by := p.by; by != nil {
		p.by = nil
		by()
	}
	return p.Provider.Create(ctx, request)
}

// TestAHostThatIsNewInTwoLists (I7) is taken in once, also where two passes look before one of them
// takes it; and where it is two hosts behind two jump hosts, both are.
func TestAHostThatIsNewInTwoLists(t *testing.T) {
	t.Parallel()
	const first = "{id: n1, address: 192.0.2.1}"
	for name, test := range map[string]struct {
		host string
		two  bool
	}{
		"one host":  {"{id: x1, address: 192.0.2.1}", false},
		"two hosts": {"{id: x1, address: 192.0.2.1, jump: {address: 192.0.2.9, " + jumpKey + "}}", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &bench{t: t, db: shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})}
				rack, all := b.listed("rack", first), b.listed("all", test.host)
				listed, is := all.Provider.(*static.Provider)
				if !is {
					t.Fatalf("the list is a %T", all.Provider)
				}
				slow := all
				slow.Provider = &overtaken{listed, func() {
					other := &bench{t: t, db: b.db}
					other.manage(1, rack)
				}}
				b.manage(1, slow)
				if view, err := b.db.ViewProvider(t.Context(), "all"); err != nil || len(view.Machines) != 0 || len(view.Intents) != 1 {
					t.Fatalf("%+v, %v", view, err)
				}
				b.manage(2, rack, all)
				machines, found := b.machinesOf("all")
				if (machines == "x1") != test.two || (len(found) == 0) != test.two {
					t.Fatalf("machines %q, discrepancies %+v", machines, found)
				}
				if !test.two && (found[0].Kind != fleet.DiscrepancyDuplicateMachine || !strings.Contains(found[0].Evidence, "(n1) of provider rack")) {
					t.Errorf("%+v", found)
				}
				if machines, found := b.machinesOf("rack"); machines != "n1" || len(found) != 0 {
					t.Errorf("machines %q, discrepancies %+v", machines, found)
				}
			})
		})
	}
}

// TestAKnownHostThatIsTwoMachines is a discrepancy of both: the address of one was changed.
func TestAKnownHostThatIsTwoMachines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, db: shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})}
		rack := b.listed("rack", "{id: n1, address: 192.0.2.1}")
		b.manage(2, rack, b.listed("all", "{id: x1, address: 192.0.2.2}"))
		b.manage(2, rack, b.listed("all", "{id: x1, address: 192.0.2.1, port: 2222}", "{id: x2, address: 192.0.2.3}"))
		for _, name := range []fleet.ProviderName{"rack", "all"} { // no port may be any
			machines, found := b.machinesOf(name)
			if len(found) != 1 || found[0].Kind != fleet.DiscrepancyDuplicateMachine || found[0].Machine == "" ||
				!strings.Contains(found[0].Remedy, "`ironherd discrepancy forget rack n1 --reason WHY`") ||
				!strings.Contains(found[0].Remedy, "`ironherd discrepancy forget all x1 --reason WHY`") {
				t.Errorf("%s: machines %q, discrepancies %+v", name, machines, found)
			}
		}
		b.manage(2, rack, b.listed("all", "{id: x1, address: 192.0.2.2}", "{id: x2, address: 192.0.2.3}"))
		if _, found := b.machinesOf("rack"); len(found) != 0 {
			t.Errorf("put right: %+v", found)
		}
		if machines, found := b.machinesOf("all"); machines != "x1 x2" || len(found) != 0 {
			t.Errorf("put right: machines %q, discrepancies %+v", machines, found)
		}
	})
}

// TestAHostWhoseIDChanges (rule 8) is left alone, whatever its age: it runs what it was installed
// with. Only a person has it taken in anew.
func TestAHostWhoseIDChanges(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]time.Duration{"at once": 0, "later": provisioner.ListConfig().SettlingTime} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &bench{t: t, db: shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})}
				b.manage(2, b.listed("rack", "{id: n1, address: 192.0.2.1}", "{id: n2, address: 192.0.2.2}"))
				view, err := b.db.ViewProvider(t.Context(), "rack")
				if err != nil || len(view.Machines) != 2 {
					t.Fatalf("%+v, %v", view.Machines, err)
				}
				machine := view.Machines[0].ID
				time.Sleep(after)
				b.manage(2, b.listed("rack", "{id: n1, address: nowhere}", "{id: db1, address: 192.0.2.1}", "{id: n2, address: 192.0.2.2}"))
				if machines, found := b.machinesOf("rack"); machines != "n1 n2" || len(found) != 1 || !strings.Contains(found[0].Evidence, "whose entry cannot be used") {
					t.Fatalf("an entry that is broken: machines %q, discrepancies %+v", machines, found)
				}
				changed := b.listed("rack", "{id: db1, address: 192.0.2.1}", "{id: n2, address: 192.0.2.2}")
				b.manage(2, changed)
				want := 1
				if after > 0 {
					want = 2 // it is a missing-machine, too
				}
				machines, found := b.machinesOf("rack")
				if machines != "n1 n2" || len(found) != want || found[0].Kind != fleet.DiscrepancyDuplicateMachine {
					t.Fatalf("machines %q, discrepancies %+v", machines, found)
				}
				for _, d := range found {
					if !strings.Contains(d.Remedy, "the id n1 again") || !strings.Contains(d.Remedy, "`ironherd machine forget "+string(machine)+" --reason WHY`") {
						t.Errorf("the remedy of %s is %q", d.Kind, d.Remedy)
					}
				}
				if after == 0 {
					return
				}
				if err := bmdbtest.Forget(t.Context(), b.db, "ada", machine, "it is managed anew"); err != nil {
					t.Fatal(err)
				}
				b.manage(2, changed)
				if machines, found := b.machinesOf("rack"); machines != "db1 n2" || len(found) != 0 {
					t.Errorf("machines %q, discrepancies %+v", machines, found)
				}
			})
		})
	}
}

// TestHostsThatAreNumberedAnew (rule 8): a host is inserted, and each ID names the neighbour of its
// machine. The last host is a machine and is left alone, whichever process reads the list first.
// The list is put right by the old IDs, also where the new host has the last one then. Where the
// last host is another one, a person has it taken in.
func TestHostsThatAreNumberedAnew(t *testing.T) {
	t.Parallel()
	before := []string{"{id: n1, address: 192.0.2.1}", "{id: n2, address: 192.0.2.2}", "{id: n3, address: 192.0.2.3}"}
	without := []string{"{id: n1, address: 192.0.2.9}", "{id: n2, address: 192.0.2.1}", "{id: n3, address: 192.0.2.2}"}
	anew := append(slices.Clone(without), "{id: n4, address: 192.0.2.3}")
	for name, lists := range map[string][][]string{
		"the new host has the last ID then": {append(slices.Clone(before), "{id: n4, address: 192.0.2.9}")},
		"another host":                      {without, anew},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &bench{t: t, db: shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})}
				manage := func(hosts []string) (machines string, found []bmdb.Discrepancy) {
					t.Helper()
					rack := b.listed("rack", hosts...)
					updates, err := updater.New(b.db, []updater.Source{{Name: "rack", Provider: rack.Provider, Config: updater.DefaultConfig()}}, updater.Options{})
					if err == nil {
						err = b.one(updates)
					}
					if err != nil {
						t.Fatal(err)
					}
					b.manage(2, rack)
					return b.machinesOf("rack")
				}
				b.manage(2, b.listed("rack", before...))
				for range 2 {
					machines, found := manage(anew)
					if machines != "n1 n2 n3" || len(found) != 1 || found[0].Kind != fleet.DiscrepancyDuplicateMachine || found[0].ProviderID != "n4" ||
						!strings.Contains(found[0].Evidence, "(n3), whose entry has another address now") || !strings.Contains(found[0].Remedy, "take n4 off the list") {
						t.Fatalf("machines %q, discrepancies %+v", machines, found)
					}
					if machines, found := manage(before); machines != "n1 n2 n3" || len(found) != 0 {
						t.Fatalf("put right: machines %q, discrepancies %+v", machines, found)
					}
				}
				manage(anew)
				for _, hosts := range lists {
					manage(hosts)
				}
				if machines, found := b.machinesOf("rack"); machines != "n1 n2 n3 n4" || len(found) != 0 {
					t.Errorf("machines %q, discrepancies %+v", machines, found)
				}
			})
		})
	}
}

// releasing is what releases machines of a provider, and asks nobody.
type releasing struct{ of fleet.ProviderName }

func (r releasing) Scope() shepherd.Scope {
	return shepherd.Scope{Process: fleet.ProcessOperation, Providers: []fleet.ProviderName{r.of}, Backoff: fleet.Backoff{Initial: time.Minute}}
}

func (r releasing) Act(_ context.Context, work *bmdb.Work) shepherd.Outcome {
	n := work.Record.Operation.Number
	return shepherd.Finish{Changes: []bmdb.Change{bmdb.BeginOperation(n, ""), bmdb.AcceptOperation(n), bmdb.EndOperation(n, true, "it is clean", 0)}}
}

// TestAReleasedHostStaysOut also under another ID and in another list, until a person says that it
// may be used again. A host that is reached in another way is another one.
func TestAReleasedHostStaysOut(t *testing.T) {
	t.Parallel()
	const n2, jump = "{id: n2, address: 192.0.2.2}", ", jump: {address: 192.0.2.8, " + jumpKey + "}"
	for name, test := range map[string]struct {
		host string
		is   fleet.ProviderName // which lists it
		left string             // where its old entry is still there, that one
		kept bool
		how  string // how it was reached when it was released
		told string
	}{
		"another ID": {host: "{id: db1, address: 192.0.2.1}", is: "rack", kept: true},
		"its ID is another host's": {
			host: "{id: db1, address: 192.0.2.1}", is: "rack", left: "{id: n1, address: 192.0.2.5}", kept: true,
			told: "; that command lets n1 be taken in as well, which is at 192.0.2.5 now: take it off its list first",
		},
		"its ID is that of a host on another port": {
			host: "{id: db1, address: 192.0.2.1, port: 2222}", is: "rack", left: "{id: n1, address: 192.0.2.5, port: 22}", kept: true, how: ", port: 2222",
		},
		"its ID is that of a host without a jump host": {
			host: "{id: db1, address: 192.0.2.1" + jump + "}", is: "all", left: "{id: n1, address: 192.0.2.5}", kept: true, how: jump,
		},
		"another list": {host: "{id: n1, address: 192.0.2.1}", is: "all", kept: true},
		"both lists":   {host: "{id: x1, address: 192.0.2.1}", is: "all", left: "{id: n1, address: 192.0.2.1}", kept: true},
		"another port": {host: "{id: x1, address: 192.0.2.1, port: 2222}", is: "all", left: "{id: n1, address: 192.0.2.1, port: 22}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &bench{t: t, db: shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})}
				check := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				rack := b.listed("rack", "{id: n1, address: 192.0.2.1"+test.how+"}", n2)
				b.manage(2, rack)
				check(b.db.SetLevers(t.Context(), "rack", provider.Levers(rack.Provider)))
				view, err := b.db.ViewProvider(t.Context(), "rack")
				check(err)
				_, err = bmdbtest.Operate(t.Context(), b.db, "ada", view.Machines[0].ID, fleet.OperationRelease, "sold")
				check(err)
				check(b.one(releasing{"rack"}))
				lists := map[fleet.ProviderName][]string{"rack": {n2}, "all": {"{id: x9, address: 192.0.2.9}"}}
				lists[test.is] = append(lists[test.is], test.host)
				if test.left != "" {
					lists["rack"] = append(lists["rack"], test.left)
				}
				sources := []provisioner.Source{b.listed("rack", lists["rack"]...), b.listed("all", lists["all"]...)}
				b.manage(2, sources...)
				id := strings.TrimSuffix(strings.Fields(test.host)[1], ",")
				taken := func() bool {
					t.Helper()
					machines, found := b.machinesOf(test.is)
					if len(found) != 0 || test.is == "all" && !strings.Contains(machines, "x9") {
						t.Errorf("machines %q, discrepancies %+v", machines, found)
					}
					return strings.Contains(machines, id)
				}
				if taken() == test.kept {
					t.Errorf("it is kept out: %t", !test.kept)
				}
				if !test.kept {
					return
				}
				rows, err := b.db.Providers(t.Context())
				check(err)
				for _, row := range rows {
					want := "1 kept out by address: host " + id + " has the address (192.0.2.1) that n1 of provider rack had when it was released " +
						"(release, asked for by ada: sold): it stays out until `ironherd provider retry rack --capacity n1 --reason WHY`" + test.told
					if told := strings.Contains(row.PassResult, want); told != (row.Name == test.is) || len(row.Unusable()) > 0 {
						t.Errorf("of %s it is told %q, want %q", row.Name, row.PassResult, want)
					}
				}
				check(b.db.RetryCapacity(t.Context(), "ada", "rack", []fleet.CapacityID{"n1"}, "ours again"))
				b.manage(2, sources[map[fleet.ProviderName]int{"rack": 0, "all": 1}[test.is]])
				if !taken() {
					t.Error("it is kept out still")
				}
			})
		})
	}
}
