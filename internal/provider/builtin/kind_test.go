package builtin_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/builtin"
)

// TestSectionsAndTable: each section has a row of the key's name, and each row a section.
func TestSectionsAndTable(t *testing.T) {
	t.Parallel()
	var keys []string
	sections := reflect.TypeFor[builtin.Sections]()
	for i := range sections.NumField() {
		key := sections.Field(i).Tag.Get("yaml")
		keys = append(keys, key)
		kind, err := builtin.Find(key)
		if err != nil || kind.Name != key {
			t.Errorf("section %s: kind %q, %v", key, kind.Name, err)
		}
		if defaults := reflect.ValueOf(builtin.Defaults()).Field(i); defaults.IsZero() {
			t.Errorf("section %s has no defaults", key)
		}
	}
	var kinds []string
	for _, kind := range builtin.Kinds() {
		kinds = append(kinds, kind.Name)
	}
	if !slices.Equal(kinds, keys) {
		t.Errorf("kinds %s, sections %s", kinds, keys)
	}
}

// TestUnknownKind: the sentence lists what there is.
func TestUnknownKind(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"openstack": `"openstack" is no kind of provider: use one of equinix, static`,
		"":          `"" is no kind of provider: use one of equinix, static`,
	} {
		if _, err := builtin.Find(name); fleet.KindOf(err) != fleet.KindInvalid || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestEveryKind: the defaults alone are not enough, since each kind must be told where to look;
// a section that is complete makes a provider that says it is of that kind.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	complete := builtin.Defaults()
	complete.Equinix.Project = "7b1d6e0a-5f2c-4c7e-9a51-0c8f4a6f7d11"
	complete.Equinix.SSHKeyLabel, complete.Equinix.DevicePrefix, complete.Equinix.OperatingSystem = "herd", "herd-", "debian_12"
	for _, kind := range builtin.Kinds() {
		name := kind.Name
		if err := kind.Section(builtin.Defaults()).Validate(); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%s: the defaults are valid: %v", name, err)
		}
		sections := complete
		for _, file := range kind.Files(&sections) {
			*file.Path = filepath.Join(dir, name+"-"+file.Key)
			if err := os.WriteFile(*file.Path, []byte("a-long-token"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := kind.Section(sections).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p, err := kind.Open(sections, "ssh-ed25519 AAAA", provider.Options{})
		if err != nil || p.Kind() != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}
