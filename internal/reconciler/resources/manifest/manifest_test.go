package manifest_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ironherd/ironherd/internal/reconciler/resources/manifest"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// read reads a directory in which every text counts at once.
func read(t *testing.T, d *manifest.Directory) ([]*object.Object, []manifest.Fault) {
	t.Helper()
	r := d.Read(t.Context())
	return r.Objects, r.Faults
}

func named(name string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: default}\n"
}

// TestDirectory reads a directory as Kubernetes mounts one: everything is a link, and the directory
// is one too.
func TestDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "real", "..data", "linked.yaml"), named("linked"))
	write(t, filepath.Join(dir, "real", "sub", "deep.yml"), "# nothing\n---\n"+named("one")+"--- # two\n"+named("two")+"---\n---\n")
	write(t, filepath.Join(dir, "real", "sub", "list.json"), `{"apiVersion":"v1","kind":"ConfigMapList","items":[`+
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"three","namespace":"default"}}]} `+
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"four","namespace":"default"}}`)
	write(t, filepath.Join(dir, "real", ".hidden.yaml"), "{{{")
	write(t, filepath.Join(dir, "real", "README.md"), "{{{")
	for link, to := range map[string]string{"real/linked.yaml": "..data/linked.yaml", "mount": "real"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	d := manifest.At(filepath.Join(dir, "mount"), 0)
	for range 2 {
		objects, faults := read(t, d)
		var names []string
		for _, o := range objects {
			names = append(names, o.Name)
		}
		if got := strings.Join(names, " "); got != "linked one two three four" || len(faults) > 0 {
			t.Fatalf("%s, %v", got, faults)
		}
	}
	first, _ := read(t, d)
	again, _ := read(t, d)
	if first[0] != again[0] {
		t.Error("a file that is the same is parsed again")
	}
	write(t, filepath.Join(dir, "real", "..data", "linked.yaml"), named("changed"))
	if objects, _ := read(t, d); objects[0].Name != "changed" {
		t.Errorf("a file that has changed is still %s", objects[0].Name)
	}
}

// TestFaults: what is missing is told, so that it is not taken for gone.
func TestFaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, faults := read(t, manifest.At(filepath.Join(dir, "nowhere"), 0)); len(faults) != 1 {
		t.Errorf("a directory that is not there: %v", faults)
	}
	if objects, faults := read(t, manifest.At("", 0)); len(objects)+len(faults) != 0 {
		t.Errorf("no directory: %v", faults)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "directory.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, faults := read(t, manifest.At(dir, 0)); len(faults) != 1 || !strings.HasSuffix(faults[0].Source, "dangling.yaml") {
		t.Errorf("a link to nowhere: %v", faults)
	}
	for name, text := range map[string]string{
		"a.yaml": "a: b: c", "b.yaml": "7", "c.yaml": "- a\n- b\n", "d.json": `{"a":`, "e.yaml": "a: 1\na: 2\n", "f.yaml": "--- x\n",
		"g.yaml": strings.Repeat(`{"kind": "List", "items": [`, 9) + strings.Repeat("]}", 9), "h.yaml": "\x00\xff",
		"i.yaml": named("x") + "data: {<<: *nothing}\n", "j.yaml": named("ok") + "---\nkind: {\n",
		"k.json": `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"default"},"data":{"a":"1","a":"2"}}`,
		"l.json": `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"default"},"kind":"Secret"}`,
	} {
		if objects, faults := manifest.Parse(name, []byte(text)); len(faults) != 1 || len(objects) > 1 || !strings.HasPrefix(faults[0].Source, name+"#") {
			t.Errorf("%s: %v, %v", name, objects, faults)
		}
	}
}

