package reconciler

import (
	"context"
	"time"
)

// Applier makes the program's own resources what its release wants. The service calls it only while
// this process leads, and does not know what the resources are. It must be safe for concurrent use.
// Package engine has one that keeps any objects.
//
// An Applier may also be a Sourcer, a Pauser, a Prober and a Publisher.
type Applier interface {
	// Run runs the watches that Pass and Changed rely on, until ctx ends. The service calls it for
	// each leadership, and again after an error; calls never overlap. Run writes nothing to the
	// cluster.
	Run(ctx context.Context) error
	// Pass compares everything with what is wanted and repairs what differs. One failure does not
	// stop the rest. It returns nil only if, as far as it knows, everything is as wanted; otherwise
	// the error says in one line why not, and the report names each object that failed. API servers
	// wait for Report.Ready, and for nothing else. ctx ends before the leadership can, and Pass sends
	// no request afterwards. Passes never overlap.
	Pass(ctx context.Context) (Report, error)
	// Changed receives when a watch has seen that an object may no longer be as wanted. It is always
	// the same channel, with room for one signal.
	Changed() <-chan struct{}
}

// Report is what a pass found and did.
type Report struct {
	// Objects is how many are wanted.
	Objects int
	// Created, Updated, Recreated and Pruned are what was done. Recreated: deleted and created,
	// because a field cannot be changed.
	Created, Updated, Recreated, Pruned int
	// Paused is how many are left alone because somebody wants that, and are not as wanted.
	Paused int
	// Unhealthy is how many are there, and are not healthy as far as that is known. No API server
	// waits for health.
	Unhealthy int
	// Requests is how many were sent to the API server.
	Requests int
	// Ready tells that everything which an API server of the release needs is as wanted, whatever
	// else has failed. A pass without an error is ready in any case.
	Ready bool
	// Failures names what could not be made as wanted.
	Failures []Failure
}

// Failure is one object, or one source of objects (a manifest), that could not be made what is
// wanted.
type Failure struct {
	// Object names it for people: kind, namespace/name, or file and document.
	Object string
	// Reason is the error in words.
	Reason string
	// Required tells that an API server of the release needs the object, and so has to wait.
	Required bool
}

// Diff is what a pass would change, in the order in which it would.
type Diff struct {
	// Objects is how many are wanted.
	Objects int
	// Changes are the objects that a pass would change.
	Changes []Change
	// Failures names what could not be compared.
	Failures []Failure
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

// Change is one object that a pass would change.
type Change struct {
	Action Action
	// Object names it for people: kind, namespace/name.
	Object string
	// Text is the difference, a line each, with a leading "-", "+" or " ", as a unified diff has it;
	// no header. Secrets' data is not shown.
	Text string
}

// Prober is an Applier that can tell whether its API server answers. With one, a leader whose API
// server does not answer hands over to a candidate whose does.
type Prober interface {
	// Probe asks the API server once, and returns an error in one line if it does not answer before
	// ctx ends, or is not ready.
	Probe(ctx context.Context) error
}

// Sourcer is an Applier that takes what it keeps from files of its node. The service publishes what
// each node's files say, and the Applier asks for consent before it deletes what is no longer in
// them.
type Sourcer interface {
	// Source reads the files. The service calls it at intervals on every node, whether it leads or
	// not.
	Source(ctx context.Context) Source
	// AskConsent is called once, before anything else, with what Pass has to ask.
	AskConsent(ask func(ctx context.Context, own Source) (Consent, error))
}

// Source is what the files of one node say is wanted.
type Source struct {
	// Digest is the same if and only if the same is wanted, however it is spread over files.
	Digest string
	// Objects is how many are wanted, and Faults how many files or documents cannot be read.
	Objects int
	Faults  int
}

// Consent is what others say about deleting what is no longer in the files.
type Consent struct {
	// Agreed tells whether the files of every node of the newest release say the same.
	Agreed Verdict
	// Approved tells that a person has said that what these files say is a decision.
	Approved bool
}

// Pauser is an Applier that can leave objects alone.
type Pauser interface {
	// SetPauses is called before each Pass with all pauses that hold. An object that a pause covers is
	// left as it is. If API servers need it and it is not as wanted, that is a failure; else it is
	// not.
	SetPauses(pauses []Pause)
}

// Pause is a person's word that something is left alone for a while.
type Pause struct {
	// Scope is what is left alone: "all", a kind ("ConfigMap", "Deployment.apps"), or an object
	// ("ConfigMap default/settings").
	Scope string
	// By says who, and Reason why, for people.
	By, Reason string
	// At and Until are when, by the clock of who wrote it, for people.
	At, Until time.Time
}

// Publisher is an Applier that can show in the cluster how things stand, for people who look there.
type Publisher interface {
	// Publish shows a standing together with what the Applier knows of its objects. The service
	// calls it every few seconds while this node leads, and calls never overlap. Nothing is decided
	// from what it shows.
	Publish(ctx context.Context, s Standing) error
}

// Standing is how things stand, as the leader sees it.
type Standing struct {
	// Leader is the name of the node that leads, and Release what it runs.
	Leader  string
	Release Release
	// Status is what is announced, in words.
	Status string
	// Doing says in one clause what the leader does. Blocked is why it waits before it may change
	// anything; empty: it does not.
	Doing, Blocked string
	// PassError is why the last pass did not find everything as wanted; empty: it did.
	PassError string
}
