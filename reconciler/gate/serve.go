package gate

import "github.com/ironherd/ironherd/reconciler/release"

// Own is this node's own record, as it was read together with the status: at one revision,
// linearizably.
type Own struct {
	// Found: there is one. Readable: it could be read.
	Found, Readable bool
	// Controller: it has the Kubernetes controller role.
	Controller bool
	Release    release.Release
	// Admitted: Serve has said yes before, and the record has named the same release ever since.
	Admitted bool
}

// Serve says whether an API server of this build may start serving. The record comes first: only a
// leader that has to reckon with us may be trusted not to take the resources away from under us.
// Who was admitted stays so while its record stands and the status tells nothing: whoever writes
// the next one has to reckon with that record.
func Serve(build release.Build, own Own, observed Observed) Verdict {
	status := observed.Status
	switch {
	case !own.Found:
		return no("this node is not registered")
	case !own.Readable:
		return no("the record of this node cannot be read: register it again")
	case !own.Controller:
		return no("this node is registered without the Kubernetes controller role")
	case own.Release != build.Release:
		return no("this node is registered with release %s, but this is %s", own.Release, build.Release)
	case !observed.Found:
		return no("the base resources have never been reconciled: there is no status")
	case own.Admitted && unknown(observed):
		return yes("release %s was admitted, and its record has stood since; the status cannot be read, or stands for one that could not", build.Release)
	case observed.Unreadable != "":
		return no("the status cannot be read: %s", observed.Unreadable)
	case build.Release.Less(status.MinimumCompatible):
		return no("our release %s is below the minimum compatible release %s of the status", build.Release, status.MinimumCompatible)
	case status.Version.Less(build.MinReconciler):
		return no("the status's version %s is below %s, which our API server needs", status.Version, build.MinReconciler)
	}
	return yes("release %s is admitted by the status (%s)", build.Release, status)
}
