package object

import (
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// UpToDate reports whether a live object is as wanted. The package comment says how that is told.
func (o *Object) UpToDate(live metav1.Object) bool {
	return live.GetDeletionTimestamp() == nil && live.GetAnnotations()[Applied] == o.hash && o.owned(live)
}

// LastApplied reports whether this very configuration is the last that we applied to the live
// object. If it is, whoever owns a field of it now took that field from us afterwards.
func (o *Object) LastApplied(live metav1.Object) bool {
	return live.GetAnnotations()[Applied] == o.hash
}

// owned reports whether each field of the object is ours.
func (o *Object) owned(live metav1.Object) bool {
	for _, entry := range live.GetManagedFields() {
		if entry.Manager != Manager || entry.Operation != metav1.ManagedFieldsOperationApply || entry.Subresource != "" {
			continue
		}
		owned, err := parseFields(entry.FieldsV1)
		return err == nil && o.each(owned, covers, all)
	}
	return false
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
		if err != nil || o.each(theirs, touches, some) {
			return entry.Manager
		}
	}
	return ""
}

// fields is FieldsV1 decoded: "f:name" is a field, `k:{…}` an item of a list by its keys, `v:…` one
// by its value, "." the thing itself. No children: the whole of it is owned.
type fields map[string]fields

func parseFields(v1 *metav1.FieldsV1) (fields, error) {
	var f fields
	if v1 == nil {
		return nil, nil
	}
	err := json.Unmarshal(v1.GetRawBytes(), &f)
	return f, err
}

// quantifier says when a question about parts is answered: at the first part that answers like
// this.
type quantifier bool

const (
	all  quantifier = false // one "no" is the answer
	some quantifier = true  // one "yes" is the answer
)

// each asks about every top-level field; those that nobody owns are left out.
func (o *Object) each(f fields, ask func(any, fields, bool) bool, until quantifier) bool {
	for name, value := range o.content {
		switch name {
		case "apiVersion", "kind":
			continue
		case "metadata":
			metadata, owned := value.(map[string]any), f["f:metadata"]
			for field, value := range metadata {
				if field == "name" || field == "namespace" {
					continue
				}
				if empty, ok := value.(map[string]any); ok && len(empty) == 0 {
					continue
				}
				part, found := owned["f:"+field]
				if ask(value, part, found) == bool(until) {
					return bool(until)
				}
			}
		default:
			part, found := f["f:"+name]
			if ask(value, part, found) == bool(until) {
				return bool(until)
			}
		}
	}
	return !bool(until)
}

// covers reports whether all of a value is owned.
func covers(value any, f fields, found bool) bool {
	return found && (len(f) == 0 || parts(value, f, covers, all))
}

// touches reports whether any of a value is owned.
func touches(value any, f fields, found bool) bool {
	return found && (len(f) == 0 || parts(value, f, touches, some))
}

// parts asks about the parts of a value.
func parts(value any, f fields, ask func(any, fields, bool) bool, until quantifier) bool {
	switch v := value.(type) {
	case map[string]any:
		for name, field := range v {
			part, found := f["f:"+name]
			if ask(field, part, found) == bool(until) {
				return bool(until)
			}
		}
	case []any:
		// two items may look alike to item, when a key of theirs is defaulted
		if until == all && f.items() < len(v) {
			return false
		}
		for _, item := range v {
			part, found := f.item(item)
			if ask(item, part, found) == bool(until) {
				return bool(until)
			}
		}
	default:
		_, itself := f["."]
		return itself
	}
	return !bool(until)
}

// items returns how many items of a list are in f.
func (f fields) items() int {
	n := 0
	for name := range f {
		if strings.HasPrefix(name, "k:") || strings.HasPrefix(name, "v:") {
			n++
		}
	}
	return n
}

// item finds an item of a list, by its value or by its keys. A key that the item does not have was
// defaulted.
func (f fields) item(item any) (fields, bool) {
	object, keyed := item.(map[string]any)
	for name, part := range f {
		text, isKey := strings.CutPrefix(name, "k:")
		if isKey != keyed {
			continue
		}
		if !keyed {
			text = strings.TrimPrefix(name, "v:")
		}
		var is any
		if json.Unmarshal([]byte(text), &is) != nil {
			continue
		}
		if keys, ok := is.(map[string]any); keyed && ok && agrees(object, keys) || !keyed && number(is) == number(item) {
			return part, true
		}
	}
	return nil, false
}

// agrees reports whether an item can be the one that has these keys.
func agrees(item, keys map[string]any) bool {
	named := false
	for name, key := range keys {
		value, ok := item[name]
		if !ok {
			continue
		}
		if number(value) != number(key) {
			return false
		}
		named = true
	}
	return named
}

// number makes the numbers of two decoders comparable.
func number(v any) any {
	switch n := v.(type) {
	case int64:
		return float64(n)
	case map[string]any, []any:
		return nil // never the value of a key
	}
	return v
}