// TestFaultsQuoteNothing: what is wrong with a Secret is told, and none of its values. Faults are
// in the log, in events, and in what every node shows.
func TestFaultsQuoteNothing(t *testing.T) {
	t.Parallel()
	head := "kind: Secret\nstringData:\n"
	secret := func(fields string) string { return "{\"kind\": \"Secret\",\n\"stringData\": {" + fields + "}}" }
	for _, c := range []struct{ name, text, want string }{
		{"a.yaml", head + "  password: *hunter2\n", "a value begins with *"},
		{"a.yaml", head + "  password: &hunter2 [*hunter2]\n", "contains itself"},
		{"a.yaml", "--- {kind: Secret, stringData: {password: hunter2}}\n", "something follows a separator"},
		{"a.yaml", head + "---hunter2\n", "something follows a separator"},
		{"a.yaml", head + "  password: !!int hunter2\n", "not what its tag says"},
		{"a.yaml", head + "  password: !!bool hunter2\n", "not what its tag says"},
		{"a.yaml", head + "  password: !!float line 1234\n", "not what its tag says"},
		{"a.yaml", head + "  password: !hunter2!x\n", "line 2 of the document: found undefined tag handle"},
		{"a.yaml", head + "  password: !!binary hunter2\n", "base64"},
		{"a.yaml", head + "  hunter2: a\n  b: c\n  hunter2: d\n", "line 5 of the document: a key is there twice"},
		{"a.yaml", head + "  password: {{ hunter2 }}\n", "a key is a map"},
		{"a.yaml", head + "  ? ~\n  : hunter2\n", "neither text nor a number"},
		{"a.yaml", head + "  password: -.inf\n", "quote .inf"},
		{"a.yaml", head + "  password: hunter2: 1234\n", "line 3 of the document: mapping values are not allowed"},
		{"a.yaml", head + "  password: \"hunter2\\d\"\n", "line 3 of the document: found unknown escape character"},
		{"a.yaml", head + "  password: @hunter2\n", "line 3 of the document: found character that cannot start"},
		{"a.yaml", head + "  <<: hunter2\n", "map merge"},
		{"a.yaml", "%HUNTER2 hunter2\n" + head, "it is no valid YAML"},
		{"a.json", secret(`"password": 1234e999`), "a number is too large"},
		{"a.json", secret(`"password": hunter2`), "line 2, byte 28: it is no valid JSON"},
		{"a.json", secret(`"password": "hunter2" "1234`), "line 2, byte 38: it is no valid JSON"},
		{"a.json", `{"kind": "Secret", "stringData": {"password": "hunter2`, "unexpected EOF"},
	} {
		_, faults := manifest.Parse(c.name, []byte(c.text))
		if len(faults) != 1 || !strings.Contains(faults[0].Err.Error(), c.want) {
			t.Errorf("%q: %v, not %s", c.text, faults, c.want)
		}
		for _, f := range faults {
			said := strings.ToLower(f.Err.Error())
			if strings.Contains(said, "hunter2") || strings.Contains(said, "1234") || strings.Contains(said, "'h'") || strings.Contains(said, "-inf") {
				t.Errorf("%q: %s", c.text, said)
			}
		}
	}
}

// TestDocumentEnd: a line of three dots ends a document, and what comes after it is another one.
func TestDocumentEnd(t *testing.T) {
	t.Parallel()
	oldMac := strings.ReplaceAll(named("one")+"---\n"+named("two")+"...\n"+named("three"), "\n", "\r")
	for text, want := range map[string]string{
		named("one") + "...\n" + named("two"):                         "one two",
		named("one") + "...\r\n" + named("two"):                       "one two",
		oldMac:                                                        "one two three",
		named("one") + "---\r" + named("two"):                         "one two",
		named("one") + "... # that was it\n---\n" + named("two"):      "one two",
		named("one") + "...\n# nothing more\n":                        "one",
		named("one") + "...":                                          "one",
		named("one") + "data: {a: \"...\"}\n....\n":                   "and a fault", // no such line
		named("one") + "data:\n  a: |\n    ...\n" + "... x\n":         "and a fault",
		named("one") + "data:\n  a: |\n    ...\n  b: ...\n":           "one",
		"...\n" + named("one") + "...\n...\n---\n" + named("two"):     "one two",
		named("one") + "---\n" + named("two") + "...\nkind: {\n---\n": "one two and a fault",
	} {
		objects, faults := manifest.Parse("a.yaml", []byte(text))
		var names []string
		for _, o := range objects {
			names = append(names, o.Name)
		}
		if len(faults) > 0 {
			names = append(names, "and a fault")
		}
		got := strings.Join(names, " ")
		if got != want {
			t.Errorf("%q: %s; %v", text, got, faults)
		}
	}
}

