package resources

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

func TestTries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, key := failures{}, object.Key{Kind: "K", Name: "n"}
		if _, ok := all.next(time.Now()); ok || !all.due(key, "h", "1") {
			t.Error("nothing failed, and yet")
		}
		begin, attempts := time.Now(), 0
		for time.Since(begin) < 10*time.Minute {
			if all.due(key, "h", "1") {
				attempts++
				all.failed(key, "h", "1", "why")
			}
			d, ok := all.next(time.Now())
			if !ok || d <= 0 || d > maxPause {
				t.Fatalf("next in %v, %t", d, ok)
			}
			time.Sleep(d)
		}
		if attempts < 20 || attempts > 40 {
			t.Errorf("%d attempts in ten minutes", attempts)
		}
		all.failed(key, "h", "1", "another")
		if all.due(key, "h", "1") || !all.due(key, "other", "1") || !all.due(key, "h", "2") {
			t.Error("it is not due when, and only when, it or what is wanted of it has changed")
		}
		all.failed(key, "other", "1", "another")
		if d, _ := all.next(time.Now()); d > 2*minPause {
			t.Errorf("what is wanted is new, and the pause is %v", d)
		}
		all.keepOnly(func(object.Key) bool { return false })
		if len(all) != 0 {
			t.Error("what is not known any more is kept")
		}
	})
}

// TestOverridesEndTheWait: what failed is tried at once when people have changed how it is treated,
// and a wait that has no object any more to try wakes nobody.
func TestOverridesEndTheWait(t *testing.T) {
	t.Parallel()
	key := object.Key{Kind: "K", Name: "n"}
	a := &Applier{}
	s := &session{a: a, failures: failures{}}
	s.failures.failed(key, "h", "1", "why")
	newPass(s, &wanted{})
	if s.failures.due(key, "h", "1") {
		t.Error("it is tried before its time, and nothing has changed")
	}
	a.SetOverrides([]reconciler.Override{{Effect: reconciler.Pause, Scope: "K n"}})
	newPass(s, &wanted{})
	if !s.failures.due(key, "h", "1") {
		t.Error("it waits, though people have changed how it is treated")
	}
	if d, ok := s.failures.next(time.Now()); ok {
		t.Errorf("the next pass is in %v, and nothing is to be tried", d)
	}
}

func TestRepairs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, key := repairs{}, object.Key{Kind: "K", Name: "n"}
		begin, n := time.Now(), 0
		for time.Since(begin) < 5*time.Minute {
			if !all.tooOften(key) {
				all.add(key, changedAgain)
				n++
			}
			if d, waiting := all.next(); waiting != (n >= freeRepairs) || d > maxPause {
				t.Fatalf("repair %d: next in %v, %t", n, d, waiting)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if n < 10 || n > 30 {
			t.Errorf("%d repairs in five minutes", n)
		}
		time.Sleep(2 * repairsReset)
		all.add(object.Key{Kind: "other"}, changedAgain)
		if len(all) != 1 || all.tooOften(key) {
			t.Error("a fight is never over")
		}
	})
}

// TestSlowFight: who undoes an object so slowly that each repair may be done at once is told of as
// well, in every pass until that has been over for a while; then a pass comes that finds it so. API
// servers do not wait for it, and nothing of its kind stays for it.
func TestSlowFight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &object.Object{Key: object.Key{Kind: "K", Name: "n"}, Need: object.Required}
		a := &Applier{log: slog.New(slog.DiscardHandler)}
		s := &session{a: a, repairs: repairs{}, said: map[object.Key]string{}}
		look := func() (*pass, reconciler.Report) {
			p := newPass(s, &wanted{objects: []*object.Object{o}})
			p.reportFights(t.Context())
			p.rememberSaid(true)
			return p, p.report
		}
		for n := 1; n <= 40; n++ {
			if s.repairs.tooOften(o.Key) {
				t.Fatalf("repair %d has to wait", n)
			}
			s.repairs.add(o.Key, changedAgain)
			for range 2 {
				p, report := look()
				if told := len(report.Failures) == 1; told != (n > freeRepairs) {
					t.Fatalf("repair %d: %+v", n, report.Failures)
				}
				if told := len(p.events); told > 1 || told == 1 && n != freeRepairs+1 {
					t.Errorf("repair %d: %d events", n, told)
				}
				if len(report.Failures) == 1 && (report.Failures[0].Required || report.Failures[0].Reason != changedAgain) || p.blocked || len(p.failing) > 0 {
					t.Errorf("repair %d: %+v holds up what it must not", n, report.Failures)
				}
				time.Sleep(45 * time.Second / 2)
			}
		}
		d, waits := s.repairs.next()
		if _, report := look(); !waits || d > repairsReset || len(report.Failures) != 1 {
			t.Fatalf("the next pass comes in %v, %t: %+v", d, waits, report.Failures)
		}
		time.Sleep(d)
		if d, waits := s.repairs.next(); waits {
			t.Errorf("one more pass comes in %v", d)
		}
		if _, report := look(); len(report.Failures) > 0 {
			t.Errorf("it is over, and told: %+v", report.Failures)
		}
	})
}

