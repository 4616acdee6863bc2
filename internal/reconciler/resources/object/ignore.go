package object

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// maxIgnored is how many fields an object may be told to ignore.
const maxIgnored = 100

// parsePaths reads the fields of an annotation, one a line or separated by commas. They are written
// as the API server writes them in its answers:
//
//	.spec.replicas
//	.metadata.annotations["example.org/at"]
//	.spec.template.spec.containers[name="app"].image
func parsePaths(text string) ([]fieldpath.Path, error) {
	var paths []fieldpath.Path
	for rest := strings.TrimLeft(text, ", \t\r\n"); rest != ""; rest = strings.TrimLeft(rest, ", \t\r\n") {
		path, after, err := parsePath(rest)
		if err != nil {
			return nil, err
		}
		if after != "" && !strings.ContainsAny(after[:1], ", \t\r\n") {
			return nil, fmt.Errorf("%q does not follow a field: write .spec.replicas, or .data[\"a.b\"]", after)
		}
		if err := ignorable(path); err != nil {
			return nil, err
		}
		if paths, rest = append(paths, path), after; len(paths) > maxIgnored {
			return nil, fmt.Errorf("more than %d fields are too many", maxIgnored)
		}
	}
	return paths, nil
}

// parsePath reads one path at the beginning of a text.
func parsePath(text string) (path fieldpath.Path, rest string, err error) {
	for rest = text; rest != "" && strings.ContainsAny(rest[:1], ".["); {
		if rest[0] == '.' {
			end := strings.IndexAny(rest[1:], ".[, \t\r\n") + 1
			if end == 0 {
				end = len(rest)
			}
			if end == 1 {
				return nil, "", fmt.Errorf("%q begins with an empty name", rest)
			}
			path, rest = append(path, fieldpath.FieldNameElement(rest[1:end])), rest[end:]
			continue
		}
		var element fieldpath.PathElement
		if element, rest, err = parseBracket(rest[1:]); err != nil {
			return nil, "", err
		}
		path = append(path, element)
	}
	if len(path) == 0 {
		return nil, "", fmt.Errorf("%q is no field: it begins with a dot, as .spec.replicas does", text)
	}
	return path, rest, nil
}

// parseBracket reads what is between brackets: a quoted name, or the keys of an item of a list.
func parseBracket(text string) (element fieldpath.PathElement, rest string, err error) {
	if text != "" && text[0] == '"' {
		var name string
		if rest, err = parseValue(text, &name); err != nil || rest == "" || rest[0] != ']' {
			return element, "", fmt.Errorf("%q is no quoted name in brackets", "["+text)
		}
		return fieldpath.FieldNameElement(name), rest[1:], nil
	}
	var keys value.FieldList
	for rest = text; ; {
		name, after, found := strings.Cut(rest, "=")
		var key any
		if found {
			rest, err = parseValue(after, &key)
		}
		if !found || err != nil || name == "" || rest == "" || rest[0] != ',' && rest[0] != ']' {
			return element, "", fmt.Errorf("%q names no item of a list: write [name=\"app\"]", "["+text)
		}
		keys = append(keys, value.Field{Name: name, Value: value.NewValueInterface(key)})
		closed := rest[0] == ']'
		if rest = rest[1:]; closed {
			break
		}
	}
	keys.Sort()
	return fieldpath.PathElement{Key: &keys}, rest, nil
}

// parseValue decodes a JSON scalar at the beginning of a text.
func parseValue(text string, into any) (rest string, err error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	var raw json.RawMessage
	if err := decoder.Decode(&raw); err != nil {
		// what follows a number may keep it from being decoded
		end := strings.IndexAny(text, ",]")
		if end < 0 {
			return "", err
		}
		return text[end:], json.Unmarshal([]byte(text[:end]), into)
	}
	if len(raw) == 0 || raw[0] == '{' || raw[0] == '[' {
		return "", errors.New("it is no scalar")
	}
	return text[decoder.InputOffset():], json.Unmarshal(raw, into)
}

// ignorable returns an error of a path without which an object would not be the same one, or not
// ours.
func ignorable(path fieldpath.Path) error {
	first := path[0].FieldName
	if first == nil || *first == "apiVersion" || *first == "kind" || *first == "metadata" && !ignorableMetadata(path[1:]) {
		return fmt.Errorf("%s cannot be ignored", path)
	}
	return nil
}

func ignorableMetadata(path fieldpath.Path) bool {
	if len(path) < 2 || path[0].FieldName == nil || path[1].FieldName == nil {
		return false
	}
	of, name := *path[0].FieldName, *path[1].FieldName
	return (of == "labels" || of == "annotations") && name != Label && !strings.HasPrefix(name, "ironherd.dev/")
}

