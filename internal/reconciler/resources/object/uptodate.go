package object

import (
	"fmt"
	"iter"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// UpToDate reports whether a live object is as wanted. The package comment says how that is told.
func (o *Object) UpToDate(live metav1.Object) bool {
	return live.GetDeletionTimestamp() == nil && o.LastApplied(live) && o.owned(live)
}

// LastApplied reports whether this very configuration is the last that we applied to the live
// object. If it is, whoever owns a field of it now took that field from us afterwards.
func (o *Object) LastApplied(live metav1.Object) bool {
	return live.GetAnnotations()[Applied] == o.hash
}

// owned reports whether each field of the object is ours.
func (o *Object) owned(live metav1.Object) bool {
	ours, err := applied(live)
	return err == nil && ours != nil && !o.some(*ours, misses)
}

// applied returns what we own by server-side apply; nil: nothing.
func applied(live metav1.Object) (*fields, error) {
	for _, entry := range live.GetManagedFields() {
		if entry.Manager == Manager && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == "" {
			return parseFields(entry.FieldsV1)
		}
	}
	return nil, nil
}

// DeclaredBy returns another manager that has declared, by server-side apply, a field that the
// object has too; empty if there is none. An edit is drift, but two declared configurations are a
// conflict that people have to solve.
func (o *Object) DeclaredBy(live metav1.Object) string {
	for _, entry := range live.GetManagedFields() {
		if entry.Manager == Manager || entry.Operation != metav1.ManagedFieldsOperationApply {
			continue
		}
		theirs, err := parseFields(entry.FieldsV1)
		if err != nil || o.some(*theirs, touches) {
			return entry.Manager
		}
	}
	return ""
}

// Others returns the fields of a live object that other managers have and this object does not
// name, or does not compare, and whose they are, for people. Subresources, such as the status, are
// left out.
func (o *Object) Others(live metav1.Object) (all []string) {
	for _, entry := range live.GetManagedFields() {
		if entry.Manager == Manager || entry.Subresource != "" {
			continue
		}
		theirs, err := parseFields(entry.FieldsV1)
		if err != nil {
			all = append(all, fmt.Sprintf("fields of %q", entry.Manager))
			continue
		}
		theirs.parts.Iterate(func(path fieldpath.Path) {
			if _, named := find(o.compared, path); !named {
				all = append(all, fmt.Sprintf("%s of %q", path, entry.Manager))
			}
		})
	}
	return all
}

// fields is what somebody owns of a value: the value itself, parts of it, or both. The zero value
// is nothing.
type fields struct {
	itself bool
	parts  *fieldpath.Set
}

func parseFields(v1 *metav1.FieldsV1) (*fields, error) {
	f := &fields{parts: &fieldpath.Set{}}
	if v1 == nil {
		return f, nil
	}
	return f, f.parts.FromJSON(v1.GetRawReader())
}

// any reports whether anything is owned.
func (f fields) any() bool { return f.itself || f.parts != nil }

// whole reports whether the value is owned as a whole, and not by its parts.
func (f fields) whole() bool { return f.itself && f.parts == nil }

// part returns what is owned of a part.
func (f fields) part(of fieldpath.PathElement) (p fields) {
	if f.parts == nil {
		return p
	}
	p.itself = f.parts.Members.Has(of)
	p.parts, _ = f.parts.Children.Get(of)
	return p
}

func (f fields) field(name string) fields { return f.part(fieldpath.FieldNameElement(name)) }

// items goes through the items of a list of which anything is owned.
func (f fields) items() iter.Seq[fieldpath.PathElement] {
	return func(yield func(fieldpath.PathElement) bool) {
		if f.parts == nil {
			return
		}
		for e := range f.parts.Members.All() {
			if (e.Key != nil || e.Value != nil) && !yield(e) {
				return
			}
		}
		more := true // All panics when a loop over it ends early
		f.parts.Children.Iterate(func(e fieldpath.PathElement) {
			if more && (e.Key != nil || e.Value != nil) && !f.parts.Members.Has(e) {
				more = yield(e)
			}
		})
	}
}

// some reports whether the answer is yes for any top-level field that is compared; those that
// nobody owns are left out.
func (o *Object) some(f fields, ask func(any, fields) bool) bool {
	for name, content := range o.compared {
		switch name {
		case "apiVersion", "kind":
			continue
		case "metadata":
			metadata, owned := content.(map[string]any), f.field("metadata")
			for name, content := range metadata {
				if name == "name" || name == "namespace" {
					continue
				}
				if empty, ok := content.(map[string]any); ok && len(empty) == 0 {
					continue
				}
				if ask(content, owned.field(name)) {
					return true
				}
			}
		default:
			if ask(content, f.field(name)) {
				return true
			}
		}
	}
	return false
}

// misses reports whether any of a value is not owned.
func misses(content any, f fields) bool {
	if f.whole() || !f.any() {
		return !f.whole()
	}
	// two items may look alike to item, when a key of theirs is defaulted
	if list, ok := content.([]any); ok && f.owned() < len(list) {
		return true
	}
	return somePart(content, f, misses)
}

// touches reports whether any of a value is owned.
func touches(content any, f fields) bool {
	return f.whole() || f.any() && somePart(content, f, touches)
}

// somePart reports whether the answer is yes for any part of a value. A value that has no parts is
// asked about itself.
func somePart(content any, f fields, ask func(any, fields) bool) bool {
	switch v := content.(type) {
	case map[string]any:
		for name, field := range v {
			if ask(field, f.field(name)) {
				return true
			}
		}
	case []any:
		for _, item := range v {
			if ask(item, f.item(item)) {
				return true
			}
		}
	default:
		return ask(content, fields{itself: f.itself})
	}
	return false
}

// owned returns of how many items of a list anything is owned.
func (f fields) owned() (n int) {
	for range f.items() {
		n++
	}
	return n
}

// item returns what is owned of an item of a list, which is found by its value or by its keys. A
// key that the item does not have was defaulted.
func (f fields) item(item any) fields {
	object, keyed := item.(map[string]any)
	for e := range f.items() {
		if keyed && e.Key != nil && agrees(object, *e.Key) || !keyed && e.Value != nil && same(item, *e.Value) {
			return f.part(e)
		}
	}
	return fields{}
}

// agrees reports whether an item can be the one that has these keys.
func agrees(item map[string]any, keys value.FieldList) bool {
	named := false
	for _, key := range keys {
		content, ok := item[key.Name]
		if !ok {
			continue
		}
		if !same(content, key.Value) {
			return false
		}
		named = true
	}
	return named
}

// same reports whether two scalars are equal, whoever decoded their numbers.
func same(content any, other value.Value) bool {
	switch content.(type) {
	case map[string]any, []any:
		return false // never the value of a key
	}
	return value.Equals(value.NewValueInterface(content), other)
}
