// Package object is one object that the cluster should have, and the question whether a live one is
// as wanted.
//
// An Object is a manifest brought into one shape: what only a server can say is gone (status, UIDs,
// managed fields), nulls are gone, our label is in. It never changes after New. Its hash stands for
// all of its content.
//
// # Is it as wanted?
//
// Values are not compared. A server defaults, converts and rounds what it is given, admission
// changes it, and another release of the server does so differently: whoever compares values writes
// for ever. Two things are asked instead, of the metadata alone:
//
//   - the annotation Applied holds the hash of the very configuration that is wanted now: it
//     travels in each apply, so that it is there if and only if that configuration was the last
//     that we applied;
//   - each field of it is still ours in managedFields. Whoever changes a value takes the field from
//     us (that is how the server records it), whoever removes one takes it from everybody, and
//     whoever wipes managedFields takes all.
//
// So every change of anything that we want is seen, what others add beside it is not touched, and
// what the server makes of our values is its business. What is not seen: somebody who changes a
// value and forges managedFields in the same request.
package object

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// What we write on objects, and who we are to the server.
const (
	// Manager is our field manager.
	Manager = "ironherd-reconciler"
	// Label is on everything that we apply; watches select by it. It proves nothing: anybody can
	// write it.
	Label = "ironherd.dev/reconciled"
	// Applied is the annotation that holds the hash of what was applied.
	Applied = "ironherd.dev/applied"
	// Mark is the annotation that the request which created the object wrote, and only that one
	// could. See package inventory.
	Mark = "ironherd.dev/created-by"
	// BuiltIn is the annotation on the release's own objects, for people. Its value is the object's
	// Need. Nothing is decided from it: anybody can write it.
	BuiltIn = "ironherd.dev/built-in"
	// Prune is the annotation by which people keep an object: NeverPrune says that it is not
	// deleted when it is no longer wanted. It counts on the live object, whoever wrote it, and in a
	// manifest.
	Prune      = "ironherd.dev/prune"
	NeverPrune = "never"
	// Apply is the annotation in a manifest that says how the object is applied: CreateOnly, which
	// leaves it alone once it is there, or Force, which takes fields from other managers.
	Apply      = "ironherd.dev/apply"
	CreateOnly = "create-only"
	Force      = "force"
	// DependsOn is the annotation in a manifest that names the objects which must be as wanted and
	// healthy before this one is applied. HealthyWhen holds the expression that says when this one
	// is healthy (package health).
	DependsOn   = "ironherd.dev/depends-on"
	HealthyWhen = "ironherd.dev/healthy-when"
	// IgnoreFields is the annotation in a manifest that names fields which count only when the
	// object is created. Afterwards they are whoever's sets them.
	IgnoreFields = "ironherd.dev/ignore-fields"
	// Description is the annotation in which Kubernetes keeps what an object is for, in words.
	Description = "kubernetes.io/description"
)

// Need says who needs an object.
type Need string

// The needs.
const (
	// Nobody of the release: the object comes from a manifest.
	Nobody Need = ""
	// Optional is an object that the release offers. API servers work without it.
	Optional Need = "optional"
	// Required is an object without which an API server of the release must not serve.
	Required Need = "required"
)

// Key names an object across versions of its kind.
type Key struct {
	Group, Kind, Namespace, Name string
}

// String is for people: kind, namespace/name.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Kind + " " + k.Name
	}
	return k.Kind + " " + k.Namespace + "/" + k.Name
}

// Object is one object as it is wanted. It never changes.
type Object struct {
	Key
	// Version of the API that the content is written in.
	Version string
	// Source says where it comes from, for people.
	Source string
	// Need of the release for it.
	Need Need

	content map[string]any
	// compared is the content without what is ignored.
	compared    map[string]any
	ignored     []fieldpath.Path
	hash        string
	apply       string
	neverPruned bool
	dependsOn   []Reference
	healthyWhen string
}

// Title names the object for people, and says where it comes from.
func (o *Object) Title() string { return o.Key.String() + " (" + o.Source + ")" }

// New brings a manifest into shape. The content must be as JSON is decoded; it becomes the object's
// own. What only the release's own objects carry is taken out.
func New(content map[string]any, source string) (*Object, error) {
	return NewBuiltIn(content, source, Nobody)
}