// TestNothingIsLeftOut: what follows the end of a value, where no line --- is between them, is a
// fault. The parser reads nothing of it.
func TestNothingIsLeftOut(t *testing.T) {
	t.Parallel()
	flow := func(name string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `","namespace":"default"}}`
	}
	for text, whole := range map[string]bool{
		flow("a") + "\n" + flow("b") + "\n":                 false,
		flow("a") + flow("b") + "\n":                        false,
		flow("a") + "\n" + named("b"):                       false,
		flow("a") + "\nfoo: bar\n":                          false,
		flow("a") + "\n}\n":                                 false,
		named("a") + "# a\u2028---\n" + named("b"):          false,
		named("a") + "...\u0085" + named("b"):               false,
		flow("a") + "\n# a\n---\n" + flow("b") + " # b\n\n": true,
		"# a\n\n---\n" + flow("b") + "\n...\n# b\n":         true,
	} {
		_, faults := manifest.Parse("a.yaml", []byte(text))
		if whole != (len(faults) == 0) || !whole && !strings.Contains(faults[0].Err.Error(), "put a line --- between") {
			t.Errorf("%q: %v", text, faults)
		}
	}
}

// TestIrregular: what is no file is refused without being opened, and a directory that has become a
// link is not taken for an empty one.
func TestIrregular(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "good.yaml"), named("good"))
	write(t, filepath.Join(elsewhere, "moved.yaml"), named("moved"))
	write(t, filepath.Join(elsewhere, "data", "hidden.yaml"), named("hidden"))
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{
		"to-pipe.yaml": "pipe.yaml", "device.yaml": "/dev/zero", "sub": elsewhere, "sub.yaml": elsewhere, "..data": filepath.Join(elsewhere, "data"),
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(dir, "socket.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	opened := make(chan struct{})
	go func() { // whoever opens the pipe lets this one go on
		defer close(opened)
		if f, err := os.OpenFile(filepath.Join(dir, "pipe.yaml"), os.O_WRONLY, 0); err == nil {
			_ = f.Close()
		}
	}()
	objects, faults := read(t, manifest.At(dir, 0))
	if len(objects) != 1 || objects[0].Name != "good" {
		t.Errorf("%v", objects)
	}
	told := map[string]string{}
	for _, f := range faults {
		told[filepath.Base(f.Source)] = f.Err.Error()
	}
	for name, want := range map[string]string{
		"pipe.yaml": "no regular file", "to-pipe.yaml": "no regular file", "device.yaml": "no regular file", "socket.json": "no regular file",
		"sub": "link to a directory", "sub.yaml": "link to a directory",
	} {
		if !strings.Contains(told[name], want) {
			t.Errorf("%s: %q", name, told[name])
		}
	}
	if len(told) != 6 {
		t.Errorf("%v", told)
	}
	select {
	case <-opened:
		t.Error("a pipe was opened")
	default:
	}
	f, err := os.OpenFile(filepath.Join(dir, "pipe.yaml"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	<-opened
	_ = f.Close()
}

// FuzzParse: every byte of a file that people write.
func FuzzParse(f *testing.F) {
	f.Add("a.yaml", named("a")+"---\n"+named("b"))
	f.Add("a.json", `{"apiVersion":"v1","kind":"List","items":[{"kind":"List","items":null}]} 7`)
	f.Add("a.yaml", "a: &a [*a]\n---\n--- #\n")
	f.Fuzz(func(t *testing.T, name, text string) {
		objects, faults := manifest.Parse(name, []byte(text))
		for _, o := range objects {
			if o.Name == "" || o.Kind == "" || o.Source == "" || o.Hash() == "" {
				t.Errorf("%+v", o)
			}
		}
		for _, fault := range faults {
			if fault.Err == nil || fault.Source == "" {
				t.Errorf("%+v", fault)
			}
		}
	})
}
