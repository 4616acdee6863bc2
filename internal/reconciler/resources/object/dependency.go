package object

import (
	"fmt"
	"strings"
)

// maxDependencies is how many objects one may depend on.
const maxDependencies = 100

// Reference names an object as people write it: "ConfigMap default/settings", "Deployment.apps
// default/db", "ClusterRole ironherd:owner". Without a group it is of any.
type Reference struct {
	Group, Kind, Namespace, Name string
}

// Names reports whether the reference is of an object.
func (r Reference) Names(k Key) bool {
	return r.Kind == k.Kind && (r.Group == "" || r.Group == k.Group) && r.Namespace == k.Namespace && r.Name == k.Name
}

// String is what people write.
func (r Reference) String() string {
	kind := r.Kind
	if r.Group != "" {
		kind += "." + r.Group
	}
	return Key{Kind: kind, Namespace: r.Namespace, Name: r.Name}.String()
}

// parseReferences reads references, one a line or separated by commas.
func parseReferences(text string) ([]Reference, error) {
	var references []Reference
	for _, one := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' }) {
		words := strings.Fields(one)
		if len(words) == 0 {
			continue
		}
		var r Reference
		if len(words) == 2 {
			r.Kind, r.Group, _ = strings.Cut(words[0], ".")
			r.Name = words[1]
			if namespace, name, namespaced := strings.Cut(words[1], "/"); namespaced {
				r.Namespace, r.Name = namespace, name
				if !word(namespace) {
					r.Name = "" // it is no name then
				}
			}
		}
		if !word(r.Kind) || !word(r.Name) {
			return nil, fmt.Errorf("%q names no object: write Deployment default/db, or ClusterRole reader", strings.TrimSpace(one))
		}
		references = append(references, r)
	}
	if len(references) > maxDependencies {
		return nil, fmt.Errorf("more than %d objects are too many", maxDependencies)
	}
	return references, nil
}

// DependsOn returns the objects that must be as wanted, and healthy, before this one is applied.
func (o *Object) DependsOn() []Reference { return o.dependsOn }

// HealthyWhen is the expression that tells whether the live object is healthy; empty: there is
// none. It was not checked.
func (o *Object) HealthyWhen() string { return o.healthyWhen }