func TestDifference(t *testing.T) {
	t.Parallel()
	a := strings.Split("a b c d e f g h i j k l m n o p", " ")
	b := strings.Split("a b c X e f g h i j k l m n o p q", " ")
	if got, want := diffLines(a, b), " a\n b\n c\n-d\n+X\n e\n f\n g\n ⋮\n n\n o\n p\n+q\n"; got != want {
		t.Errorf("got %q", got)
	}
	if got := diffLines(a, a); got != "" {
		t.Errorf("no difference: %q", got)
	}
	long := make([]string, 3000)
	for n := range long {
		long[n] = strings.Repeat("x", n%7)
	}
	if got := diffLines(long, long[1:]); !strings.Contains(got, "-") {
		t.Error("a long one is not shown")
	}
	secret := func(data map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret", "data": data}}
	}
	text := difference(secret(map[string]any{"a": "S1", "b": "S2", "c": "S3"}), secret(map[string]any{"a": "S1", "b": "S4", "d": "S5"}))
	for _, hidden := range []string{"S1", "S2", "S3", "S4", "S5"} {
		if strings.Contains(text, hidden) {
			t.Errorf("%s is shown: %s", hidden, text)
		}
	}
	if !strings.Contains(text, "-  b: (hidden, before)") || !strings.Contains(text, "+  d: (hidden)") {
		t.Errorf("got %s", text)
	}
}

// TestNews: a reason is told once for as long as each whole pass finds it, and again after one that
// did not. A pass that ended early has not seen that it is gone.
func TestNews(t *testing.T) {
	t.Parallel()
	s := &session{said: map[object.Key]string{}}
	o := &object.Object{Key: object.Key{Kind: "K", Name: "n"}}
	for n, step := range []struct {
		gist  string // empty: nothing is wrong
		whole bool
		news  bool
	}{
		{"why", true, true},
		{"why", true, false},
		{"another", true, true},
		{"", false, false},
		{"another", false, false},
		{"another", true, false},
		{"", true, false},
		{"another", true, true},
		{"why", false, true},
		{"why", true, false},
	} {
		p := &pass{session: s, saying: map[object.Key]string{}}
		if step.gist != "" && p.news(o, nil, step.gist, step.gist+" and more") != step.news {
			t.Errorf("step %d: %+v", n, step)
		}
		if told := len(p.events) == 1; told != step.news {
			t.Errorf("step %d: %+v: %v", n, step, p.events)
		}
		p.rememberSaid(step.whole)
	}
}

// TestReasonsAreShort: a reason is of bounded length, however many fields a server has something to
// say of.
func TestReasonsAreShort(t *testing.T) {
	t.Parallel()
	var causes []metav1.StatusCause
	for n := range 6000 {
		causes = append(causes, metav1.StatusCause{
			Type: metav1.CauseTypeFieldManagerConflict, Field: fmt.Sprintf(".data.key-%d", n), Message: `conflict with "gitops" using v1`,
		})
	}
	text := conflict(apierrors.NewApplyConflict(causes, "conflicts")).Error()
	if len(text) > 2*maxReason || !strings.Contains(text, ".data.key-0: conflict with") || !strings.HasSuffix(text, "; and 5980 more") {
		t.Errorf("a conflict is told as %q", text)
	}
	s := &session{a: &Applier{log: slog.New(slog.DiscardHandler)}, failures: failures{}, turns: map[object.Key]string{}}
	p := newPass(s, &wanted{})
	o := &object.Object{Key: object.Key{Kind: "K", Name: "n"}}
	p.fail(t.Context(), &item{Object: o}, errors.New(strings.Repeat("x", 1<<20)))
	if reason := p.report.Failures[0].Reason; len(reason) > 2*maxReason || s.failures[o.Key].reason != reason {
		t.Errorf("a reason has %d bytes, and %d later", len(reason), len(s.failures[o.Key].reason))
	}
}

// TestAWebhookThatNamesFields: a webhook that denies a change as the server refuses one is a policy
// all the same, and is not overruled.
func TestAWebhookThatNamesFields(t *testing.T) {
	t.Parallel()
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, "guarded", field.ErrorList{field.Forbidden(field.NewPath("data"), "immutable")})
	if !wrong(fmt.Errorf("apply: %w", invalid)) {
		t.Error("the server itself finds nothing wrong")
	}
	invalid.ErrStatus.Message = `admission webhook "guard.example.com" denied the request: ` + invalid.ErrStatus.Message
	if wrong(invalid) {
		t.Error("what a webhook denies passes for the server's word")
	}
}

