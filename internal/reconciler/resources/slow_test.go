package resources_test

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/reconciler"
)

// slow is a server that takes a while for some answers.
type slow struct {
	http.RoundTripper
	is    func(*http.Request) bool
	takes time.Duration
	// then is called when such a request has been answered.
	then func(*http.Request)
}

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	if !s.is(r) {
		return s.RoundTripper.RoundTrip(r)
	}
	select {
	case <-time.After(s.takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	response, err := s.RoundTripper.RoundTrip(r)
	if err == nil {
		s.then(r)
	}
	return response, err
}

// slowAt starts one that asks such a server.
func (w *world) slowAt(s slow, o resources.Options) *applier {
	w.Helper()
	c := rest.CopyConfig(w.cluster.Config(""))
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		s.RoundTripper = next
		return s
	})
	o.Budget = cmp.Or(o.Budget, turnsBudget)
	return w.startWith(c, o)
}

// gets reports whether a request is for one of some ConfigMaps.
func gets(prefix string) func(*http.Request) bool {
	return func(r *http.Request) bool {
		return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/configmaps/"+prefix)
	}
}

// touch changes an object whenever it has been looked at.
func (w *world) touch() func(*http.Request) {
	var looks atomic.Int32
	return func(r *http.Request) {
		name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		w.patch(configMaps, "default", name, fmt.Sprintf(`{"metadata":{"annotations":{"looks":"%d"}}}`, looks.Add(1)))
	}
}

// halfway has the inventory say of all ConfigMaps that a leader has begun to replace them.
func (w *world) halfway() {
	w.Helper()
	lines, _ := nested(w.get(configMaps, inventory.Namespace, inventory.Name).Object, []string{"data", "ConfigMap"}).(string)
	lines = strings.ReplaceAll(lines, " uid=", " mark=replacing mark=OLDER at=1700000000 uid=")
	w.patch(configMaps, inventory.Namespace, inventory.Name, fmt.Sprintf(`{"data":{"ConfigMap":%q}}`, lines))
}

// manySlow is more than the server answers within a budget, eight at a time, each within slowTakes.
const (
	manySlow  = 60
	slowTakes = turnsBudget / 5
)

// TestTurnAfterSlowLooks: objects that passes have to ask for, and that the server is slow to
// answer for, do not keep others from their turn, also where what was seen is soon too old.
func TestTurnAfterSlowLooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var all strings.Builder
	for n := range manySlow {
		all.WriteString(annotated(fmt.Sprint("slow-", n), "ironherd.dev/apply: create-only"))
	}
	w.write("a.yaml", all.String()+account("gone"))
	first := w.start(resources.Options{})
	first.done()
	first.stop()
	for n := range manySlow {
		name := fmt.Sprint("slow-", n)
		w.patch(configMaps, "default", name, `{"metadata":{"labels":null}}`)
		defer w.remove(configMaps, "default", name)
	}
	w.write("a.yaml", all.String()+configMap("later", "1"))
	a := w.slowAt(slow{is: gets("slow-"), takes: slowTakes, then: func(*http.Request) {}}, resources.Options{LookEvery: 3 * slowTakes})
	a.within(8, "what comes after them", func() bool {
		return w.there(configMaps, "default", "later") && !w.there(accounts, "default", "gone")
	})
}

// TestTurnAfterSlowDependencies: dependencies that are healthy, and change all the time, do not
// keep from its turn what waits for them, however slowly the server tells of them.
func TestTurnAfterSlowDependencies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	base, dependent := "", ""
	for n := range 6 {
		base += annotated(fmt.Sprint("busy-", n), "ironherd.dev/healthy-when: 'true'")
		dependent += annotated(fmt.Sprint("dep-", n), fmt.Sprint("ironherd.dev/depends-on: ConfigMap default/busy-", n))
	}
	w.write("a.yaml", base)
	first := w.start(resources.Options{})
	first.done()
	first.stop()
	w.write("a.yaml", base+dependent)
	a := w.slowAt(slow{is: gets("busy-"), takes: 2 * slowTakes, then: w.touch()}, resources.Options{})
	a.within(12, "what waits for them", func() bool {
		for n := range 6 {
			if !w.there(configMaps, "default", fmt.Sprint("dep-", n)) {
				return false
			}
		}
		return true
	})
}

// TestTurnAfterManySlowDependencies: an object that depends on several of them is applied if they
// can all be looked at within a pass. If they cannot, it keeps no other object from its turn.
func TestTurnAfterManySlowDependencies(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		takes   time.Duration
		budget  time.Duration
		applied bool
	}{
		// The last look begins after half of the budget.
		"within a pass":     {7 * slowTakes, 8 * turnsBudget, true},
		"not within a pass": {2 * slowTakes, turnsBudget, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			base, needs := "", []string{}
			for n := range 4 {
				base += annotated(fmt.Sprint("busy-", n), "ironherd.dev/healthy-when: 'true'")
				needs = append(needs, fmt.Sprint("ConfigMap default/busy-", n))
			}
			w.write("a.yaml", base+configMap("edited", "1"))
			first := w.start(resources.Options{})
			first.done()
			first.stop()
			w.write("a.yaml", base+configMap("edited", "2")+
				annotated("dep-0", "ironherd.dev/depends-on: '"+strings.Join(needs, ", ")+"'")+
				annotated("dep-1", "ironherd.dev/depends-on: ConfigMap default/busy-3"))
			a := w.slowAt(slow{is: gets("busy-"), takes: test.takes, then: w.touch()}, resources.Options{Budget: test.budget})
			a.within(12, "what depends on them", func() bool {
				return w.there(configMaps, "default", "dep-1") && (!test.applied || w.there(configMaps, "default", "dep-0"))
			})
			w.patch(configMaps, "default", "edited", `{"data":{"key":"theirs"}}`)
			a.within(12, "the repair of another one", func() bool {
				return nested(w.get(configMaps, "default", "edited").Object, []string{"data", "key"}) == "2"
			})
		})
	}
}

