package reconciler

import "context"

// Applier makes a cluster's base resources what this release wants. The service calls it only while
// this process leads, and does not know what the resources are. Safe for concurrent use.
type Applier interface {
	// Run runs the watches that Pass and Changed rely on, until ctx ends. The service calls it for
	// each leadership, and again after an error; calls never overlap. Run writes nothing to the
	// cluster.
	Run(ctx context.Context) error
	// Pass compares everything with what is wanted and repairs what differs, in order. One failure
	// does not stop the rest. Pass waits until the watches of Run are in step. It returns nil only
	// if, as far as it knows, everything is as wanted. Otherwise the error says in one line why
	// not, and the report names each object that failed. With nothing to do, Pass makes no request.
	// API servers wait for Report.Ready, and for nothing else.
	//
	// ctx ends before the leadership can, and Pass sends no request afterwards. A pass that ended
	// like that may have left anything undone. Passes never overlap.
	Pass(ctx context.Context) (Report, error)
	// Changed receives when a watch has seen that an object may no longer be as wanted. The service
	// then calls Pass at once. The channel has room for one signal, so that sending never waits. It
	// is always the same channel.
	Changed() <-chan struct{}
}

// Planner tells what a pass would change.
type Planner interface {
	// Plan decides as a pass does, reads what it needs, and writes nothing. It needs neither Run nor
	// leadership. What earlier passes remember, it does not know.
	Plan(ctx context.Context) (Diff, error)
}

// Prober is an Applier that can tell whether it can use its API server. With one, a leader that
// cannot hands over to a candidate that can.
type Prober interface {
	// Probe asks the API server once, and returns an error in one line if it does not answer before
	// ctx ends, is not ready, or rejects our credentials.
	Probe(ctx context.Context) error
}

// Staged is an Applier that makes what API servers need as wanted first, and then the rest, so that
// they need not wait for the rest.
type Staged interface {
	// OnReady is called once, before anything else. Pass calls ready with its context, at most once,
	// when everything that API servers need is as wanted and the rest is still to be done. It does
	// nothing until ready has returned, and ends with the error if there is one.
	OnReady(ready func(ctx context.Context) error)
}

// Report is what a pass found and did.
type Report struct {
	// Objects is how many are wanted.
	Objects int `json:"objects"`
	// What was done. Recreated: deleted under a precondition and created, because a field cannot
	// change.
	Created   int `json:"created"`
	Updated   int `json:"updated"`
	Recreated int `json:"recreated"`
	Pruned    int `json:"pruned"`
	// Paused is how many are left alone because somebody wants that, and are not as wanted.
	Paused int `json:"paused,omitempty"`
	// Unhealthy is how many are there, and are not healthy as far as that is known. Nothing waits
	// for health but objects that depend on others.
	Unhealthy int `json:"unhealthy,omitempty"`
	// Deleting are the objects that are no longer wanted and that finalizers hold, as the last pass
	// found that went to its end.
	Deleting []Deletion `json:"deleting,omitempty"`
	// Unrecorded is how many wanted objects say themselves that the applier has created them, while
	// its records do not have them as they are, as the last pass found that went to its end. So it
	// will not delete them when they are no longer wanted. That is no failure.
	Unrecorded int `json:"unrecorded,omitempty"`
	// Requests is how many were sent to the API server.
	Requests int `json:"requests"`
	// Ready tells that everything which an API server of the release needs is as wanted, whatever
	// else has failed. A pass without an error is ready in any case.
	Ready    bool      `json:"ready"`
	Failures []Failure `json:"failures,omitempty"`
}

// add adds what was done before in the same pass.
func (r *Report) add(before Report) {
	r.Created += before.Created
	r.Updated += before.Updated
	r.Recreated += before.Recreated
	r.Pruned += before.Pruned
	r.Requests += before.Requests
}

// Failure is one object, or one source of objects (a manifest), that could not be made what is
// wanted, or that others undo again and again, even if it is as wanted at the moment.
type Failure struct {
	// Object names it for people: kind, namespace/name, or file and document.
	Object string `json:"object"`
	// Reason is the error in words.
	Reason string `json:"reason"`
	// Required tells that an API server of the release needs the object, and so has to wait.
	Required bool `json:"required,omitempty"`
}

// Diff is what a pass would change, in the order in which it would.
type Diff struct {
	// Objects is how many are wanted.
	Objects int `json:"objects"`
	// Changes are in the order in which a pass makes them. One that has a reason in Held is not made
	// now.
	Changes  []Change  `json:"changes"`
	Failures []Failure `json:"failures,omitempty"`
	// Deleting are the objects that are no longer wanted, are being deleted already, and are held by
	// their finalizers.
	Deleting []Deletion `json:"deleting,omitempty"`
	// Approve is the digest of the manifests whose approval (see Approve) makes a pass do what it
	// holds back because so much is no longer in them. Empty: nothing waits for an approval.
	Approve string `json:"approve,omitempty"`
}

// Action is what is done to an object.
type Action string

// The actions.
const (
	Create   Action = "create"
	Update   Action = "update"
	Recreate Action = "recreate"
	Prune    Action = "prune"
)

// Change is one object that a pass would change, or would if nothing held it back.
type Change struct {
	Action Action `json:"action"`
	// Held says why a pass does not do it now; empty: it does.
	Held string `json:"held,omitempty"`
	// Object names it for people: kind, namespace/name.
	Object string `json:"object"`
	// Text is the difference, a line each, with a leading "-", "+" or " ", as a unified diff has
	// it; no header. Secrets' data is not shown.
	Text string `json:"text,omitempty"`
}