// find returns the value at a path.
func find(content any, path fieldpath.Path) (found any, ok bool) {
	for _, element := range path {
		if content, ok = step(content, element); !ok {
			return nil, false
		}
	}
	return content, true
}

func step(content any, element fieldpath.PathElement) (any, bool) {
	switch c := content.(type) {
	case map[string]any:
		if element.FieldName != nil {
			part, ok := c[*element.FieldName]
			return part, ok
		}
	case []any:
		if at := itemAt(c, element); at >= 0 {
			return c[at], true
		}
	}
	return nil, false
}

// itemAt returns the place of the item that has these keys, or is this value; -1 if there is none.
// A manifest may leave out the one key of a built-in list that the API server defaults: the
// protocol of a port.
func itemAt(list []any, element fieldpath.PathElement) int {
	switch {
	case element.Value != nil:
		return slices.IndexFunc(list, func(item any) bool { return same(item, *element.Value) })
	case element.Key == nil:
		return -1
	}
	return slices.IndexFunc(list, func(item any) bool {
		object, ok := item.(map[string]any)
		return ok && !slices.ContainsFunc(*element.Key, func(key value.Field) bool {
			content, there := object[key.Name]
			if !there && key.Name == "protocol" {
				content = "TCP"
			}
			return !same(content, key.Value)
		})
	})
}

// without returns the content without what is at a path. It shares with the original what is not on
// the path.
func without(content any, path fieldpath.Path) any {
	part, ok := step(content, path[0])
	if !ok {
		return content
	}
	var left any
	if len(path) > 1 {
		left = without(part, path[1:])
	}
	switch c := content.(type) {
	case map[string]any:
		c = maps.Clone(c)
		if c[*path[0].FieldName] = left; len(path) == 1 {
			delete(c, *path[0].FieldName)
		}
		return c
	case []any:
		at := itemAt(c, path[0])
		if c = slices.Clone(c); len(path) == 1 {
			return slices.Delete(c, at, at+1)
		}
		c[at] = left
		return c
	}
	return content
}

// Ignores reports whether the object has fields that are nobody's business once it is there.
func (o *Object) Ignores() bool { return len(o.ignored) > 0 }

// Over returns the object as it is to be applied over a live one: what it ignores is as it is
// there. Server-side apply deletes a field that we own and no longer name, so a field that is still
// ours is named, with the value that it has now; any other one is left out.
func (o *Object) Over(live *unstructured.Unstructured) (*Object, error) {
	if !o.Ignores() {
		return o, nil
	}
	ours, err := applied(live)
	if err != nil {
		return nil, fmt.Errorf("what we own of it cannot be read: %w", err)
	}
	content := o.content
	for _, path := range o.ignored {
		if now, there := find(live.Object, path); there && ours != nil && ours.at(path).any() {
			content, _ = with(content, path, runtime.DeepCopyJSONValue(now)).(map[string]any)
			continue
		}
		content, _ = without(content, path).(map[string]any)
	}
	over := *o
	over.content = content
	return &over, nil
}

// at returns what is owned of what is at a path.
func (f fields) at(path fieldpath.Path) fields {
	for _, element := range path {
		if f.whole() {
			return f
		}
		if element.Key != nil {
			f = f.keyed(*element.Key)
			continue
		}
		f = f.part(element)
	}
	return f
}

// keyed returns what is owned of the item that has these keys, and perhaps others.
func (f fields) keyed(keys value.FieldList) fields {
	item := map[string]any{}
	for _, key := range keys {
		item[key.Name] = key.Value.Unstructured()
	}
	return f.item(item)
}

// with returns the content with another value at a path, and with what it lacks on the way to it.
// It does not make an item for a part of one: what has no such item does not want it. It shares
// with the original what is not on the path.
func with(content any, path fieldpath.Path, now any) any {
	if len(path) == 0 {
		return now
	}
	part, has := step(content, path[0])
	if part = with(part, path[1:], now); part == nil {
		return content
	}
	name, whole := path[0].FieldName, len(path) == 1
	switch c := content.(type) {
	case map[string]any:
		if name != nil {
			c = maps.Clone(c)
			c[*name] = part
		}
		return c
	case []any:
		c = slices.Clone(c)
		if has {
			c[itemAt(c, path[0])] = part
		} else if name == nil && whole {
			c = append(c, part)
		}
		return c
	case nil:
		if name != nil {
			return map[string]any{*name: part}
		}
		if whole {
			return []any{part}
		}
	}
	return content
}
