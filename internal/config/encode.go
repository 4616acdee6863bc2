package config

import (
	"bytes"
	"encoding"
	"fmt"
	"path/filepath"
	"reflect"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

// Encode returns the configuration as a file that Load reads, with the keys that differ from the
// defaults. The comment, which may be empty, goes to its head.
func Encode(c Config, comment string) ([]byte, error) {
	c.unresolve()
	tree, err := encodeStruct(reflect.ValueOf(c), reflect.ValueOf(Default()))
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	tree.HeadComment = comment
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(tree); err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	return out.Bytes(), encoder.Close()
}

// unresolve clears what Resolve has filled in.
func (c *Config) unresolve() {
	for _, own := range c.ownPaths() {
		if *own.path == filepath.Join(c.Dir, own.name) {
			*own.path = ""
		}
	}
	if c.Initializer.Endpoint == c.AgentAPI.Endpoint {
		c.Initializer.Endpoint = ""
	}
	if c.Initializer.EndpointCA == c.AgentAPI.TLS.CACertificate {
		c.Initializer.EndpointCA = ""
	}
}

// encodeStruct returns a mapping of the keys whose values differ from those of defaults.
func encodeStruct(value, defaults reflect.Value) (*yaml.Node, error) {
	tree := &yaml.Node{Kind: yaml.MappingNode}
	for _, f := range fieldsOf(value.Type()) {
		v, d := value.FieldByIndex(f.index), defaults.FieldByIndex(f.index)
		if reflect.DeepEqual(v.Interface(), d.Interface()) {
			continue
		}
		node, err := encodeValue(v, d)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		if node.Kind != yaml.MappingNode || len(node.Content) > 0 {
			tree.Content = append(tree.Content, scalar("!!str", f.name), node)
		}
	}
	return tree, nil
}

func encodeValue(value, defaults reflect.Value) (*yaml.Node, error) {
	if marshaler, ok := value.Interface().(encoding.TextMarshaler); ok {
		text, err := marshaler.MarshalText()
		return scalar("!!str", string(text)), err
	}
	switch {
	case value.Type() == reflect.TypeFor[time.Duration]():
		return scalar("!!str", value.Interface().(time.Duration).String()), nil
	case value.Kind() == reflect.Struct:
		return encodeStruct(value, defaults)
	case value.Kind() == reflect.Pointer:
		if value.IsNil() {
			return scalar("!!null", "null"), nil
		}
		return encodeValue(value.Elem(), reflect.New(value.Type().Elem()).Elem())
	case value.Kind() == reflect.Slice:
		return encodeSlice(value)
	}
	return scalarOf(value), nil
}

func encodeSlice(value reflect.Value) (*yaml.Node, error) {
	tree := &yaml.Node{Kind: yaml.SequenceNode}
	for i := range value.Len() {
		defaults := reflect.New(value.Type().Elem())
		if d, ok := defaults.Interface().(defaulter); ok {
			d.setDefaults()
		}
		node, err := encodeValue(value.Index(i), defaults.Elem())
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		tree.Content = append(tree.Content, node)
	}
	return tree, nil
}

func scalarOf(value reflect.Value) *yaml.Node {
	switch {
	case value.Kind() == reflect.Bool:
		return scalar("!!bool", strconv.FormatBool(value.Bool()))
	case value.CanInt():
		return scalar("!!int", strconv.FormatInt(value.Int(), 10))
	case value.CanUint():
		return scalar("!!int", strconv.FormatUint(value.Uint(), 10))
	case value.CanFloat():
		return scalar("!!float", strconv.FormatFloat(value.Float(), 'g', -1, 64))
	}
	return scalar("!!str", value.String())
}

func scalar(tag, value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
}
