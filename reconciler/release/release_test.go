package release_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/release"
)

// TestMinimaAreNotAboveTheRelease keeps this source consistent: a minimum above the release itself
// would lock every node out.
func TestMinimaAreNotAboveTheRelease(t *testing.T) {
	t.Parallel()
	if err := release.Own().Validate(); err != nil {
		t.Fatal(err)
	}
	for _, b := range []release.Build{
		{},
		{Release: v("v1.0.0"), MinReconciler: v("v1.0.0")},
		{Release: v("v1.0.0"), MinReconciler: v("v1.0.1"), MinAPIServer: v("v1.0.0")},
		{Release: v("v1.0.0-rc.1"), MinReconciler: v("v1.0.0-rc.1"), MinAPIServer: v("v1.0.0")},
	} {
		if err := b.Validate(); err == nil {
			t.Errorf("%+v is accepted", b)
		}
	}
}

var v = release.MustParse

func TestOrder(t *testing.T) {
	t.Parallel()
	ordered := strings.Fields("v0.0.1 v0.1.0-alpha v0.1.0-alpha.1 v0.1.0-alpha.beta v0.1.0-beta v0.1.0-beta.2 v0.1.0-beta.11 v0.1.0-rc.1 " +
		"v0.1.0 v0.1.1 v0.2.0-99999999999999999999999 v0.2.0 v0.10.0 v1.0.0 v2.0.0")
	for i, a := range ordered {
		if !(release.Release{}).Less(v(a)) {
			t.Errorf("%s is not above none", a)
		}
		for j, b := range ordered {
			got := v(a).Compare(v(b))
			if got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("%s compared with %s is %d", a, b, got)
			}
		}
	}
	if v("1.2.3+linux") != v("v1.2.3") {
		t.Error("build metadata makes another release")
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "v", "1", "1.2", "1.2.3.4", "v1.2.x", "v01.2.3", "v1.2.3-", "v1.2.3-a..b", "v1.2.3-01", "v1.2.3-ü", "v0.0.0", "v0.0.0-rc.1",
		"vv1.2.3", " v1.2.3", "v-1.2.3", "none", "v1.2.3-" + strings.Repeat("a", 64),
	} {
		if r, err := release.Parse(text); fleet.KindOf(err) != fleet.KindInvalid || !r.IsZero() {
			t.Errorf("%q: %v, %v", text, r, err)
		}
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	in := []release.Release{{}, v("v1.2.3"), v("v1.2.3-rc.1")}
	text, err := json.Marshal(in)
	if err != nil || string(text) != `["none","v1.2.3","v1.2.3-rc.1"]` {
		t.Fatalf("%s, %v", text, err)
	}
	var out []release.Release
	if err := json.Unmarshal(text, &out); err != nil || !slices.Equal(in, out) {
		t.Errorf("%v, %v", out, err)
	}
	if err := json.Unmarshal([]byte(`["v1"]`), &out); err == nil {
		t.Error("v1 is accepted")
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"v1.2.3", "1.2.3-rc.1+x", "v0.0.0", "-", "v1.2.3-0"} {
		f.Add(s, "v1.0.0")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		ra, err := release.Parse(a)
		if err != nil {
			return
		}
		if again, err := release.Parse(ra.String()); err != nil || again != ra {
			t.Fatalf("%q is printed as %s, which is %v, %v", a, ra, again, err)
		}
		if rb, err := release.Parse(b); err == nil {
			if ra.Compare(rb) != -rb.Compare(ra) || (ra.Compare(rb) == 0) != (ra == rb) {
				t.Fatalf("%s and %s: %d, %d", ra, rb, ra.Compare(rb), rb.Compare(ra))
			}
		}
	})
}
