package resources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// Why an object could not be made as wanted.
var (
	errConflict  = errors.New("others have fields of it")
	errMeanwhile = errors.New("it has changed meanwhile")
	errDeleting  = errors.New("it is being deleted; its finalizers hold it")
	errImmutable = errors.New("a field cannot be changed")
	errSilent    = errors.New("the server answers other requests, but not this one")
	errNotKept   = errors.New("the server does not keep what was applied: something there changes it at once")
)

// ensure makes one object as wanted.
func (p *pass) ensure(ctx context.Context, i *item) error {
	if p.leave(i) {
		return nil
	}
	var err error
	if i.live == nil {
		err = p.create(ctx, i)
	} else {
		err = p.update(ctx, i)
	}
	if err != nil {
		return p.isolate(ctx, i, err)
	}
	return nil
}

// create creates an object that is in the inventory; if there is one already, it is updated.
func (p *pass) create(ctx context.Context, i *item) error {
	err := p.createMarked(ctx, i)
	switch {
	case err == nil:
		p.results.Lock()
		if p.lost[i.Key] {
			p.repairs.add(i.Key, deletedAgain)
		}
		p.results.Unlock()
		p.succeeded(&p.report.Created, i.Key)
		p.a.log.InfoContext(ctx, "created", slog.String("object", i.Key.String()))
		return nil
	case !apierrors.IsConflict(err):
		return fmt.Errorf("create: %w", err)
	}
	live, err := p.a.client.Get(ctx, i.kind, i.Key)
	if object.NotFound(err) {
		return errMeanwhile
	}
	if err != nil {
		return fmt.Errorf("look at what is there: %w", err)
	}
	i.live = live
	if !p.adopt(i.Object, live) {
		p.ledger.forget(i.Key) // the request that would have carried the mark was refused
		p.results.Lock()
		p.foreign[i.Key] = true
		p.results.Unlock()
		if _, paused := p.overridden(i.Key, reconciler.Pause); paused {
			return errMeanwhile // the pause holds for what others have made
		}
	}
	return p.update(ctx, i)
}

// createMarked sends the one request that carries the mark, which creates the object.
func (p *pass) createMarked(ctx context.Context, i *item) error {
	mark := p.ledger.entry(i.Key).Mark
	if mark == "" {
		return errUnknown
	}
	live, err := p.apply(ctx, i, i.Object, api.Apply{Mark: mark, Precondition: object.Precondition{Absent: true}})
	if err != nil {
		return err
	}
	p.adopt(i.Object, live)
	p.put(i, live)
	if i.UpToDate(live) {
		p.results.Lock()
		defer p.results.Unlock()
		p.checked[i.Key] = checkedVersion{version: live.ResourceVersion, hash: i.Hash()}
	}
	return nil
}

// update applies an object over the live one.
func (p *pass) update(ctx context.Context, i *item) error {
	if i.live.DeletionTimestamp != nil {
		return errDeleting
	}
	if i.UpToDate(i.live) || i.CreateOnly() {
		p.saw(i, i.live)
		return nil
	}
	over, err := p.over(ctx, i)
	if err != nil || over == nil {
		return err
	}
	ours := p.adopt(i.Object, i.live)
	apply := p.howToApply(i.Object, i.live, ours)
	live, err := p.apply(ctx, i, over, apply)
	switch {
	case err == nil:
		p.put(i, live)
		if !i.UpToDate(live) { // applying it again and again would not help
			i.version = live.ResourceVersion
			p.results.Lock()
			defer p.results.Unlock()
			delete(p.checked, i.Key) // it is as nobody wants it
			return errNotKept
		}
		p.results.Lock()
		drift := p.drifted(i)
		p.checked[i.Key] = checkedVersion{version: live.ResourceVersion, hash: i.Hash()}
		if drift {
			p.repairs.add(i.Key, changedAgain)
			if p.repairs[i.Key].n == 1 { // who goes on editing has been told
				p.tellLocked(i.Object, i.live, eventTakenBack, takenBack(i.Object))
			}
		}
		p.results.Unlock()
		p.succeeded(&p.report.Updated, i.Key)
		p.a.log.InfoContext(ctx, "updated",
			slog.String("object", i.Key.String()), slog.Bool("drift", drift), slog.Bool("forced", apply.Force))
		return nil
	case apierrors.IsConflict(err):
		return conflict(err)
	case wrong(err):
		return p.recreate(ctx, i, ours, err)
	}
	return fmt.Errorf("apply: %w", err)
}

// takenBack says that an edit was taken back, and what to do instead.
func takenBack(o *object.Object) string {
	if o.Need != object.Nobody {
		return "somebody else has changed fields that the release names, and no manifest can change: put what it lacks into an object of your own"
	}
	return "somebody else has changed fields that the manifest names: change the manifest instead"
}

// over returns the object as it is to be applied over the live one. If it ignores fields, what they
// are now has to be looked at; then the live one is what was seen. Nil: it is as wanted after all.
func (p *pass) over(ctx context.Context, i *item) (*object.Object, error) {
	if !i.Ignores() {
		return i.Object, nil
	}
	whole, err := p.a.client.GetWhole(ctx, i.kind, i.Key)
	if object.NotFound(err) {
		return nil, errMeanwhile
	}
	if err != nil {
		return nil, fmt.Errorf("look at what is there: %w", err)
	}
	i.live = meta.AsPartialObjectMetadata(whole)
	i.live.SetGroupVersionKind(whole.GroupVersionKind())
	if i.live.DeletionTimestamp != nil {
		return nil, errDeleting
	}
	if i.UpToDate(i.live) {
		p.saw(i, i.live)
		return nil, nil
	}
	return i.Over(whole)
}

