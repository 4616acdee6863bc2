package release

import (
	"errors"

	"github.com/ironherd/ironherd/internal/fleet"
)

// What this source is, and what it gets on with. Whoever changes the base resources such that an
// API server of an earlier release no longer works with them raises the second minimum; whoever
// makes the API server of a release need what only newer base resources give raises the first.
// Neither may ever be above the release itself.
const (
	own           = "v0.1.0"
	minReconciler = "v0.1.0"
	minAPIServer  = "v0.1.0"
)

// Build is what a build is and what it gets on with.
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

// Validate reports every fault, as KindInvalid: each of the three must be set, and no minimum above
// the release.
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