// TestTurnOfSlowLeftovers: what is no longer wanted, and has to be asked for, is deleted, however
// slowly the server tells of it.
func TestTurnOfSlowLeftovers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.approving = true
	var all strings.Builder
	for n := range manySlow {
		all.WriteString(configMap(fmt.Sprint("slow-", n), "1"))
	}
	w.write("a.yaml", all.String()+configMap("kept", "1"))
	first := w.start(resources.Options{})
	first.done()
	first.stop()
	for n := range manySlow {
		name := fmt.Sprint("slow-", n)
		w.patch(configMaps, "default", name, `{"metadata":{"labels":null}}`)
		defer w.remove(configMaps, "default", name)
	}
	w.write("a.yaml", configMap("kept", "1"))
	a := w.slowAt(slow{is: gets("slow-"), takes: slowTakes, then: func(*http.Request) {}}, resources.Options{LookEvery: 3 * slowTakes})
	passes, pruned := 0, 0
	a.until("that they are deleted", func(r reconciler.Report, err error) bool {
		passes, pruned = passes+1, pruned+r.Pruned
		if passes > 36 {
			t.Fatalf("%d were deleted: %v, %+v", pruned, err, r)
		}
		return pruned == manySlow
	})
}

// TestTurnAfterReplacements: replacements that a leader has left unfinished take no more of a pass
// than anything else of the manifests, where the server does not say what has become of them.
func TestTurnAfterReplacements(t *testing.T) {
	t.Parallel()
	const halfway = 20
	w := newWorld(t)
	var all strings.Builder
	for n := range halfway {
		all.WriteString(configMap(fmt.Sprint("halfway-", n), "1"))
	}
	w.write("a.yaml", all.String())
	first := w.start(resources.Options{})
	first.done()
	first.stop()
	w.halfway()
	w.write("a.yaml", all.String()+configMap("later", "1"))
	var mu sync.Mutex
	asked, most := map[string]int{}, 0
	a := w.hangingWithin(3*turnsBudget, 4*turnsBudget, func(r *http.Request) bool {
		if !gets("halfway-")(r) {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		asked[r.URL.Path]++
		most = max(most, asked[r.URL.Path])
		return true
	})
	if r, err := a.pass(); err == nil || !r.Ready || len(asked) >= halfway {
		t.Errorf("the first pass has asked for %d: %+v, %v", len(asked), r, err)
	}
	a.within(8, "what comes after them", func() bool { return w.there(configMaps, "default", "later") })
	if len(asked) != halfway || most != 1 {
		t.Errorf("%d were asked for, one of them %d times", len(asked), most)
	}
}

// TestTurnAfterWhatIsGone: objects that a leader has deleted to create them again, and has not, are
// created, however slowly the server tells that they are gone.
func TestTurnAfterWhatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var all strings.Builder
	for n := range manySlow {
		all.WriteString(configMap(fmt.Sprint("slow-", n), "1"))
	}
	w.write("a.yaml", all.String())
	first := w.start(resources.Options{})
	first.done()
	first.stop()
	w.halfway()
	for n := range manySlow {
		w.remove(configMaps, "default", fmt.Sprint("slow-", n))
	}
	w.write("a.yaml", all.String()+configMap("later", "1"))
	a := w.slowAt(slow{is: gets("slow-"), takes: slowTakes, then: func(*http.Request) {}}, resources.Options{})
	a.within(12, "all of them", func() bool {
		for n := range manySlow {
			if !w.there(configMaps, "default", fmt.Sprint("slow-", n)) {
				return false
			}
		}
		return w.there(configMaps, "default", "later")
	})
}

// TestTurnAfterWhatIsUndone: an object that somebody undoes whenever it has been applied, which
// takes a while, does not keep others from their turn, nor what is no longer wanted of its kind.
func TestTurnAfterWhatIsUndone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("undone", "1")+account("gone")+configMap("gone", "1")+kept())
	first := w.start(resources.Options{})
	first.done()
	first.stop()
	w.write("a.yaml", configMap("undone", "2")+kept())
	tries := 0
	a := w.slowAt(slow{is: func(r *http.Request) bool {
		return r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/configmaps/undone")
	}, takes: turnsBudget + slowTakes, then: func(*http.Request) {
		tries++
		w.patch(configMaps, "default", "undone", fmt.Sprintf(`{"metadata":{"annotations":null},"data":{"key":"theirs, %d"}}`, tries))
	}}, resources.Options{})
	a.within(5, "what comes after it", func() bool {
		return !w.there(accounts, "default", "gone") && !w.there(configMaps, "default", "gone")
	})
	before := tries
	a.within(5, "another try of it", func() bool { return tries > before })
}

// TestLooksInTurns: objects that the server does not tell of do not keep passes from looking at the
// health of others.
func TestLooksInTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all := annotated("later", "ironherd.dev/healthy-when: 'false'")
	for n := range 16 {
		all += annotated(fmt.Sprint("a-", n), "ironherd.dev/healthy-when: 'true'")
	}
	w.write("a.yaml", all)
	a := w.hangingAt(time.Minute, gets("a-"))
	n := 0
	a.until("that it is known to be unhealthy", func(r reconciler.Report, err error) bool {
		if n++; n > 24 {
			t.Fatalf("%v, %+v", err, r)
		}
		return r.Unhealthy > 0
	})
}
