// Package manifest reads objects from a directory of files that people write: YAML with any number
// of documents, JSON with any number of values, Lists of either.
//
// A document that cannot be read is a fault that names file and document, and does not keep the
// others from being read. Callers must look at the faults: an object that is missing from the
// answer may be in a document that could not be read.
//
// Links to files are followed, and the directory itself may be a link. A link to a directory within
// it is a fault: what was a directory there until now must not seem to have become empty. So is
// whatever is neither file, directory nor link; it is not opened.
//
// A file may be read while somebody writes it, and a copy may end before the file does: on a full
// disk, say. What is cut off at the end of a line is often good YAML. So a new text counts when it
// has not changed for a while, and a text that shows that it was cut off is a fault. Until a file
// has a text that counts, it has the objects of its last one that did.
//
// A disk may hang, as that of a network does whose server is gone. A reading does not wait for it.
package manifest

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	yamlv2 "go.yaml.in/yaml/v2"
	kyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// maxFile is how large a file may be.
const maxFile = 16 << 20

// Fault is a file or document that could not be read. Which objects it has is unknown.
type Fault struct {
	// Source is the file, with the number of the document where that is known.
	Source string
	Err    error
}

// file is what counts of a file, and the digest of its bytes.
type file struct {
	sum     [sha256.Size]byte
	objects []*object.Object
	faults  []Fault
	// next is the digest of the text that was read last, if that does not count yet, and since is
	// when it had been read for the first time.
	next  [sha256.Size]byte
	since time.Time
	// differs is since when no text that was read counts.
	differs time.Time
}

// look reads the directory. Files whose bytes are the same as last time are not parsed again.
// Hidden files and directories are left out, and files that are neither .yaml, .yml nor .json. What
// cannot be read has what it had before, and so has all that was below it.
func (d *Directory) look() (r Reading) {
	known := map[string]file{}
	fault := func(name string, err error) error { //nolint:unparam // what a walk goes on with
		r.Faults = append(r.Faults, Fault{Source: name, Err: err})
		for at, f := range d.known {
			if at == name || name == d.path || strings.HasPrefix(at, name+"/") {
				known[at] = f
			}
		}
		return nil // the others are read all the same
	}
	root, err := filepath.EvalSymlinks(d.path)
	if err == nil {
		err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			// another root, behind the same link, has the same names
			name := filepath.Join(d.path, strings.TrimPrefix(path, root))
			switch {
			case err != nil && path == root:
				return fault(d.path, err)
			case err != nil:
				return fault(name, err)
			case path != root && strings.HasPrefix(entry.Name(), "."):
				if entry.IsDir() {
					return fs.SkipDir
				}
				return nil
			case entry.IsDir():
				return nil
			case entry.Type()&fs.ModeSymlink != 0 && isDirectory(path):
				// what is behind it was in the tree perhaps, so it must not seem to be gone
				return fault(name, errors.New("it is a link to a directory, which is not followed: put the directory itself there, or mount it"))
			}
			switch filepath.Ext(path) {
			case ".yaml", ".yml", ".json":
			default:
				return nil
			}
			begun := time.Now()
			text, err := d.load(path)
			if err != nil {
				return fault(name, err)
			}
			f, settled := d.known[name].with(name, text, begun, d.settled)
			known[name], r.Unsettled = f, r.Unsettled || !settled
			if !settled && begun.Sub(f.differs) >= Limit {
				r.Faults = append(r.Faults, Fault{Source: name, Err: fmt.Errorf(
					"it changes all the time, and counts once it has stayed the same for %s; what it had before counts", d.settled)})
			}
			return nil
		})
	}
	if err != nil {
		_ = fault(d.path, err)
	}
	for _, name := range slices.SortedFunc(maps.Keys(known), inOrder) {
		r.Objects, r.Faults = append(r.Objects, known[name].objects...), append(r.Faults, known[name].faults...)
	}
	d.known = known
	return r
}

// inOrder compares names as a walk comes to them.
func inOrder(a, b string) int {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}

// with returns the file after a reading, and whether the text that was read counts. It does if no
// other was read since a reading that had ended for long enough when this one began.
func (f file) with(name string, text []byte, begun time.Time, settled time.Duration) (file, bool) {
	sum := sha256.Sum256(text)
	if sum == f.sum {
		f.since, f.differs = time.Time{}, time.Time{}
		return f, true
	}
	if f.differs.IsZero() {
		f.differs = begun
	}
	if f.since.IsZero() || sum != f.next {
		f.next, f.since = sum, time.Now()
	}
	if settled > 0 && begun.Sub(f.since) < settled {
		return f, false
	}
	if err := cutOff(name, text); err != nil {
		return file{sum: sum, objects: f.objects, faults: []Fault{{Source: name, Err: err}}}, true
	}
	f = file{sum: sum}
	f.objects, f.faults = Parse(name, text)
	return f, true
}

