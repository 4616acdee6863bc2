package reconciler

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler"
)

// fill gives every field of a struct a value of its own.
func fill(v reflect.Value, n *int64) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(*n, 0)))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.String:
		v.SetString(time.Duration(*n).String())
	case reflect.Int, reflect.Int64:
		v.SetInt(*n)
	case reflect.Bool:
		v.SetBool(true)
	default:
		panic(v.Kind())
	}
}

func filled[T any]() (t T) {
	var n int64
	fill(reflect.ValueOf(&t).Elem(), &n)
	return t
}

// flat is the values of all fields, in order.
func flat(v reflect.Value) (all []any) {
	switch {
	case v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[time.Time]():
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				all = append(all, flat(v.Field(i))...)
			}
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			all = append(all, flat(v.Index(i))...)
		}
	default:
		all = append(all, v.Interface())
	}
	return all
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := flat(reflect.ValueOf(got)), flat(reflect.ValueOf(want)); !reflect.DeepEqual(g, w) {
		t.Errorf("%s: %v, want %v", what, g, w)
	}
}

// plain is an Applier that can nothing besides; full can everything, and keeps what it is told.
type plain struct{ report Report }

func (plain) Run(context.Context) error              { return nil }
func (p plain) Pass(context.Context) (Report, error) { return p.report, errors.New("failed") }
func (plain) Changed() <-chan struct{}               { return nil }

type full struct {
	plain
	ask      func(context.Context, Source) (Consent, error)
	pauses   []Pause
	standing Standing
}

func (f *full) Source(context.Context) Source { return filled[Source]() }
func (f *full) AskConsent(ask func(context.Context, Source) (Consent, error)) {
	f.ask = ask
}
func (f *full) SetPauses(pauses []Pause)                    { f.pauses = pauses }
func (f *full) Probe(context.Context) error                 { return errors.New("dead") }
func (f *full) Publish(_ context.Context, s Standing) error { f.standing = s; return nil }

// TestMapping: nothing is lost between a program's Applier and the service, in either direction.
func TestMapping(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	f := &full{plain: plain{report: filled[Report]()}}
	a := applying{f}
	report, err := a.Pass(ctx)
	if err == nil || len(report.Failures) != 2 {
		t.Errorf("%+v, %v", report, err)
	}
	same(t, "report", report, filled[reconciler.Report]())
	can := a.Capabilities()
	same(t, "source", can.Sourcer.Source(ctx), filled[reconciler.Source]())
	can.Sourcer.AskConsent(func(_ context.Context, own reconciler.Source) (reconciler.Consent, error) {
		same(t, "own source", own, filled[Source]())
		return filled[reconciler.Consent](), errors.New("etcd is away")
	})
	consent, err := f.ask(ctx, filled[Source]())
	if err == nil {
		t.Error("an error is lost")
	}
	same(t, "consent", consent, filled[reconciler.Consent]())
	can.Pauser.SetPauses(filled[[]reconciler.Pause]())
	same(t, "pauses", f.pauses, filled[[]reconciler.Pause]())
	if can.Prober.Probe(ctx) == nil {
		t.Error("the probe is lost")
	}
	standing := filled[reconciler.Standing]()
	standing.Release = mustRelease(t)
	if err := can.Publisher.Publish(ctx, standing); err != nil || f.standing != Standing(standing) {
		t.Errorf("%+v, %v", f.standing, err)
	}
	var seen observer
	observing{&seen}.PassEnded(filled[reconciler.Report](), time.Second, errors.New("failed"))
	same(t, "observed", seen.report, filled[Report]())
}

func mustRelease(t *testing.T) Release {
	t.Helper()
	r, err := ParseRelease("v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

type observer struct{ report Report }

func (o *observer) PassEnded(report Report, _ time.Duration, _ error) { o.report = report }
func (o *observer) Announced(Status)                                  {}

// TestPlainApplier: an Applier that can nothing besides does not seem to.
func TestPlainApplier(t *testing.T) {
	t.Parallel()
	if can := (applying{plain{}}).Capabilities(); can != (reconciler.Capabilities{}) {
		t.Errorf("%+v", can)
	}
}
