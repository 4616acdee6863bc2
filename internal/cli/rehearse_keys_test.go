package cli

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
)

// TestEveryKeyIsRehearsedOrSaidNotToBe, and none is named that there is not.
func TestEveryKeyIsRehearsedOrSaidNotToBe(t *testing.T) {
	t.Parallel()
	used := make(map[string]bool)
	see := func(key string, isDefault bool) {
		if howRehearsed(key) == unnamed {
			t.Errorf("%s is neither rehearsed nor said not to be", key)
		}
		if !isDefault {
			t.Errorf("the default of %s is not its default", key)
		}
		for part := range rehearsedKeys {
			used[part] = used[part] || part == key || len(key) > len(part) && key[:len(part)+1] == part+"."
		}
	}
	p := config.NewProvider("metal", "equinix")
	eachKey("", reflect.ValueOf(config.Default()), reflect.ValueOf(config.Default()), see)
	eachKey("providers", reflect.ValueOf(p), reflect.ValueOf(p), see)
	eachKey("providers.install", reflect.ValueOf(config.Install{}), reflect.ValueOf(config.Install{}), see)
	for part := range rehearsedKeys {
		if !used[part] {
			t.Errorf("there is no key %s", part)
		}
	}
	if howRehearsed("no_such.key") != unnamed {
		t.Error("a key that is not named counts as named")
	}
}

// TestWhatIsNotRehearsedIsNamed, where it is not at its default.
func TestWhatIsNotRehearsedIsNamed(t *testing.T) {
	t.Parallel()
	c := config.Default()
	c.Providers = []config.Provider{config.NewProvider("a", "static"), config.NewProvider("b", "equinix")}
	if got := notRehearsed(c); len(got) > 0 {
		t.Errorf("of the defaults: %q", got)
	}
	c.Roles, c.AgentAPI.HeartbeatsPerSecond, c.Dir = []fleet.Role{fleet.RoleUpdater}, 7, "/elsewhere"
	c.Policy.HeartbeatInterval++
	c.Providers[0].TrustFirstUse, c.Providers[0].Static.Path = true, "hosts.yaml"
	c.Providers[1].Takeover, c.Providers[1].Equinix.Spacing, c.Providers[0].Static.Spacing = initializer.TakeoverKexec, 1, 5
	c.Providers[1].Install = &config.Install{Image: "os", Kexec: true}
	want := []string{
		"agent_api.heartbeats_per_second", "providers.install.kexec", "providers.static.spacing",
		"providers.takeover", "providers.trust_first_use", "roles",
	}
	if got := notRehearsed(c); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// TestARehearsalHasThePace of the configuration; a list of hosts has none.
func TestARehearsalHasThePace(t *testing.T) {
	t.Parallel()
	c := config.Default()
	c.Providers = []config.Provider{config.NewProvider("a", "static"), config.NewProvider("b", "equinix"), config.NewProvider("c", "equinix")}
	c.Providers[1].Equinix.Spacing, c.Providers[1].Equinix.InFlight, c.Providers[1].Equinix.PageSize = 7*time.Second, 3, 25
	c.Providers[1].Equinix.TokenFile, c.Providers[2].Equinix.TokenFile = "token", "token"
	setup, err := rehearsalSetup(c)
	if err != nil {
		t.Fatal(err)
	}
	list, b, other := setup.Providers[0], setup.Providers[1], setup.Providers[2]
	if list.Limits.Spacing != 0 || list.Limits.InFlight != 0 || list.PageSize != 0 || list.Account != "" {
		t.Errorf("a list: %+v", list)
	}
	if b.Limits.Spacing != 7*time.Second || b.Limits.InFlight != 3 || b.PageSize != 25 || b.Account == "" || b.Account != other.Account {
		t.Errorf("%+v, and account %q", b, other.Account)
	}
}
