package node

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/release"
)

// Controller is the role of the nodes that run an API server. The gate counts only those. A node
// may have other roles; they mean nothing here.
const Controller = "kubernetes-controller"

// Record is what a node says of itself.
type Record struct {
	Roles []string `json:"roles"`
	// Release of the API server that may run there. The node records it before the API server
	// starts, and keeps it as long as that may run.
	Release release.Release `json:"release"`
	// Source is what the node's files say is wanted. Nil: the node has not said, as nodes before
	// this field was known.
	Source *Source `json:"source,omitempty"`
}

// Source is what the files of a node say is wanted, besides what the release wants. Two nodes whose
// sources are equal and Whole want the same.
type Source struct {
	// Digest of all objects in the files, whatever the files are called.
	Digest string `json:"digest"`
	// Objects is how many there are.
	Objects int `json:"objects"`
	// Faults is how many files or documents cannot be read. What they have is not in the digest.
	Faults int `json:"faults,omitempty"`
	// Own is what the release itself brings, as it is set on the node. No consent depends on it.
	Own Own `json:"own,omitzero"`
}

// Own is what a reconciler keeps of its own release.
type Own struct {
	// Release of the reconciler. In an upgrade that of the API server is another one for a while.
	Release release.Release `json:"release,omitzero"`
	// Digest of those objects. Empty: the node has not said.
	Digest string `json:"digest,omitempty"`
}

// Whole tells that everything could be read.
func (s Source) Whole() bool { return s.Faults == 0 }

// Controller reports whether the node has the role Controller.
func (r Record) Controller() bool { return slices.Contains(r.Roles, Controller) }

func (r Record) same(other Record) bool {
	return r.Release == other.Release && slices.Equal(r.Roles, other.Roles)
}

const recordLimit = 4 << 10

// Parse reads a stored record. Fields that it does not know are ignored. Anything else that is not
// as expected is failure.Invalid.
func Parse(text []byte) (Record, error) {
	var r Record
	if len(text) > recordLimit {
		return Record{}, fleet.Errorf(fleet.KindInvalid, "the record has %d bytes, more than %d", len(text), recordLimit)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return Record{}, fleet.Errorf(fleet.KindInvalid, "the record cannot be read: %w", err)
	}
	switch {
	case r.Roles == nil:
		return Record{}, fleet.Errorf(fleet.KindInvalid, "the record has no roles")
	case r.Release.IsZero():
		return Record{}, fleet.Errorf(fleet.KindInvalid, "the record has no release")
	}
	return r, nil
}

func (r Record) encode() ([]byte, error) {
	if r.Roles == nil {
		r.Roles = []string{}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the record of a node: %w", err)
	}
	return text, nil
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

// CheckName returns failure.Invalid unless it can be the name of a node: what Kubernetes allows.
func CheckName(name string) error {
	if !nameForm.MatchString(name) {
		return fleet.Errorf(fleet.KindInvalid, "%q cannot be the name of a node: lower case letters, digits, dots and hyphens", name)
	}
	return nil
}
