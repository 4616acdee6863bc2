package inventory_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		i := inventory.New()
		name := rapid.StringMatching(`[a-z0-9:.-]{1,20}`)
		for range rapid.IntRange(0, 20).Draw(t, "entries") {
			key := object.Key{
				Group: rapid.SampledFrom([]string{"", "rbac.authorization.k8s.io", "example.com"}).Draw(t, "group"),
				Kind:  rapid.SampledFrom([]string{"Role", "ConfigMap"}).Draw(t, "kind"),
				Name:  name.Draw(t, "name"),
			}
			if rapid.Bool().Draw(t, "namespaced") {
				key.Namespace = name.Draw(t, "namespace")
			}
			e := inventory.Entry{UID: name.Draw(t, "UID")}
			if rapid.Bool().Draw(t, "marked") {
				e.Mark, e.At = name.Draw(t, "mark"), time.Unix(rapid.Int64Range(0, 1<<40).Draw(t, "at"), 0)
			}
			i.Entries[key] = e
		}
		back, err := inventory.Parse(i.Data())
		if err != nil || !back.Equal(i) {
			t.Fatalf("%v: %v", i.Data(), err)
		}
	})
}

// TestUnreadable: a line that cannot be read is named, and still there afterwards.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"x", "noslash uid=1", "/ uid=1", "a/b/c uid=1", "/a", "/a at=1", "/a uid=1 at=x", "/a uid=1 new=1", "/a uid=", "/good uid=2",
	} {
		data := map[string]string{"Role.rbac.authorization.k8s.io": "/good uid=1\n" + line + "\n"}
		i, err := inventory.Parse(data)
		if err == nil || len(i.Entries) != 1 {
			t.Errorf("%q: %v, %v", line, i.Entries, err)
		}
		again, err := inventory.Parse(i.Data())
		if err == nil || !again.Equal(i) {
			t.Errorf("%q is lost: %v, %v", line, i.Data(), err)
		}
	}
}

// FuzzParse: anybody who may write ConfigMaps may write this one.
func FuzzParse(f *testing.F) {
	f.Add("Role.x", "/a uid=1\nb/c mark=x at=7\n\n?\n")
	f.Add(".", "/a uid=1")
	f.Fuzz(func(t *testing.T, kind, text string) {
		i, _ := inventory.Parse(map[string]string{kind: text})
		for key, e := range i.Entries {
			if key.Name == "" || key.Kind == "" || e.UID == "" && e.Mark == "" {
				t.Errorf("%v: %+v", key, e)
			}
		}
		again, _ := inventory.Parse(i.Data())
		if fmt.Sprint(again.Entries) != fmt.Sprint(i.Entries) {
			t.Errorf("%q: %v, then %v", text, i.Entries, again.Entries)
		}
	})
}

func TestOurs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		entry     inventory.Entry
		uid, mark string
		ours      bool
	}{
		{inventory.Entry{UID: "u"}, "u", "", true},
		{inventory.Entry{UID: "u"}, "v", "", false},
		{inventory.Entry{Mark: "m"}, "v", "m", true},
		{inventory.Entry{Mark: "m"}, "v", "", false},
		{inventory.Entry{UID: "u", Mark: "m"}, "v", "m", true},
		{inventory.Entry{}, "", "", false},
		{inventory.Entry{}, "v", "m", false},
	} {
		if c.entry.Ours(c.uid, c.mark) != c.ours {
			t.Errorf("%+v", c)
		}
	}
}
