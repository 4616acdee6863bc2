package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

const root = "../.."

// TestPatchesApply: what `make mutants` is to plant can be planted.
func TestPatchesApply(t *testing.T) {
	t.Parallel()
	all, err := read("patches")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if _, err := m.apply(root, filepath.Join(t.TempDir(), m.name)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPageIsCurrent(t *testing.T) {
	t.Parallel()
	all, err := read("patches")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("README.md")
	if err != nil || string(page) != document(all) {
		t.Fatalf("README.md is not what the patches say; run `make generate` (%v)", err)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	const diff = "\n--- a/x.go\n+++ b/x.go\n@@ -1 +1 @@\n-a\n+b\n"
	good := "Rule: 3\nFault: f\nTest: ./x -run 'a b'\nTest: ./y\n"
	m, err := parse("n", []byte(good+diff))
	if err != nil || m.rule != "3" || len(m.tests) != 2 || len(m.files["x.go"]) != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	got := fields(`  -run 'a b' -x=1 -replay='{"a": [1, 2]}' ''`)
	if !slices.Equal(got, []string{"-run", "a b", "-x=1", `-replay={"a": [1, 2]}`, ""}) {
		t.Fatalf("%q", got)
	}
	for _, bad := range []string{"Rule: 3\n" + diff, good, "Rules: 3\n" + good + diff, "", good + "\n--- a/x\n+++ b/x\n"} {
		if _, err := parse("n", []byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// TestNestedBuildsHaveTheFault: a program that a test builds has the fault, too.
func TestNestedBuildsHaveTheFault(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	module := filepath.Join(dir, "module")
	for name, text := range map[string]string{
		"module/go.mod":  "module example.com/m\n\ngo 1.26\n",
		"module/main.go": "package main\n\nfunc main() { print(\"sound\") }\n",
		"module/build_test.go": `package main

import (
	"os/exec"
	"path/filepath"
	"testing"
)

func TestBuild(t *testing.T) {
	program := filepath.Join(t.TempDir(), "m")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Skip(string(out))
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil || string(out) != "sound" {
		t.Fatalf("%s, %v", out, err)
	}
}
`,
	} {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	m, err := parse("n", []byte("Rule: 3\nFault: f\nTest: . -run 'TestBuild|no one'\n"+
		"\n--- a/main.go\n+++ b/main.go\n@@ -3 +3 @@\n-func main() { print(\"sound\") }\n+func main() { print(\"broken\") }\n"))
	if err != nil {
		t.Fatal(err)
	}
	if o := m.run(t.Context(), module, filepath.Join(dir, "is planted")); len(o) != 1 || o[0].verdict != caughtIt {
		t.Fatalf("%+v", o)
	}
}

// TestPatchesOutliveWhatIsAroundThem: a change is found by what it changes, and by as much of its
// surroundings as is left.
func TestPatchesOutliveWhatIsAroundThem(t *testing.T) {
	t.Parallel()
	const patch = "--- a/x\n+++ b/x\n@@ -2,5 +2,5 @@\n one\n two\n-three\n+drei\n four\n five\n"
	all, err := hunks(patch)
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]string{
		"zero\none\ntwo\nthree\nfour\nfive\nsix":                   "zero\none\ntwo\ndrei\nfour\nfive\nsix",
		"one\nTWO\nthree\nfour\nfive":                              "one\nTWO\ndrei\nfour\nfive",
		"new\nthree\nnew":                                          "new\ndrei\nnew",
		"three\ntwo\nthree\nfour\n":                                "three\ntwo\ndrei\nfour\n",
		"one\ntwo\n3\nfour\nfive":                                  "", // what is changed is not there
		"three\nx\nthree":                                          "", // or might be meant twice
		"one\ntwo\nthree\nfour\nfive\none\ntwo\nthree\nfour\nfive": "",
	} {
		got, err := plant(source, all["x"])
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q became %q, %v, want %q", source, got, err, want)
		}
	}
}

// TestFields: what is quoted belongs to the argument that it stands in.
func TestFields(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"":                                 nil,
		"-run  TestX$ -v":                  {"-run", "TestX$", "-v"},
		"-run 'TestX/a b' -v":              {"-run", "TestX/a b", "-v"},
		`-run TestX -replay='{"a": 1}' -v`: {"-run", "TestX", `-replay={"a": 1}`, "-v"},
		"-x ''":                            {"-x", ""},
	} {
		if got := fields(text); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// TestNothingIsLeftBehind: when the runner is told to stop, the test that runs ends with it.
func TestNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe") // open for as long as the test's program runs
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"overlay.json": "{}",
		"go.mod":       "module example.com/x\n\ngo 1.26\n",
		"x_test.go": `package x

import (
	"os"
	"testing"
)

func TestForEver(t *testing.T) {
	pipe, err := os.OpenFile("pipe", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	pipe.WriteString("begun\n")
	<-t.Context().Done() // which comes only after the test
}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan outcome, 1)
	go func() {
		ended <- try(ctx, dir, filepath.Join(dir, "overlay.json"), ".")
		// Should the program never have begun, nobody else would open the pipe.
		if f, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			_ = f.Close()
		}
	}()
	reader, err := os.Open(pipe) //nolint:gosec // made above
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	begun := make([]byte, len("begun\n"))
	if _, err := io.ReadFull(reader, begun); err != nil {
		t.Fatalf("%v: %+v", err, <-ended)
	}
	stop()
	if _, err := io.Copy(io.Discard, reader); err != nil { // until nobody has it open
		t.Fatal(err)
	}
	<-ended
}