// cutOff says how a text shows that it is not what somebody wanted to write: it is the beginning of
// another one, or in an encoding that parsers take for something else. Nil: it does not.
func cutOff(path string, text []byte) error {
	inJSON := filepath.Ext(path) == ".json"
	switch {
	case !utf8.Valid(text), bytes.IndexByte(text, 0) >= 0:
		return errors.New("it is no text in UTF-8: save it in that encoding")
	case len(bytes.TrimSpace(text)) == 0 && inJSON:
		return errors.New("it is empty, as a file is that could not be written: write null into it, or remove it, if it is to have no objects")
	case len(bytes.TrimSpace(text)) == 0:
		return errors.New("it is empty, as a file is that could not be written: write a comment into it, or remove it, if it is to have no objects")
	case !inJSON && !bytes.HasSuffix(text, []byte("\n")) && !bytes.HasSuffix(text, []byte("\r")):
		return errors.New("it ends in the middle of a line, as a file does that was not written to its end: write a newline at its end if that is all of it")
	}
	return nil
}

// isDirectory reports whether a link leads to a directory.
func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// errIrregular is of a pipe, a socket or a device: to open one may wait for ever, or set something
// going.
var errIrregular = errors.New("it is no regular file")

// readFile reads a regular file. It does not open anything else.
func readFile(path string) ([]byte, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errIrregular
	}
	// Whatever takes the file's place in this moment is not waited for.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(errIrregular, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("it is larger than %d MiB", maxFile>>20)
	}
	return text, err
}

// Parse reads the text of one file. The name says which language it is in.
func Parse(name string, text []byte) (objects []*object.Object, faults []Fault) {
	next := yamlDocuments(text)
	if filepath.Ext(name) == ".json" {
		next = jsonDocuments(text)
	}
	for n := 1; ; n++ {
		document, err := next()
		if errors.Is(err, io.EOF) {
			return objects, faults
		}
		source := fmt.Sprintf("%s#%d", name, n)
		if err != nil && document == nil {
			// the rest of the file cannot be told apart
			return objects, append(faults, Fault{Source: source, Err: err})
		}
		var content any
		if err == nil {
			content, err = decode(document)
		}
		if err != nil {
			faults = append(faults, Fault{Source: source, Err: err})
			continue
		}
		found, wrong := expand(content, source, 0)
		objects, faults = append(objects, found...), append(faults, wrong...)
	}
}

// decode decodes JSON that a parser has read. A key that is there twice is a fault: one of its
// values would not count.
func decode(document []byte) (content any, err error) {
	twice, err := kjson.UnmarshalStrict(document, &content)
	if err != nil {
		err = errors.New("a number is too large: quote it") // the parser quotes it
	}
	return content, errors.Join(append(twice, err)...)
}

// lineEnds are the ends of lines that the reader does not know, and the parser does.
var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// documentEnd is the other line between two documents. The reader does not know it, and the parser
// reads nothing that comes after it.
var documentEnd = regexp.MustCompile(`(?m)^\.\.\.([ \t]|$)`)

// yamlDocuments returns the documents one by one, as JSON. An error with a document is of that
// document alone.
func yamlDocuments(text []byte) func() ([]byte, error) {
	text = []byte(lineEnds.Replace(string(text)))
	text = documentEnd.ReplaceAll(text, []byte("---$1"))
	documents := kyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	return func() ([]byte, error) {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil, err
		}
		if err != nil {
			return nil, unquotedYAML(err)
		}
		converted, err := yaml.YAMLToJSONStrict(document)
		switch {
		case err != nil:
			return document, unquotedYAML(err)
		case more(document):
			return document, errors.New("something follows the end of the document: put a line --- between two of them")
		}
		return converted, nil
	}
}

// unread is a document whose content does not matter.
type unread struct{}

// UnmarshalYAML implements the parser's Unmarshaler.
func (unread) UnmarshalYAML(func(any) error) error { return nil }

// more reports whether anything follows the first document of a text. A parser that is asked for
// one document does not look.
func more(text []byte) bool {
	documents := yamlv2.NewDecoder(bytes.NewReader(text))
	for range 2 {
		if err := documents.Decode(new(unread)); err != nil {
			return !errors.Is(err, io.EOF)
		}
	}
	return true
}

// jsonDocuments returns the values one by one.
func jsonDocuments(text []byte) func() ([]byte, error) {
	values := json.NewDecoder(bytes.NewReader(text))
	return func() ([]byte, error) {
		var value json.RawMessage
		if err := values.Decode(&value); err != nil {
			return nil, unquotedJSON(err, text)
		}
		return value, nil
	}
}

// maxDepth is how deeply Lists may hold Lists.
const maxDepth = 4

// expand makes objects of a document: none of an empty one, those of a List.
func expand(content any, source string, depth int) (objects []*object.Object, faults []Fault) {
	fault := func(text string) []Fault { return []Fault{{Source: source, Err: errors.New(text)}} }
	if content == nil {
		return nil, nil
	}
	manifest, ok := content.(map[string]any)
	if !ok {
		return nil, fault("it is no object with an apiVersion and a kind")
	}
	kind, _ := manifest["kind"].(string)
	items, has := manifest["items"]
	if !has || !strings.HasSuffix(kind, "List") {
		o, err := object.New(manifest, source)
		if err != nil {
			return nil, []Fault{{Source: source, Err: err}}
		}
		return []*object.Object{o}, nil
	}
	list, ok := items.([]any)
	if !ok && items != nil {
		return nil, fault("the items of the list are no list")
	}
	if depth == maxDepth {
		return nil, fault("lists within lists within lists")
	}
	for i, item := range list {
		found, wrong := expand(item, fmt.Sprintf("%s[%d]", source, i), depth+1)
		objects, faults = append(objects, found...), append(faults, wrong...)
	}
	return objects, faults
}
