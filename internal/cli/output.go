package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// format is the value of -o.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
)

func (f *format) String() string { return string(*f) }

func (f *format) Type() string { return "format" }

func (f *format) Set(s string) error {
	switch format(s) {
	case formatTable, formatJSON, formatYAML:
		*f = format(s)
		return nil
	}
	return fmt.Errorf("use table, json or yaml")
}

// outputFlag adds -o to a command.
func outputFlag(cmd *cobra.Command) *format {
	f := formatTable
	cmd.Flags().VarP(&f, "output", "o", "how to print: table, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	return &f
}

// print writes a value to standard output: as a table by the given function, else in full. The
// value is a message, or anything that can be encoded as YAML.
func (a *app) print(f format, value any, table func(w *screen)) error {
	var out bytes.Buffer
	switch f {
	case formatJSON, formatYAML:
		if err := encode(&out, f, value); err != nil {
			return err
		}
	default:
		table(&screen{out: &out, color: a.env.StdoutTerminal && a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb"})
	}
	return a.write(out.Bytes())
}

// say prints what was done: in a sentence, else the value in full.
func (a *app) say(f format, value any, sentence string, args ...any) error {
	return a.print(f, value, func(w *screen) { w.line(sentence, args...) })
}

// sayOne prints one line of an answer that is long in coming, so that what was done is told when it
// was. In full, the answer comes at its end, from inFull.
func (a *app) sayOne(f format, sentence string, args ...any) error {
	if f != formatTable {
		return nil
	}
	return a.say(f, nil, sentence, args...)
}

// inFull prints a value of which sayOne has printed the lines.
func (a *app) inFull(f format, value any) error {
	if f == formatTable {
		return nil
	}
	return a.print(f, value, nil)
}

func (a *app) write(out []byte) error {
	if _, err := a.env.Stdout.Write(out); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// encode appends a value in full.
func encode(out *bytes.Buffer, f format, value any) error {
	tree, err := treeOf(value)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	if f == formatJSON {
		writeJSON(out, tree, "")
		out.WriteByte('\n')
		return nil
	}
	encoder := yaml.NewEncoder(out)
	encoder.SetIndent(2)
	if err := encoder.Encode(tree); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	return nil
}

func treeOf(value any) (*yaml.Node, error) {
	if m, ok := value.(proto.Message); ok {
		return messageTree(m.ProtoReflect()), nil
	}
	var node yaml.Node
	if err := node.Encode(value); err != nil {
		return nil, err
	}
	return &node, nil
}

// messageTree returns the JSON form of a message, in the order of its fields. It differs from
// protojson in that whole numbers are numbers, durations are such as "1m30s", and enums are short.
// Fields without presence are always there.
func messageTree(m protoreflect.Message) *yaml.Node {
	switch v := m.Interface().(type) {
	case *timestamppb.Timestamp:
		return text(v.AsTime().Format(time.RFC3339Nano))
	case *durationpb.Duration:
		return text(v.AsDuration().String())
	}
	tree := &yaml.Node{Kind: yaml.MappingNode}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if field.HasPresence() && !m.Has(field) {
			continue
		}
		tree.Content = append(tree.Content, text(field.JSONName()), fieldTree(field, m.Get(field)))
	}
	return tree
}

func fieldTree(field protoreflect.FieldDescriptor, v protoreflect.Value) *yaml.Node {
	if !field.IsList() {
		return valueTree(field, v)
	}
	list := v.List()
	tree := &yaml.Node{Kind: yaml.SequenceNode}
	for i := range list.Len() {
		tree.Content = append(tree.Content, valueTree(field, list.Get(i)))
	}
	return tree
}

func valueTree(field protoreflect.FieldDescriptor, v protoreflect.Value) *yaml.Node {
	switch field.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return messageTree(v.Message())
	case protoreflect.EnumKind:
		return text(enumName(field.Enum(), v.Enum()))
	case protoreflect.BytesKind:
		return text(base64.StdEncoding.EncodeToString(v.Bytes()))
	case protoreflect.StringKind:
		return text(v.String())
	case protoreflect.BoolKind:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(v.Bool())}
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!float", Value: strconv.FormatFloat(v.Float(), 'g', -1, 64)}
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: v.String()}
}

// enumName turns COMPRESSION_ZSTD into zstd, and the unspecified value into nothing.
func enumName(enum protoreflect.EnumDescriptor, number protoreflect.EnumNumber) string {
	value := enum.Values().ByNumber(number)
	if value == nil {
		return strconv.Itoa(int(number))
	}
	if number == 0 {
		return ""
	}
	unspecified := string(enum.Values().Get(0).Name())
	common := strings.TrimSuffix(unspecified, "UNSPECIFIED")
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(string(value.Name()), common), "_", "-"))
}

func text(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
}

func writeJSON(w *bytes.Buffer, n *yaml.Node, indent string) {
	inner := indent + "  "
	switch {
	case n.Kind == yaml.MappingNode && len(n.Content) == 0:
		w.WriteString("{}")
	case n.Kind == yaml.MappingNode:
		w.WriteString("{\n")
		for i := 0; i+1 < len(n.Content); i += 2 {
			writeSeparator(w, i > 0, inner)
			writeJSONString(w, n.Content[i].Value)
			w.WriteString(": ")
			writeJSON(w, n.Content[i+1], inner)
		}
		w.WriteString("\n" + indent + "}")
	case n.Kind == yaml.SequenceNode && len(n.Content) == 0:
		w.WriteString("[]")
	case n.Kind == yaml.SequenceNode:
		w.WriteString("[\n")
		for i, element := range n.Content {
			writeSeparator(w, i > 0, inner)
			writeJSON(w, element, inner)
		}
		w.WriteString("\n" + indent + "]")
	default:
		writeJSONScalar(w, n)
	}
}

func writeJSONScalar(w *bytes.Buffer, n *yaml.Node) {
	switch n.ShortTag() {
	case "!!int", "!!float", "!!bool", "!!null": // they are written alike in both
		w.WriteString(n.Value)
	case "!!binary": // a string that is no UTF-8, in base64
		raw, _ := base64.StdEncoding.DecodeString(n.Value) // the package yaml has encoded it
		writeJSONString(w, string(raw))
	default:
		writeJSONString(w, n.Value)
	}
}

func writeSeparator(w *bytes.Buffer, more bool, indent string) {
	if more {
		w.WriteString(",\n")
	}
	w.WriteString(indent)
}

// writeJSONString writes a string, also the control characters in it that JSON allows as they are,
// by escapes: they could control a terminal. JSON cannot have bytes that are no UTF-8: U+FFFD
// stands for each.
func writeJSONString(w *bytes.Buffer, s string) {
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(s) // a string always can be
	for _, r := range strings.TrimSuffix(encoded.String(), "\n") {
		if unicode.IsControl(r) {
			fmt.Fprintf(w, `\u%04x`, r)
			continue
		}
		w.WriteRune(r)
	}
}