// howToApply decides whether an apply may take fields from other managers. An edit of an object
// that we created is drift, and so is an edit of one to which we last applied this very
// configuration: the apply takes the fields back. Fields that another manager declares by
// server-side apply, and fields that were there before us, are a conflict, unless people force it.
func (p *pass) howToApply(o *object.Object, live metav1.Object, ours bool) api.Apply {
	apply := api.Apply{Precondition: object.Precondition{UID: string(live.GetUID()), Version: live.GetResourceVersion()}}
	if ours {
		apply.Mark = live.GetAnnotations()[object.Mark]
	}
	_, forced := p.overridden(o.Key, reconciler.Force)
	apply.Force = forced || p.a.options.Force || o.Forced() || (ours || o.LastApplied(live)) && o.DeclaredBy(live) == ""
	return apply
}

// recreate deletes an object and creates it again, because the server refuses to change it although
// it would accept it as a new one.
func (p *pass) recreate(ctx context.Context, i *item, ours bool, why error) error {
	if err := p.a.replaceable(ctx, i, ours, why); err != nil {
		return err
	}
	withdraw := p.ledger.replace(i.Key, i.Need)
	if err := p.writeInventory(ctx); err != nil {
		if notStored(err) {
			withdraw()
		}
		return err
	}
	err := p.delete(ctx, i.kind, i.Key, i.live, i.Need)
	if refused(err) { // else it is gone, or may be
		withdraw()
	}
	switch {
	case apierrors.IsConflict(err):
		return errMeanwhile
	case err != nil && !object.NotFound(err):
		return fmt.Errorf("delete: %w", err)
	}
	i.mirror.Remove(nameOf(i.Key), i.live.UID)
	if err := p.createMarked(ctx, i); err != nil {
		return fmt.Errorf("create again: %w", err)
	}
	p.succeeded(&p.report.Recreated, i.Key)
	p.tell(i.Object, i.live, eventRecreated, "deleted and created again, because a field of it cannot be changed: "+why.Error())
	p.a.log.InfoContext(ctx, "deleted and created again, because a field of it cannot be changed",
		slog.String("object", i.Key.String()), slog.Any("refused", why))
	return nil
}

// refused reports whether the server has refused a request, and so has done nothing. After an
// answer that tells of a fault of its own, or of its backend's, it may have done it all the same.
func refused(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && !object.NotFound(err) && status.Status().Code < http.StatusInternalServerError
}

// replaceable returns nil if an object that cannot be changed may be replaced. What others have put
// into it would be lost, so that a person has to say what becomes of it. API servers do not wait
// for that: what they need holds nothing of others but labels and annotations.
func (a *Applier) replaceable(ctx context.Context, i *item, ours bool, why error) error {
	err := a.client.Creatable(ctx, i.kind, i.Object)
	others := i.Others(i.live)
	switch {
	case err != nil && !answered(err):
		return err
	case wrong(err): // as it is, so that is what was refused
		return fmt.Errorf("apply: %w", why)
	case i.Container():
		return fmt.Errorf("%w, and objects of its kind are not deleted for that, because that deletes what others have put into them: %w", errImmutable, why)
	case !i.Replaceable():
		return fmt.Errorf("%w, and objects of its kind are not deleted for that: %w", errImmutable, why)
	case !ours:
		return fmt.Errorf("%w, and it is not deleted, because it was not created by us: %w", errImmutable, why)
	case len(others) > 0 && i.Need != object.Required:
		return fmt.Errorf("%w, and it is not deleted, because that would delete fields of others with it: %s: "+
			"take them away, or save them and delete it yourself; what was refused is %w", errImmutable, inShort(others), why)
	case err != nil:
		return fmt.Errorf("%w, and it is not deleted, because it could not be created again: %w; what was refused is %w", errImmutable, err, why)
	}
	return nil
}

// byWebhook is what the server puts before whatever a webhook says that denies a request.
const byWebhook = `admission webhook "`

// wrong reports whether the server itself finds a field of an object wrong. Who denies it by a
// policy may call it invalid, too, and a webhook may even name fields. Nothing but the text tells
// that then.
func wrong(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsInvalid(err) && errors.As(err, &status) && status.Status().Details != nil &&
		!strings.HasPrefix(status.Status().Message, byWebhook) &&
		slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field != "" })
}

// mostFields is how many fields a failure names.
const mostFields = 20

// inShort names fields, but not each of very many.
func inShort(fields []string) string {
	if more := len(fields) - mostFields; more > 0 {
		fields = append(slices.Clone(fields[:mostFields]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(fields, "; ")
}

// conflict names the fields and who has them.
func conflict(err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		var fields []string
		for _, cause := range status.Status().Details.Causes {
			if cause.Type == metav1.CauseTypeFieldManagerConflict {
				fields = append(fields, cause.Field+": "+cause.Message)
			}
		}
		if len(fields) > 0 {
			return fmt.Errorf("%w: %s", errConflict, inShort(fields))
		}
	}
	return fmt.Errorf("%w: %w", errMeanwhile, err)
}

// answered reports whether an error is the API server's answer, or ours, and not the lack of one.
func answered(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return true
	}
	for _, known := range []error{errConflict, errMeanwhile, errDeleting, errImmutable, errSilent, errNotKept, errUnknown, inventory.ErrFull, api.ErrNoKind} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
