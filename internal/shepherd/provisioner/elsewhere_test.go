package provisioner_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/static"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
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
			})
		})
	}
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
			if err := b.db.Forget(t.Context(), "ada", m.ID, "it has moved"); err != nil {
				t.Fatal(err)
			}
		}
		b.manage(4, rack, rack1)
		if machines, found := b.machinesOf("rack1"); machines != "n2" || len(found) != 0 {
			t.Errorf("machines %q, discrepancies %+v", machines, found)
		}
	})
}
