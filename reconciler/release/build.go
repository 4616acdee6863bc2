package release

import (
	"errors"

	"github.com/ironherd/ironherd/internal/fleet"
)

// The release of this source, and its two minimums. If a change of the base resources breaks the
// API server of an earlier release, raise minAPIServer. If the API server of a release needs base
// resources of a newer one, raise minReconciler. Neither may be above the release itself.
const (
	own           = "v0.1.0"
	minReconciler = "v0.1.0"
	minAPIServer  = "v0.1.0"
)

// Build is the release of a build, and the releases that it is compatible with.
type Build struct {
	// Release of this build: of its base resources, and of the API server that starts beside it.
	Release Release `json:"release"`
	// MinReconciler is the oldest release whose base resources the API server of this build works
	// with.
	MinReconciler Release `json:"minReconciler"`
	// MinAPIServer is the oldest release whose API server works with the base resources of this build.
	MinAPIServer Release `json:"minAPIServer"`
}

// Own returns this build.
func Own() Build {
	return Build{Release: MustParse(own), MinReconciler: MustParse(minReconciler), MinAPIServer: MustParse(minAPIServer)}
}

// Validate reports every fault, as failure.Invalid: each of the three must be set, and no minimum
// above the release.
func (b Build) Validate() error {
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fleet.Errorf(fleet.KindInvalid, format, args...))
	}
	if b.Release.IsZero() {
		fault("the release must be set")
	}
	for name, minimum := range map[string]Release{"reconciler": b.MinReconciler, "API server": b.MinAPIServer} {
		if minimum.IsZero() {
			fault("the minimum %s release must be set", name)
		} else if b.Release.Less(minimum) {
			fault("the minimum %s release %s must not be above the release %s", name, minimum, b.Release)
		}
	}
	return errors.Join(errs...)
}
