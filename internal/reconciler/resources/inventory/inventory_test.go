package inventory_test

import (
	"fmt"
	"strings"
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
				e.Replacing = rapid.Bool().Draw(t, "replacing")
			}
			e.Need = rapid.SampledFrom([]object.Need{object.Nobody, object.Optional, object.Required}).Draw(t, "need")
			i.Entries[key] = e
		}
		parts := rapid.SampledFrom([]int{1, 2, 4, 64}).Draw(t, "parts")
		back, err := inventory.Parse(i.Data(parts))
		if err != nil || !back.Equal(i) {
			t.Fatalf("%v: %v", i.Data(parts), err)
		}
		// The writer died on the way to twice as many parts: of what is in two, the new place
		// counts.
		grown := inventory.New()
		for key, e := range i.Entries {
			e.UID += "-new"
			grown.Entries[key] = e
		}
		half := append(i.Data(parts), grown.Data(2 * parts)[parts:]...)
		back, err = inventory.Parse(half)
		if err != nil || len(back.Entries) != len(i.Entries) {
			t.Fatalf("%v: %v", half, err)
		}
		for n, data := range grown.Data(2 * parts)[parts:] {
			moved, _ := inventory.Parse([]map[string]string{data})
			for key, e := range moved.Entries {
				if back.Entries[key] != e {
					t.Fatalf("%v of part %d is %+v, want %+v", key, parts+n, back.Entries[key], e)
				}
			}
		}
	})
}

// TestUnreadable: a line that cannot be read is named, and still there afterwards.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"x", "noslash uid=1", "/ uid=1", "a/b/c uid=1", "/a", "/a at=1", "/a uid=1 at=x", "/a uid=1 new=1", "/a uid=1 need=", "/a uid=1 need=nobody", "/a uid=", "/good uid=2",
	} {
		data := map[string]string{"Role.rbac.authorization.k8s.io": "/good uid=1\n" + line + "\n"}
		i, err := inventory.Parse([]map[string]string{data})
		if err == nil || len(i.Entries) != 1 {
			t.Errorf("%q: %v, %v", line, i.Entries, err)
		}
		again, err := inventory.Parse(i.Data(1))
		if err == nil || !again.Equal(i) {
			t.Errorf("%q is lost: %v, %v", line, i.Data(1), err)
		}
	}
}

// TestUnreadableStays: a line that cannot be read stays in the part that it is in.
func TestUnreadableStays(t *testing.T) {
	t.Parallel()
	i, err := inventory.Parse([]map[string]string{{}, {"Role": "?\n"}})
	if err == nil || i.Data(4)[1]["Role"] != "?\n" {
		t.Errorf("%v, %v", i.Data(4), err)
	}
}

// TestReplacing: that an object is being replaced is a word of its own. A mark beside a UID alone,
// which older releases have left for other reasons, does not say so. Older releases read the line:
// of two marks they take the last one.
func TestReplacing(t *testing.T) {
	t.Parallel()
	const line = "/a uid=1 mark=replacing mark=M at=7"
	for text, want := range map[string]inventory.Entry{
		line:                          {UID: "1", Mark: "M", At: time.Unix(7, 0), Replacing: true},
		"/a uid=1 mark=M at=7":        {UID: "1", Mark: "M", At: time.Unix(7, 0)},
		"/a mark=replacing mark=M":    {Mark: "M"},
		"/a uid=1 mark=replacing":     {UID: "1"},
		"/a mark=replacing uid=1":     {UID: "1"},
		"/a mark=M mark=N uid=1 at=7": {UID: "1", Mark: "N", At: time.Unix(7, 0)},
	} {
		i, err := inventory.Parse([]map[string]string{{"Role": text + "\n"}})
		if got := i.Entries[object.Key{Kind: "Role", Name: "a"}]; err != nil || got != want {
			t.Errorf("%s: %+v, want %+v, %v", text, got, want, err)
		}
		if text == line && i.Data(1)[0]["Role"] != line+"\n" {
			t.Errorf("it is written as %q", i.Data(1)[0]["Role"])
		}
	}
	if i, err := inventory.Parse([]map[string]string{{"Role": "/a mark=replacing\n"}}); err == nil {
		t.Errorf("the word alone is %+v", i.Entries)
	}
}

// FuzzParse: anybody who may write ConfigMaps may write this one.
func FuzzParse(f *testing.F) {
	f.Add("Role.x", "/a uid=1\nb/c mark=x at=7\n\n?\n")
	f.Add(".", "/a uid=1")
	f.Add("Role", "/0 uid=0\n/0 mark=0") // whichever counts, the same one does after a round
	f.Fuzz(func(t *testing.T, kind, text string) {
		i, _ := inventory.Parse([]map[string]string{{kind: text}})
		for key, e := range i.Entries {
			if key.Name == "" || key.Kind == "" || e.UID == "" && e.Mark == "" {
				t.Errorf("%v: %+v", key, e)
			}
		}
		again, _ := inventory.Parse(i.Data(1))
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

func TestParts(t *testing.T) {
	t.Parallel()
	for part, name := range map[int]string{0: inventory.Name, 1: inventory.Name + "-1", 63: inventory.Name + "-63"} {
		key := object.Key{Kind: "ConfigMap", Namespace: inventory.Namespace, Name: name}
		if inventory.PartName(part) != name || !inventory.IsPart(key) {
			t.Errorf("part %d is %s", part, inventory.PartName(part))
		}
		key.Namespace = "default"
		if inventory.IsPart(key) {
			t.Errorf("%v is a part", key)
		}
	}
	if inventory.IsPart(object.Key{Kind: "ConfigMap", Namespace: inventory.Namespace, Name: inventory.Name + "-64"}) {
		t.Error("there is no such part")
	}
	seen := inventory.Seen(func(name string) string {
		return map[string]string{inventory.PartName(0): "7", inventory.PartName(2): "9"}[name]
	})
	if strings.Join(seen, ",") != "7,,9" {
		t.Errorf("seen %v", seen)
	}
}
