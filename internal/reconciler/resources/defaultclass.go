package resources

import (
	"context"
	"log/slog"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/builtin"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// chooseDefault makes the class that is to be the default one that is not, while another class is
// the default. Two defaults would leave it to chance which one a claim gets, and the other one was
// somebody's decision.
func (p *pass) chooseDefault(ctx context.Context) error {
	contested := p.a.release.contested
	if contested == nil {
		return nil
	}
	if p.classes == nil || p.classes.Ended() {
		m, err := p.startMirror(ctx, api.StorageClass, "")
		if err != nil {
			return err
		}
		p.classes = m
	}
	if err := p.classes.Await(ctx); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// Whether it may be the default is not known, so it is left as it is. API servers need not wait.
		p.want.leave(contested)
		p.stillFailing(ctx, contested, nil, "the storage classes cannot be followed: "+err.Error())
		return nil
	}
	other := otherDefault(p.classes.All(), contested)
	if other == "" {
		delete(p.logged, "default")
		return nil
	}
	p.want.replace(p.a.release.yielding)
	if p.firstTime("default") {
		p.a.log.InfoContext(ctx, "our storage class is not made the default, because another one is",
			slog.String("class", contested.Name), slog.String("default", other))
	}
	return nil
}

// otherDefault names a class that is the default and is not ours; empty if there is none.
func otherDefault(classes []*metav1.PartialObjectMetadata, ours *object.Object) string {
	for _, class := range classes {
		isDefault := class.Annotations[builtin.DefaultAnnotation] == "true" || class.Annotations[builtin.DefaultAnnotationBeta] == "true"
		if isDefault && class.Name != ours.Name {
			return class.Name
		}
	}
	return ""
}
