package provisioner_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/static"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
)

// hostList has the bench manage a list of hosts in a file, which the returned function writes.
func (b *bench) hostList(hosts int) (write func(lines ...string)) {
	b.t.Helper()
	path := filepath.Join(b.t.TempDir(), "hosts.yaml")
	write = func(lines ...string) {
		b.t.Helper()
		if err := os.WriteFile(path, []byte("hosts:\n  - "+strings.Join(lines, "\n  - ")+"\n"), 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
	write(hostLines(hosts)...)
	listed, err := static.New(static.Config{Path: path, InFlight: 1}, provider.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.provider, b.config = listed, provisioner.ListConfig()
	b.restart()
	return write
}

func hostLines(n int) []string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf("{id: node-%04d, address: 10.%d.%d.%d, hostname: db%d}", i, i>>16, i>>8&255, i&255, i)
	}
	return lines
}

// Hosts of a list cost nothing: they are not limited, nor paced like purchases.
func TestAListOfHostsIsNotPacedLikePurchases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const hosts = 1100 // more than one pass takes
		b := newBench(t, 0)
		b.hostList(hosts)
		begun, machines := time.Now(), 0
		for passes := 0; machines < hosts; passes++ {
			if passes == 4 {
				t.Fatalf("%d machines after %d passes", machines, passes)
			}
			b.pass()
			machines = len(b.view().Machines)
		}
		took := time.Since(begun)
		t.Logf("%d hosts are managed after %s", machines, took)
		if took > 5*time.Minute {
			t.Errorf("it took %s", took)
		}
	})
}

// What is wrong with a list is told by name: entries that cannot be used, and hosts that are gone.
func TestAListOfHostsThatChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		write := b.hostList(5)
		lines := append(hostLines(5), `{id: broken, address: nowhere}`)
		write(lines...)
		b.passes(2)
		if got := b.result(); len(b.view().Machines) != 5 || !strings.HasPrefix(got, "5 used, 0 free, 1 unusable\n") ||
			!strings.Contains(got, `line 7: host "broken": address must be`) {
			t.Errorf("%d machines, %q", len(b.view().Machines), got)
		}
		stop := b.keep()
		time.Sleep(b.config.SettlingTime)
		stop()
		write(lines[1:5]...) // node-0000 is removed
		b.passes(2)
		found := b.view().Discrepancies
		if len(found) != 1 || found[0].Kind != fleet.DiscrepancyMissingMachine || !strings.HasPrefix(found[0].Evidence, "machine db0 (node-0000) is not in") {
			t.Errorf("a host removed from the list gives %+v", found)
		}
		write(append(hostLines(5), `{id: new, address: 192.0.2.1}`)[1:]...)
		b.pass()
		if machines := len(b.view().Machines); machines != 5 || !strings.Contains(b.result(), "creation is stopped: 1 discrepancy") {
			t.Errorf("there are %d machines: creation is not stopped: %q", machines, b.result())
		}
		write(lines[4], `{id: new, address: 192.0.2.1}`) // most are lost at once
		b.pass()
		if kinds := b.kinds(); kinds != string(fleet.DiscrepancyListLoss)+" "+string(fleet.DiscrepancyMissingMachine) {
			t.Errorf("a list that lost most of its machines gives %q", kinds)
		}
		write(append(hostLines(5), `{id: new, address: 192.0.2.1}`)...)
		b.passes(2)
		if machines := len(b.view().Machines); machines != 6 || b.kinds() != "" {
			t.Errorf("there are %d machines, and discrepancies %q, after the list was put right", machines, b.kinds())
		}
	})
}

// TestWhatAListSaysOfAKnownHost counts from the next pass on, also where the list is in trouble.
func TestWhatAListSaysOfAKnownHost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const hosts = 130 // more than one transaction takes
		b := newBench(t, 0)
		write := b.hostList(hosts)
		b.passes(2)
		lines := make([]string, hosts)
		for i := range lines {
			lines[i] = fmt.Sprintf("{id: node-%04d, address: 10.1.0.%d, hostname: web%d, location: rack %d, labels: {role: web, slot: %d}}", i, i, i, i%2, i)
		}
		write(append(lines, `{id: broken, address: nowhere}`)...)
		b.pass()
		shown := b.view().Machines
		for _, m := range shown {
			var n int
			if _, err := fmt.Sscanf(string(m.ProviderID), "node-%d", &n); err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("%s %s %s %q %s", m.Provided.Hostname, m.Provided.Address, m.Provided.Location, strings.Join(m.Provided.Labels, ", "), m.Provided.Status)
			if want := fmt.Sprintf("web%d 10.1.0.%d rack %d %q active", n, n, n%2, fmt.Sprintf("role=web, slot=%d", n)); got != want {
				t.Errorf("%s is shown as %s, want %s", m.ProviderID, got, want)
			}
		}
		if len(shown) != hosts {
			t.Errorf("%d machines are shown", len(shown))
		}
		stop := b.keep()
		time.Sleep(b.config.SettlingTime)
		stop()
		write(strings.Replace(lines[1], "rack 1", "rack 9", 1), lines[2]) // most are lost at once
		b.pass()
		for _, m := range b.view().Machines {
			if m.ProviderID == "node-0001" && m.Provided.Location != "rack 9" || m.ProviderID == "node-0003" && m.Provided.Location != "rack 1" {
				t.Errorf("%s is shown in %s", m.ProviderID, m.Provided.Location)
			}
		}
	})
}