// TestWhatWaitsWakesNobody: an object that failed and then waits for something else is not tried
// when its pause is over, so its pause wakes no pass either. One that is over during a pass does.
func TestWhatWaitsWakesNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &session{a: &Applier{changed: make(chan struct{}, 1)}, failures: failures{}, ended: make(chan struct{})}
		defer s.end()
		s.failures.failed(object.Key{Kind: "K", Name: "waits"}, "h", "1", "why")
		woken := func(takes time.Duration) (passes int) {
			for over := time.After(10 * time.Second); ; passes++ {
				p := newPass(s, &wanted{})
				time.Sleep(takes)
				p.wake(nil) // it was not tried
				select {
				case <-s.a.changed:
				case <-over:
					return passes
				}
			}
		}
		if passes := woken(0); passes != 1 {
			t.Errorf("%d passes, and nothing is to be tried", passes)
		}
		s.failures.failed(object.Key{Kind: "K", Name: "other"}, "h", "1", "why")
		if passes := woken(minPause); passes != 1 {
			t.Errorf("%d passes, and a pause was over during the first", passes)
		}
	})
}

// TestFailedLooksSlowDown: while the health of nothing can be looked at, passes that are made for
// that alone come ever less often, and as often as before once a look succeeds.
func TestFailedLooksSlowDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &session{a: &Applier{changed: make(chan struct{}, 1)}, failures: failures{}, ended: make(chan struct{})}
		defer s.end()
		pause := func(succeeds bool) time.Duration {
			p := newPass(s, &wanted{})
			p.lookAgain.Store(true)
			p.sawHealth.Store(succeeds)
			begun := time.Now()
			p.wake(nil)
			<-s.a.changed
			return time.Since(begun)
		}
		for _, seconds := range []int{1, 2, 4, 8, 16, 30, 30} {
			for range 2 { // passes that something else is the reason for
				p := newPass(s, &wanted{})
				p.lookAgain.Store(true)
				p.wake(nil)
			}
			if got := pause(false); got != time.Duration(seconds)*time.Second {
				t.Errorf("the next pass comes after %v, want %d s", got, seconds)
			}
		}
		for range 2 {
			if got := pause(true); got != lookAgainIn {
				t.Errorf("after a look that succeeded the next pass comes after %v", got)
			}
		}
	})
}

// TestTurnsEndInAPass: what had its turn in a pass that was broken off, and might be tried again
// since then, has a pass come once the others had theirs.
func TestTurnsEndInAPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &Applier{log: slog.New(slog.DiscardHandler), changed: make(chan struct{}, 1), options: Options{Budget: DefaultBudget}}
		s := &session{a: a, failures: failures{}, turns: map[object.Key]string{}, ended: make(chan struct{})}
		defer s.end()
		hangs, rest := &item{Object: &object.Object{Key: object.Key{Kind: "K", Name: "hangs"}}}, &item{Object: &object.Object{Key: object.Key{Kind: "K", Name: "rest"}}}
		one := func(work func(*pass)) {
			p := newPass(s, &wanted{})
			p.startBudget()
			work(p)
			p.endBudget()
			p.wake(nil)
			select {
			case <-a.changed:
			case <-time.After(time.Second):
				t.Error("no pass comes")
			}
		}
		one(func(p *pass) {
			time.Sleep(DefaultBudget)
			p.fail(t.Context(), hangs, errSilent)
			if !p.leave(rest) {
				t.Error("the budget is not spent")
			}
		})
		time.Sleep(time.Second)
		one(func(p *pass) {
			if !p.waitsForOthers(hangs.Object, true) || p.leave(rest) {
				t.Error("the rest does not have its turn")
			}
		})
		p := newPass(s, &wanted{})
		if p.waitsForOthers(hangs.Object, true) || !p.failures.due(hangs.Key, hangs.Hash(), "") {
			t.Error("what had its turn is not tried again")
		}
	})
}

// answering answers each request after a while, as a server whose webhook is slow.
type answering func(*http.Request) (*http.Response, error)

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

// TestEventsTakeABoundedTime: a pass does not wait for events longer than for a while.
func TestEventsTakeABoundedTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		a, err := New(&rest.Config{Host: "http://192.0.2.11:6443", Transport: answering(func(r *http.Request) (*http.Response, error) {
			sent++
			time.Sleep(time.Second)
			return &http.Response{
				StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
				Body: io.NopCloser(strings.NewReader(`{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"e"}}`)),
			}, r.Context().Err()
		})}, Options{BuiltIn: nothing}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		s := newSession(a)
		defer s.end()
		p := newPass(s, a.want(t.Context()))
		for n := range mostEvents {
			p.tell(&object.Object{Key: object.Key{Kind: "ConfigMap", Namespace: "default", Name: fmt.Sprint("n", n)}, Version: "v1"}, nil, eventFailed, "why")
		}
		begun := time.Now()
		p.sendEvents(t.Context())
		if took := time.Since(begun); took > 6*time.Second || sent < 3 {
			t.Errorf("%d events took %v", sent, took)
		}
	})
}