// NewBuiltIn is New for an object of the release itself.
func NewBuiltIn(content map[string]any, source string, need Need) (*Object, error) {
	o := &Object{Source: source, Need: need, content: content}
	apiVersion, _ := content["apiVersion"].(string)
	o.Kind, _ = content["kind"].(string)
	metadata, _ := content["metadata"].(map[string]any)
	o.Name, _ = metadata["name"].(string)
	o.Namespace, _ = metadata["namespace"].(string)
	for _, field := range []string{"name", "namespace"} {
		if _, text := metadata[field].(string); metadata[field] != nil && !text {
			return nil, fmt.Errorf("%s: metadata.%s must be text, not %v: quote it", o.Kind, field, metadata[field])
		}
	}
	group, version, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		group, version = "", apiVersion
	}
	o.Group, o.Version = group, version
	switch {
	case content["apiVersion"] == nil:
		return nil, errors.New("it has no apiVersion")
	case apiVersion == "" || version == "" || strings.Contains(version, "/"):
		return nil, fmt.Errorf("apiVersion %q is not one", apiVersion)
	case o.Kind == "":
		return nil, errors.New("it has no kind")
	case metadata["name"] == nil:
		return nil, fmt.Errorf("%s: metadata.name must be set", o.Kind)
	case !word(o.Name) || o.Name == "." || o.Name == "..":
		return nil, fmt.Errorf("%s: metadata.name %q is not one", o.Kind, o.Name)
	case !word(o.Kind) || !word(group+"x") || !word(version) || !word(o.Namespace+"x") || strings.Contains(o.Kind, "."):
		return nil, fmt.Errorf("%s: its kind %q, version %q or namespace %q cannot be", o.Name, o.Kind, apiVersion, o.Namespace)
	}
	if err := o.shape(metadata); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Key, err)
	}
	text, err := json.Marshal(o.content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Key, err)
	}
	o.compared = o.content
	for _, path := range o.ignored {
		o.compared, _ = without(o.compared, path).(map[string]any)
	}
	sum := sha256.Sum256(text)
	o.hash = hex.EncodeToString(sum[:16])
	return o, nil
}

// word reports whether a text can be part of a request's path and of a line of text.
func word(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r == '/' || r == '%' || !unicode.IsGraphic(r) || unicode.IsSpace(r) })
}

// shape takes out what only the server can say, and puts in our label.
func (o *Object) shape(metadata map[string]any) error {
	delete(o.content, "status")
	for _, field := range []string{
		"creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generateName", "generation", "managedFields",
		"resourceVersion", "selfLink", "uid",
	} {
		delete(metadata, field)
	}
	if o.Group == "" && o.Kind == "Secret" {
		if err := encodeStringData(o.content); err != nil {
			return err
		}
		if err := checkSecret(o.content, metadata); err != nil {
			return err
		}
	}
	dropNulls(o.content)
	labels, err := child(metadata, "labels")
	if err != nil {
		return err
	}
	labels[Label] = "true"
	annotations, err := child(metadata, "annotations")
	if err != nil {
		return err
	}
	delete(annotations, Applied)
	delete(annotations, Mark)
	delete(annotations, BuiltIn)
	if o.Need != Nobody {
		annotations[BuiltIn] = string(o.Need)
	}
	for name, values := range map[string][]string{Prune: {NeverPrune}, Apply: {CreateOnly, Force}} {
		if value, given := annotations[name]; given && !slices.Contains(values, fmt.Sprint(value)) {
			return fmt.Errorf("the annotation %s may be %s", name, strings.Join(values, " or "))
		}
	}
	o.apply, _ = annotations[Apply].(string)
	o.neverPruned = annotations[Prune] != nil // it has one value
	return o.readAnnotations(annotations)
}

// readAnnotations reads those of our annotations that are more than a word.
func (o *Object) readAnnotations(annotations map[string]any) error {
	text := map[string]string{}
	for _, name := range []string{DependsOn, HealthyWhen, IgnoreFields} {
		value, ok := annotations[name].(string)
		if !ok && annotations[name] != nil {
			return fmt.Errorf("the annotation %s must be text: quote it", name)
		}
		text[name] = value
	}
	if text[DependsOn] != "" && o.Need != Nobody {
		return fmt.Errorf("the annotation %s is for manifests: what the release needs waits for nothing", DependsOn)
	}
	var err error
	if o.dependsOn, err = parseReferences(text[DependsOn]); err != nil {
		return fmt.Errorf("the annotation %s: %w", DependsOn, err)
	}
	if o.ignored, err = parsePaths(text[IgnoreFields]); err != nil {
		return fmt.Errorf("the annotation %s: %w", IgnoreFields, err)
	}
	o.healthyWhen = text[HealthyWhen]
	return nil
}