// TestAListThatIsPutRight: the first process that reads it says of all hosts that they are back.
func TestAListThatIsPutRight(t *testing.T) {
	t.Parallel()
	for name, reads := range map[string]func(*bench){
		"the provisioner": func(b *bench) { b.pass() },
		"the updater":     func(b *bench) { b.update() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const hosts, lost = 70, 30 // more than a pass asks for
				b := newBench(t, 0)
				write := b.hostList(hosts)
				gone := func() (n int) {
					t.Helper()
					for _, m := range b.view().Machines {
						if m.Provided.Status == fleet.ProviderStatusGone {
							n++
						}
					}
					return n
				}
				b.passes(2)
				stop := b.keep()
				time.Sleep(b.config.SettlingTime)
				stop()
				write(hostLines(hosts)[lost:]...)
				b.passes(2)
				if n := gone(); n != lost || b.kinds() == "" {
					t.Fatalf("%d are gone, discrepancies %q", n, b.kinds())
				}
				write(hostLines(hosts)...)
				reads(b)
				if n := gone(); n != 0 {
					t.Errorf("%d are gone still", n)
				}
				b.restart()
				b.pass()
				if b.kinds() != "" {
					t.Errorf("discrepancies %q", b.kinds())
				}
			})
		})
	}
}

// pausedList is a list of hosts that a person pauses in front of the third host that is taken.
type pausedList struct {
	*static.Provider
	pause func()
	taken int
}

func (p *pausedList) Create(ctx context.Context, request provider.CreateRequest) (provider.Entry, error) {
	if p.taken++; p.taken == 3 {
		p.pause()
	}
	return p.Provider.Create(ctx, request)
}

// A pause of a list is rule 8, too: no host is taken in after it, although none is called for.
func TestAPauseOfAListStopsThePassUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.hostList(8)
		listed, is := b.provider.(*static.Provider)
		if !is {
			t.Fatalf("the list is a %T", b.provider)
		}
		b.provider = &pausedList{Provider: listed, pause: func() {
			if err := b.db.PauseProvider(t.Context(), "ada", source, "the rack moves"); err != nil {
				t.Error(err)
			}
		}}
		b.config.CreateParallelism = 1
		b.restart()
		b.pass()
		if view := b.view(); len(view.Machines) != 2 || len(view.Intents) != 6 || !strings.Contains(b.result(), "paused meanwhile") {
			t.Errorf("%d machines, %d intents: %s", len(view.Machines), len(view.Intents), b.result())
		}
		if err := b.db.ResumeProvider(t.Context(), "ada", source, "it stands"); err != nil {
			t.Fatal(err)
		}
		b.pass()
		if view := b.view(); len(view.Machines) != 8 || len(view.Intents) != 0 {
			t.Errorf("%d machines, %d intents: %s", len(view.Machines), len(view.Intents), b.result())
		}
	})
}

// One provider's trouble is not another's.
func TestSeveralProvidersAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		write := b.hostList(4)
		second := filepath.Join(t.TempDir(), "second.yaml")
		if err := os.WriteFile(second, []byte("- {id: other, address: 192.0.2.9}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := b.db.RegisterProvider(t.Context(), "second", "static", 0); err != nil {
			t.Fatal(err)
		}
		other, err := static.New(static.Config{Path: second, InFlight: 1}, provider.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b.more = []provisioner.Source{{Name: "second", Provider: other, Config: provisioner.ListConfig()}}
		write("{id: broken")
		b.restart()
		b.passes(4)
		rows, err := b.db.Providers(t.Context())
		if err != nil || len(rows) != 2 {
			t.Fatalf("%+v, %v", rows, err)
		}
		if rows[0].Machines != 0 || !strings.Contains(rows[0].PassResult, "the pass failed") || rows[1].Machines != 1 || rows[1].PassResult != "0 used, 1 free, 1 created" {
			t.Errorf("%+v", rows)
		}
	})
}

// TestAFailedPassKeepsWhatIsLeftAlone: an entry is left alone until a pass has found that it is
// not, or a person would be told of it, and not, in turns.
func TestAFailedPassKeepsWhatIsLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		write := b.hostList(4)
		b.restart()
		expect := func(failed bool, want int) {
			t.Helper()
			b.passes(4)
			rows, err := b.db.Providers(t.Context())
			if err != nil || len(rows) != 1 {
				t.Fatalf("%+v, %v", rows, err)
			}
			if len(rows[0].Unusable()) != want || strings.HasPrefix(rows[0].PassResult, "the pass failed") != failed {
				t.Errorf("the result is %q", rows[0].PassResult)
			}
		}
		write("{id: a, address: 192.0.2.1}", "{id: b, addr: 192.0.2.2}")
		expect(false, 1)
		write("{id: broken")
		expect(true, 1)
		write("{id: a, address: 192.0.2.1}", "{id: b, address: 192.0.2.2}")
		expect(false, 0)
		write("{id: broken")
		expect(true, 0)
	})
}
