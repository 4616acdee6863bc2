package fleet_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// constants returns the values of all string constants of the named type, as the source has them.
func constants(t *testing.T, file, name string) []string {
	t.Helper()
	source, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	ast.Inspect(source, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != name {
			return true
		}
		for _, v := range spec.Values {
			text, err := strconv.Unquote(v.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, text)
		}
		return true
	})
	return values
}

// TestListsNameEveryConstant, because tests elsewhere go through these lists.
func TestListsNameEveryConstant(t *testing.T) {
	t.Parallel()
	var events, kinds []string
	for _, e := range fleet.Events() {
		events = append(events, string(e))
	}
	for _, k := range fleet.DiscrepancyKinds() {
		kinds = append(kinds, string(k))
	}
	if want := constants(t, "event.go", "Event"); !slices.Equal(events, want) {
		t.Errorf("fleet.Events returns %q, the source declares %q", events, want)
	}
	if want := constants(t, "discrepancy.go", "DiscrepancyKind"); !slices.Equal(kinds, want) {
		t.Errorf("fleet.DiscrepancyKinds returns %q, the source declares %q", kinds, want)
	}
	for _, list := range [][]string{events, kinds} {
		slices.Sort(list)
		if n := len(slices.Compact(list)); n != len(list) {
			t.Errorf("two constants have the same text: %q", list)
		}
	}
}

func TestEveryDiscrepancyHasARemedy(t *testing.T) {
	t.Parallel()
	for _, k := range fleet.DiscrepancyKinds() {
		if k.Remedy("metal", "dev-1") == "" {
			t.Errorf("a discrepancy of kind %s has no remedy", k)
		}
	}
}

// TestStatesAreMovingOrTroubleOrAtRest: nothing more happens in four states, and nothing is wrong
// with them; every other one is either on its way or a matter for somebody.
func TestStatesAreMovingOrTroubleOrAtRest(t *testing.T) {
	t.Parallel()
	for _, s := range fleet.States() {
		rests := s == fleet.StateAvailable || s == fleet.StateInstalled || s == fleet.StateOff || s == fleet.StateMaintenance
		if words := s.Words(); words == "" || (words == string(s)) == (s == fleet.StateMaintenance) {
			t.Errorf("a machine is %s: %q", s, words)
		}
		if s.Moving() == (s.Trouble() || rests) || s.Trouble() && rests {
			t.Errorf("%s: moving %t, trouble %t", s, s.Moving(), s.Trouble())
		}
	}
	if fleet.State("unheard of").Moving() || fleet.State("unheard of").Trouble() {
		t.Error("nothing is known of a state that is not in the list")
	}
}

// TestEveryProcessHasARole: whoever looks for who does a process finds the role, and its sessions.
func TestEveryProcessHasARole(t *testing.T) {
	t.Parallel()
	var roles []string
	for _, r := range fleet.Roles() {
		roles = append(roles, string(r))
	}
	if want := constants(t, "role.go", "Role"); !slices.Equal(roles, want) {
		t.Errorf("fleet.Roles returns %q, the source declares %q", roles, want)
	}
	components := map[string]fleet.Role{}
	for _, r := range fleet.Roles() {
		if other, taken := components[r.Component()]; taken {
			t.Errorf("%s and %s have the same component", r, other)
		}
		components[r.Component()] = r
		if got := fleet.RoleOf(r.Component()); got != r {
			t.Errorf("the sessions of %s are said to be those of %q", r, got)
		}
	}
	for _, p := range fleet.Processes() {
		r := p.Role()
		if back, does := r.Process(); !does || back != p || !slices.Contains(fleet.Roles(), r) {
			t.Errorf("%s is done by %q, which does %q", p, r, back)
		}
		// as shepherd.Loop names its sessions
		if p != fleet.ProcessInstall && r.Component() != string(p) {
			t.Errorf("the sessions of %s are named %s", r, r.Component())
		}
	}
}