// child returns the object under a name, which is made if it is not there.
func child(parent map[string]any, name string) (map[string]any, error) {
	if parent[name] == nil {
		parent[name] = map[string]any{}
	}
	m, ok := parent[name].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s is no map", name)
	}
	return m, nil
}

// encodeStringData does what the server does with a field that can only be written: as such nobody
// could ever own it.
func encodeStringData(secret map[string]any) error {
	if secret["stringData"] == nil {
		return nil
	}
	plain, err := child(secret, "stringData")
	if err != nil {
		return err
	}
	data, err := child(secret, "data")
	if err != nil {
		return err
	}
	for key, value := range plain {
		text, ok := value.(string)
		if !ok {
			return fmt.Errorf("stringData: %s is no text", key)
		}
		data[key] = base64.StdEncoding.EncodeToString([]byte(text))
	}
	delete(secret, "stringData")
	return nil
}

// checkSecret finds what a server would refuse with an answer that quotes it. The errors name keys
// and no values, because they go where everybody looks.
func checkSecret(secret, metadata map[string]any) error {
	if _, ok := secret["type"].(string); !ok && secret["type"] != nil {
		return errors.New("type is no text")
	}
	if _, ok := secret["immutable"].(bool); !ok && secret["immutable"] != nil {
		return errors.New("immutable is neither true nor false")
	}
	if secret["data"] != nil {
		data, err := child(secret, "data")
		if err != nil {
			return err
		}
		for key, value := range data {
			text, ok := value.(string)
			if !ok && value != nil {
				return fmt.Errorf("data: %s is no text: quote it", key)
			}
			if _, err := base64.StdEncoding.DecodeString(text); err != nil {
				return fmt.Errorf("data: %s is no base64: give plain text in stringData", key)
			}
		}
	}
	for _, field := range []string{"annotations", "labels"} {
		if metadata[field] == nil {
			continue
		}
		values, err := child(metadata, field)
		if err != nil {
			return err
		}
		for key, value := range values {
			if _, ok := value.(string); !ok && value != nil {
				return fmt.Errorf("metadata.%s: %s is no text: quote it", field, key)
			}
		}
	}
	return nil
}

// dropNulls removes fields without a value: to apply a null is to own nothing.
func dropNulls(value any) {
	switch v := value.(type) {
	case map[string]any:
		maps.DeleteFunc(v, func(_ string, field any) bool { return field == nil })
		for _, field := range v {
			dropNulls(field)
		}
	case []any:
		for _, item := range v {
			dropNulls(item)
		}
	}
}

// CreateOnly reports whether the object is left alone once it is there.
func (o *Object) CreateOnly() bool { return o.apply == CreateOnly }

// Forced reports whether fields are taken from other managers.
func (o *Object) Forced() bool { return o.apply == Force }

// NeverPruned reports whether the object is not deleted when it is no longer wanted.
func (o *Object) NeverPruned() bool { return o.neverPruned }

// Hash stands for all of the content.
func (o *Object) Hash() string { return o.hash }

// Precondition is what must be so for an apply to be accepted.
type Precondition struct {
	// UID of the object that must exist, and Version (its resourceVersion) that it must still have.
	UID, Version string
	// Absent: no such object may exist. It is asked for by a resourceVersion that no object can
	// have (1 is the empty store's): with an object there the server compares and refuses; without,
	// it has nothing to compare with.
	Absent bool
}

// Body is what is sent to apply the object. The mark is empty unless we created it, or are about
// to.
func (o *Object) Body(mark string, p Precondition) ([]byte, error) {
	body, err := json.Marshal(o.With(mark, p))
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", o.Key, err)
	}
	return body, nil
}

// With is Body before it is encoded: shared with the object, and not to be changed.
func (o *Object) With(mark string, p Precondition) map[string]any {
	content := maps.Clone(o.content)
	metadata := maps.Clone(content["metadata"].(map[string]any))
	annotations := maps.Clone(metadata["annotations"].(map[string]any))
	annotations[Applied] = o.hash
	if mark != "" {
		annotations[Mark] = mark
	}
	if p.UID != "" {
		metadata["uid"] = p.UID
	}
	if p.Version != "" {
		metadata["resourceVersion"] = p.Version
	}
	if p.Absent {
		metadata["resourceVersion"] = "1"
	}
	metadata["annotations"], content["metadata"] = annotations, metadata
	return content
}
