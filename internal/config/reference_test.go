package config_test

import (
	"bytes"
	"encoding"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider/builtin"
)

var update = flag.Bool("update", false, "write what is generated")

//go:generate go test -run TestReferenceIsCurrent . -update

const referenceFile = "../../docs/reference/config.md"

// TestReferenceIsCurrent writes down every key with its default and with the comment that it has in
// the source.
func TestReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	r := reference{t: t, comments: map[string]map[string]string{}}
	r.out.WriteString("<!-- Generated from the source by `make generate`; do not edit. -->\n# Configuration\n\n" + introduction)
	r.section("", reflect.ValueOf(config.Default()))
	if *update {
		if err := os.WriteFile(referenceFile, r.out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(referenceFile)
	if err != nil || !bytes.Equal(have, r.out.Bytes()) {
		t.Errorf("%s is not what the source says (%v): run `go generate ./internal/config`", referenceFile, err)
	}
}

// TestRequiredKeysAreMarked: what an empty section is told to set is required in the reference, and
// nothing else is.
func TestRequiredKeysAreMarked(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "ironherd")
	file := program + ".yaml"
	content := "images: [{}]\nproviders: [{}"
	for _, kind := range builtin.Kinds() {
		content += ", {name: " + kind.Name + ", kind: " + kind.Name + "}"
	}
	for path, text := range map[string]string{file: content + "]\n", filepath.Join(filepath.Dir(program), config.AgentName): ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := config.Load(config.Sources{File: file, Executable: program})
	told, ok := errors.AsType[config.Faults](err)
	if !ok {
		t.Fatalf("loading gave %v", err)
	}
	var demanded []string
	// Another key can stand in for these.
	choices := []string{"images[].digest", "providers[].static.path"}
	for _, fault := range told {
		if key := regexp.MustCompile(`\[\d+\]`).ReplaceAllString(fault.Key, "[]"); !slices.Contains(choices, key) {
			demanded = append(demanded, key)
		}
	}
	text, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	section, marked := "", []string(nil)
	for line := range strings.Lines(string(text)) {
		if name := regexp.MustCompile("^## `(.*)`$").FindStringSubmatch(strings.TrimSpace(line)); name != nil {
			section = name[1] + "."
		}
		if name := regexp.MustCompile("^\\| `(.*)` \\| required \\|").FindStringSubmatch(line); name != nil {
			marked = append(marked, section+name[1])
		}
	}
	slices.Sort(demanded)
	slices.Sort(marked)
	if demanded = slices.Compact(demanded); !slices.Equal(demanded, marked) || len(marked) == 0 {
		t.Errorf("required are %q, marked %q\n%s", demanded, marked, told)
	}
}

const introduction = "One YAML file, over it the environment, over that flags. `ironherd config check FILE` reports every fault at once.\n\n" +
	"A key is set from the environment by its path in capitals, `IRONHERD_SESSION_LEASE` for `session.lease`, and from the\n" +
	"command line by `--set session.lease=10s`; keys of `images` and `providers` only in the file.\n" +
	"A list is written with commas there, without brackets: `IRONHERD_ROLES=janitor,operator-api`. No section is set so: `IRONHERD_DATABASE_URL`, not `IRONHERD_DATABASE`. File names in it are relative to its\n" +
	"directory, those of the environment and of flags to the working directory. Durations have a unit (`500ms`, `30s`, `1h30m`). A rate is a duration and a number, `250ms,8`: a bucket of eight,\n" +
	"refilled by one every 250 ms.\n"

type reference struct {
	t        *testing.T
	out      bytes.Buffer
	comments map[string]map[string]string // directory → "Type.Field" → comment
}

// section writes a table of the keys of a section, then its sections.
func (r *reference) section(path string, value reflect.Value) {
	type sub struct {
		path  string
		value reflect.Value
		doc   string
	}
	var subs []sub
	var rows strings.Builder
	for _, k := range keysOf(value) {
		name, v, text := key(k.field), k.value, r.inKeys(r.comment(k.owner, k.field.Name), k.owner)
		inner := strings.TrimPrefix(path+"."+name, ".")
		if text == "" {
			r.t.Errorf("%s (%s.%s) has no comment", inner, k.owner, k.field.Name)
		}
		if element, listed := section(v); element.IsValid() {
			if listed {
				inner += "[]"
			}
			subs = append(subs, sub{inner, element, text})
			continue
		}
		value := standard(v)
		if rest, must := strings.CutSuffix(text, " Required."); must {
			value, text = "required", rest
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", name, value, strings.ReplaceAll(text, "|", "\\|"))
	}
	if rows.Len() > 0 {
		r.out.WriteString("\n| key | default | meaning |\n|---|---|---|\n" + rows.String())
	}
	for _, s := range subs {
		fmt.Fprintf(&r.out, "\n## `%s`\n\n%s\n", s.path, s.doc)
		r.section(s.path, s.value)
	}
}

// keyed is a field that a key sets, with the type that declares it.
type keyed struct {
	owner reflect.Type
	field reflect.StructField
	value reflect.Value
}

// keysOf lists the keys of a section; those of an inlined one stand in its place.
func keysOf(value reflect.Value) []keyed {
	var keys []keyed
	for i := range value.NumField() {
		f := value.Type().Field(i)
		switch {
		case f.Anonymous:
			keys = append(keys, keysOf(value.Field(i))...)
		case key(f) != "-":
			keys = append(keys, keyed{value.Type(), f, value.Field(i)})
		}
	}
	return keys
}

// section returns the section that a value is, or is a list of.
func section(v reflect.Value) (element reflect.Value, listed bool) {
	switch {
	case v.Kind() == reflect.Pointer && v.Type().Elem().Kind() == reflect.Struct:
		return reflect.New(v.Type().Elem()).Elem(), false
	case v.Type() == reflect.TypeFor[[]config.Provider]():
		return reflect.ValueOf(config.NewProvider("", "")), true
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		element, _ := section(reflect.Zero(v.Type().Elem()))
		return element, true
	case v.Kind() == reflect.Struct:
		if _, ok := v.Interface().(encoding.TextMarshaler); !ok {
			return v, false
		}
	}
	return reflect.Value{}, false
}

func standard(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return "`" + short(x) + "`"
	case encoding.TextMarshaler:
		text, _ := x.MarshalText()
		return "`" + string(text) + "`"
	case []fleet.Role:
		return "all: `" + elements(v, "`, `") + "`"
	}
	if v.Kind() == reflect.Slice {
		return "`[" + elements(v, ", ") + "]`"
	}
	if text := fmt.Sprint(v.Interface()); text != "" && text != "0" || v.CanInt() {
		return "`" + text + "`"
	}
	return "–"
}

func elements(list reflect.Value, between string) string {
	texts := make([]string, list.Len())
	for i := range texts {
		texts[i] = fmt.Sprint(list.Index(i).Interface())
	}
	return strings.Join(texts, between)
}

// short leaves out the zeros that time.Duration writes: 1h, not 1h0m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// key mirrors the rule of the loader.
func key(f reflect.StructField) string {
	for _, tag := range []string{"yaml", "json"} {
		if name, _, _ := strings.Cut(f.Tag.Get(tag), ","); name != "" {
			return name
		}
	}
	return strings.ToLower(f.Name)
}

// comment returns what the source says of a field: its own comment, else that of the field above
// it, which then speaks of both.
func (r *reference) comment(t reflect.Type, field string) string {
	directory := filepath.Join("../..", strings.TrimPrefix(t.PkgPath(), "github.com/ironherd/ironherd/"))
	if r.comments[directory] == nil {
		r.comments[directory] = r.parse(directory)
	}
	return r.comments[directory][t.Name()+"."+field]
}

func (r *reference) parse(directory string) map[string]string {
	found := map[string]string{}
	files, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			r.t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			fields, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			above := "" // a comment that names the field below speaks of both
			for _, f := range fields.Fields.List {
				for _, name := range f.Names {
					text := oneLine(f.Doc.Text())
					if text == "" && word(name.Name).MatchString(above) {
						text = above
					}
					above = text
					found[spec.Name.Name+"."+name.Name] = text
				}
			}
			return true
		})
	}
	return found
}

func word(name string) *regexp.Regexp { return regexp.MustCompile(`\b` + name + `\b`) }

// inKeys replaces the names of fields by those of keys: at the beginning, where the comment speaks
// of that field, too, and where a name cannot be an ordinary word.
func (r *reference) inKeys(text string, t reflect.Type) string {
	comment := text
	speaksOf := func(f reflect.StructField) bool { return !f.Anonymous && r.comment(t, f.Name) == comment }
	for i := range t.NumField() {
		f := t.Field(i)
		rest, begins := strings.CutPrefix(text, f.Name+" ")
		if begins {
			text = "`" + key(f) + "` " + rest
		}
		if strings.Contains(key(f), "_") || !begins && speaksOf(f) {
			text = word(f.Name).ReplaceAllString(text, "`"+key(f)+"`")
		}
	}
	return text
}

func oneLine(text string) string {
	var p comment.Parser
	plain := string((&comment.Printer{TextWidth: -1}).Text(p.Parse(text)))
	return strings.Join(strings.Fields(plain), " ")
}
