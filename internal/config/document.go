package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document is a configuration before it has types: the nodes of the file, some of them replaced
// from the environment and the flags. It knows where each came from, and collects faults.
type document struct {
	file    string
	sources Sources
	root    *yaml.Node
	// origins says where the nodes come from that are not from the file.
	origins map[*yaml.Node]string
	// places has where each key is that was read.
	places map[string]place
	// blank are those of them that were given with nothing in them; what isSet is asked for has its
	// default then.
	blank  map[string]bool
	faults []Fault
}

// place is where a key is: a line of the file, or a variable or flag.
type place struct {
	source string
	line   int
}

// newDocument parses the content of a file. The name may be empty when there is no file.
func newDocument(file string, content []byte) *document {
	d := &document{file: file, origins: map[*yaml.Node]string{}, places: map[string]place{}, blank: map[string]bool{}}
	parsed := d.parse(content)
	switch {
	case isEmpty(&parsed):
		d.root = &yaml.Node{Kind: yaml.MappingNode, Line: 1}
	case parsed.Content[0].Kind != yaml.MappingNode:
		d.fault(parsed.Content[0], "", "the file must hold keys and values, such as \"dir: /var/lib/ironherd\", not %s", kindName(parsed.Content[0]))
		d.root = &yaml.Node{Kind: yaml.MappingNode, Line: 1}
	default:
		d.root = parsed.Content[0]
		expandDatabase(d.root)
	}
	d.places[""] = place{file, 1}
	return d
}

// parse returns the one document of a file. Another one behind it is a fault: nothing of it would
// count.
func (d *document) parse(content []byte) (first yaml.Node) {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	into := &first
	for n := 0; ; n++ {
		err := decoder.Decode(into)
		switch {
		case errors.Is(err, io.EOF):
			return first
		case err != nil:
			d.syntaxFault(content, err)
			return first
		case n > 0 && !isEmpty(into):
			d.fault(into, "", "another YAML document begins here, of which nothing would count: move its keys into the first one, and remove the line ---")
			return first
		}
		into = &yaml.Node{}
	}
}

// isEmpty reports whether a document has nothing that could count.
func isEmpty(document *yaml.Node) bool {
	return len(document.Content) == 0 || isNull(document.Content[0])
}

var syntaxError = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// syntaxFault takes the line out of the parser's message, because the library has no type for it.
func (d *document) syntaxFault(content []byte, err error) {
	fault := Fault{Source: d.file, Problem: "this is not valid YAML: " + err.Error()}
	if m := syntaxError.FindStringSubmatch(err.Error()); m != nil {
		fault.Line, _ = strconv.Atoi(m[1])
		fault.Problem = "this is not valid YAML: " + m[2]
	}
	switch {
	case strings.Contains(fault.Problem, "unknown anchor"): // the parser quotes the value
		fault.Problem = "this is not valid YAML: a value that begins with * must be in quotes"
	case strings.Contains(fault.Problem, "cannot start any token") && tabFrom(content, fault.Line) == max(fault.Line, 1),
		strings.Contains(fault.Problem, "found a tab character"): // in the line that is named, or below
		fault.Line = tabFrom(content, fault.Line)
		fault.Problem = "this is not valid YAML: indent with spaces, not tabs"
	}
	d.faults = append(d.faults, fault)
}

// tabFrom returns the first line from that one on whose indentation has a tab, or 0. The first line
// of all has number 1; the parser has none for it.
func tabFrom(content []byte, line int) int {
	for n, text := range bytes.Split(content, []byte("\n")) {
		indentation := text[:len(text)-len(bytes.TrimLeft(text, " \t"))]
		if n+1 >= line && bytes.ContainsRune(indentation, '\t') {
			return n + 1
		}
	}
	return 0
}

func (d *document) placeOf(n *yaml.Node) place {
	if origin, ok := d.origins[n]; ok {
		return place{source: origin}
	}
	return place{d.file, n.Line}
}

// fault records a fault at a node. The format continues the key.
func (d *document) fault(n *yaml.Node, key, format string, args ...any) {
	d.faultAt(d.placeOf(n), key, format, args...)
}

func (d *document) faultAt(at place, key, format string, args ...any) {
	problem := fmt.Sprintf(format, args...)
	if key != "" {
		problem = key + ": " + problem
	}
	d.faults = append(d.faults, Fault{Source: at.source, Line: at.line, Key: key, Problem: problem})
}

// nearest returns the place of the key, or of the innermost section around it that was given.
func (d *document) nearest(key string) place {
	for {
		if at, ok := d.places[key]; ok {
			return at
		}
		cut := strings.LastIndexAny(key, ".[")
		if cut < 0 {
			return d.places[""]
		}
		key = key[:cut]
	}
}

// isSet reports whether the key was given anywhere, with something in it.
func (d *document) isSet(key string) bool {
	_, ok := d.places[key]
	return ok && !d.blank[key]
}

// sorted returns the faults in the order of the file; those of variables and flags come last.
func (d *document) sorted() Faults {
	slices.SortStableFunc(d.faults, func(a, b Fault) int {
		if in := func(f Fault) bool { return f.Source == d.file }; in(a) != in(b) {
			if in(a) {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Line, b.Line)
	})
	return slices.Compact(d.faults)
}

// override sets a key to a value, as if the file had it. Paths lead through sections only, not
// through lists.
func (d *document) override(path, value, origin string) {
	node := d.root
	steps := strings.Split(path, ".")
	for i, step := range steps {
		var child *yaml.Node
		at := -1
		for k := 0; k+1 < len(node.Content); k += 2 {
			if node.Content[k].Value == step {
				at, child = k+1, node.Content[k+1]
			}
		}
		last := i == len(steps)-1
		switch {
		case last:
			if child != nil && !isBlank(child) { // whoever takes a value away wants no other one made
				d.blank[path] = false
			}
			child = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
		case child != nil && child.Kind == yaml.AliasNode && child.Alias.Kind == yaml.MappingNode:
			copied := *child.Alias // other references to it keep their values
			copied.Content = slices.Clone(copied.Content)
			child = &copied
		case child == nil || isNull(child):
			child = &yaml.Node{Kind: yaml.MappingNode}
			d.origins[child] = origin
		case child.Kind != yaml.MappingNode:
			return // decoding will report the fault of the file
		}
		name := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: step}
		d.origins[name] = origin
		switch {
		case at < 0:
			node.Content = append(node.Content, name, child)
		case last: // its faults are not of the file's line
			node.Content[at-1], node.Content[at] = name, child
		default:
			node.Content[at] = child
		}
		if last {
			d.origins[child] = origin
		}
		node = child
	}
}

// isBlank reports whether a value has nothing in it, as that of a variable which is set to nothing.
func isBlank(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return isNull(n) || n.Kind == yaml.ScalarNode && n.Value == ""
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// kindName says what a node is, without its value: a file, or a URL, that stands where it does not
// belong may be a secret.
func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a section"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}
