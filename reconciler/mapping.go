package reconciler

import (
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler"
)

// applying is a program's Applier as the service calls it. Types that have the same fields are
// converted, so that a field which only one of them has does not compile.
type applying struct{ Applier }

// Pass implements the service's Applier.
func (a applying) Pass(ctx context.Context) (reconciler.Report, error) {
	r, err := a.Applier.Pass(ctx)
	report := reconciler.Report{
		Objects: r.Objects, Created: r.Created, Updated: r.Updated, Recreated: r.Recreated, Pruned: r.Pruned, Paused: r.Paused,
		Unhealthy: r.Unhealthy, Requests: r.Requests, Ready: r.Ready,
	}
	for _, f := range r.Failures {
		report.Failures = append(report.Failures, reconciler.Failure(f))
	}
	return report, err
}

// observing is a program's Observer as the service calls it.
type observing struct{ Observer }

// PassEnded implements the service's Observer.
func (o observing) PassEnded(r reconciler.Report, took time.Duration, err error) {
	report := Report{
		Objects: r.Objects, Created: r.Created, Updated: r.Updated, Recreated: r.Recreated, Pruned: r.Pruned, Paused: r.Paused,
		Unhealthy: r.Unhealthy, Requests: r.Requests, Ready: r.Ready,
	}
	for _, f := range r.Failures {
		report.Failures = append(report.Failures, Failure(f))
	}
	o.Observer.PassEnded(report, took, err)
}

// Capabilities implements the service's Capable.
func (a applying) Capabilities() (c reconciler.Capabilities) {
	if s, ok := a.Applier.(Sourcer); ok {
		c.Sourcer = sourcing{s}
	}
	if p, ok := a.Applier.(Pauser); ok {
		c.Pauser = pausing{p}
	}
	if p, ok := a.Applier.(Prober); ok {
		c.Prober = p
	}
	if p, ok := a.Applier.(Publisher); ok {
		c.Publisher = publishing{p}
	}
	return c
}

type sourcing struct{ s Sourcer }

func (a sourcing) Source(ctx context.Context) reconciler.Source {
	return reconciler.Source(a.s.Source(ctx))
}

func (a sourcing) AskConsent(ask func(context.Context, reconciler.Source) (reconciler.Consent, error)) {
	a.s.AskConsent(func(ctx context.Context, own Source) (Consent, error) {
		c, err := ask(ctx, reconciler.Source(own))
		return Consent(c), err
	})
}

type pausing struct{ p Pauser }

func (a pausing) SetPauses(pauses []reconciler.Pause) {
	var all []Pause
	for _, p := range pauses {
		all = append(all, Pause{Scope: p.Scope, By: p.By, Reason: p.Reason, At: p.At, Until: p.Until})
	}
	a.p.SetPauses(all)
}

type publishing struct{ p Publisher }

func (a publishing) Publish(ctx context.Context, s reconciler.Standing) error {
	return a.p.Publish(ctx, Standing(s))
}
