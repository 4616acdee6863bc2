package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// defaulter is implemented by list elements that have defaults.
type defaulter interface{ setDefaults() }

// decode fills value from a node. Where a node is wrong, it records a fault and leaves the default.
func (d *document) decode(n *yaml.Node, key string, value reflect.Value) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if _, placed := d.places[key]; !placed {
		d.places[key] = d.placeOf(n)
	}
	if isNull(n) {
		return
	}
	if unmarshaler, ok := value.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.decodeText(n, key, unmarshaler)
		return
	}
	switch value.Kind() {
	case reflect.Struct:
		d.decodeStruct(n, key, value)
	case reflect.Slice:
		d.decodeSlice(n, key, value)
	case reflect.Pointer:
		element := reflect.New(value.Type().Elem())
		d.decode(n, key, element.Elem())
		value.Set(element)
	default:
		d.decodeScalar(n, key, value)
	}
}

func (d *document) decodeText(n *yaml.Node, key string, value encoding.TextUnmarshaler) {
	if n.Kind != yaml.ScalarNode {
		d.fault(n, key, "a single value is expected, not %s", kindName(n))
		return
	}
	if err := value.UnmarshalText([]byte(n.Value)); err != nil {
		d.fault(n, key, "%s", err)
	}
}

func (d *document) decodeStruct(n *yaml.Node, key string, value reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.fault(n, key, "a section with %s is expected, not %s", enumerate(names(fieldsOf(value.Type()))), kindName(n))
		return
	}
	fields := fieldsOf(value.Type())
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, child := n.Content[i], n.Content[i+1]
		path := join(key, name.Value)
		if line, twice := seen[name.Value]; twice {
			d.fault(name, path, "is given twice, first in line %d: keep one of them", line)
			continue
		}
		seen[name.Value] = name.Line
		field, ok := find(fields, name.Value)
		if !ok {
			d.fault(name, path, "there is no such key%s", suggest(name.Value, names(fields), 2, ": the keys here are "+enumerate(names(fields))))
			continue
		}
		d.places[path] = d.placeOf(name)
		if _, decided := d.blank[path]; !decided { // see override
			d.blank[path] = isBlank(child)
		}
		d.decode(child, path, value.FieldByIndex(field.index))
	}
}

func (d *document) decodeSlice(n *yaml.Node, key string, value reflect.Value) {
	elements := n.Content
	switch {
	case n.Kind == yaml.ScalarNode && d.origins[n] != "":
		// The value is from a variable or a flag, where commas separate the elements.
		elements = nil
		for part := range strings.SplitSeq(n.Value, ",") {
			if part = strings.TrimSpace(part); part != "" {
				element := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: absoluteFile(key+"[0]", part)}
				d.origins[element] = d.origins[n]
				elements = append(elements, element)
			}
		}
	case n.Kind != yaml.SequenceNode:
		d.fault(n, key, "a list is expected, not %s: put each entry on a line of its own, after a hyphen", kindName(n))
		return
	}
	list := reflect.MakeSlice(value.Type(), len(elements), len(elements))
	for i, element := range elements {
		if target, ok := list.Index(i).Addr().Interface().(defaulter); ok {
			target.setDefaults()
		}
		d.decode(element, fmt.Sprintf("%s[%d]", key, i), list.Index(i))
	}
	value.Set(list)
}

func (d *document) decodeScalar(n *yaml.Node, key string, value reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		d.fault(n, key, "a single value is expected, not %s", kindName(n))
		return
	}
	text := strings.TrimSpace(n.Value)
	switch {
	case value.Type() == reflect.TypeFor[time.Duration]():
		duration, err := time.ParseDuration(text)
		if err != nil {
			d.fault(n, key, "%q is not a duration: write a number with its unit, such as 500ms, 30s or 1h30m", text)
			return
		}
		value.SetInt(int64(duration))
	case value.Kind() == reflect.String:
		value.SetString(n.Value)
	case value.Kind() == reflect.Bool:
		on, err := strconv.ParseBool(text)
		if err != nil || len(text) == 1 {
			d.fault(n, key, "%q is neither true nor false", text)
			return
		}
		value.SetBool(on)
	case value.CanInt():
		number, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, value.Type().Bits())
		if err != nil {
			d.fault(n, key, "%q is not a whole number", text)
			return
		}
		value.SetInt(number)
	case value.CanUint():
		number, err := strconv.ParseUint(strings.ReplaceAll(text, "_", ""), 10, value.Type().Bits())
		if err != nil {
			d.fault(n, key, "%q is not a whole number of at least 0", text)
			return
		}
		value.SetUint(number)
	case value.CanFloat():
		number, err := strconv.ParseFloat(text, 64)
		if err != nil || number != number {
			d.fault(n, key, "%q is not a number", text)
			return
		}
		value.SetFloat(number)
	default:
		panic(fmt.Sprintf("configuration key %s has type %s, which cannot be decoded", key, value.Type()))
	}
}

func join(section, key string) string {
	if section == "" {
		return key
	}
	return section + "." + key
}
