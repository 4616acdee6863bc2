package test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestAfterThePackageIsInstalled runs what dpkg runs then, on a host with systemd that is made of
// stand-ins. A control plane that does not come up fails no upgrade: dpkg would leave the package
// half configured, and whatever depends on it, too. One that refused a configuration is started:
// this package may take it. One that had to be killed when somebody stopped it stays stopped.
func TestAfterThePackageIsInstalled(t *testing.T) {
	t.Parallel()
	const sysusers, reload, restart = "systemd-sysusers ironherd.conf\n", "systemctl daemon-reload\n", "systemctl try-restart ironherd.service\n"
	const users = sysusers + "install -d -m 0700 -o ironherd -g ironherd /var/lib/ironherd\n"
	const enabled = "systemctl is-enabled --quiet ironherd.service\n"
	const asked = enabled + "systemctl is-failed --quiet ironherd.service\n"
	const status = "systemctl show --property=ExecMainStatus --value ironherd.service\n"
	const start = "systemctl start ironherd.service\n"
	const said = "ironherd: the control plane did not come up at once; see: systemctl status ironherd\n"
	for name, test := range map[string]struct {
		args []string
		// fails is the command that fails; systemd says whether it runs here, and left is the status
		// that the failed unit has ended with; "": it has not failed.
		fails   string
		left    string
		systemd bool
		called  string
		failed  bool
		stderr  string
	}{
		"new":                         {args: []string{"configure", ""}, systemd: true, called: users + reload},
		"upgrade":                     {args: []string{"configure", "1.2.2"}, systemd: true, called: users + reload + asked + restart},
		"upgrade, and no restart":     {args: []string{"configure", "1.2.2"}, fails: restart, systemd: true, called: users + reload + asked + restart, stderr: said},
		"after one that failed":       {args: []string{"configure", "1.2.4"}, systemd: true, left: "2", called: users + reload + asked + status + start},
		"after one that was killed":   {args: []string{"configure", "1.2.4"}, systemd: true, left: "9", called: users + reload + asked + status + restart},
		"after one, and not wanted":   {args: []string{"configure", "1.2.4"}, fails: enabled, systemd: true, left: "2", called: users + reload + enabled + restart},
		"after one, and no start":     {args: []string{"configure", "1.2.4"}, fails: start, systemd: true, left: "2", called: users + reload + asked + status + start, stderr: said},
		"no systemd":                  {args: []string{"configure", "1.2.2"}, called: users},
		"no user":                     {args: []string{"configure", "1.2.2"}, fails: sysusers, systemd: true, called: sysusers, failed: true},
		"an upgrade that was undone":  {args: []string{"abort-upgrade", "1.2.2"}, systemd: true},
		"a removal that was not done": {args: []string{"abort-remove"}, systemd: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			running, calls := filepath.Join(dir, "running"), filepath.Join(dir, "calls")
			if test.systemd {
				if err := os.Mkdir(running, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, program := range []string{"systemctl", "systemd-sysusers", "install"} {
				text := "#!/bin/sh\necho \"${0##*/} $*\" >>" + calls + "\n"
				if test.left == "" { // as systemctl says it
					text += "[ \"$1\" != is-failed ] || exit 1\n"
				}
				text += "[ \"$1\" != show ] || echo " + test.left + "\n"
				text += "[ \"${0##*/} $*\" != '" + strings.TrimSpace(test.fails) + "' ]\n"
				if err := os.WriteFile(filepath.Join(dir, program), []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			const sign = "/run/systemd/system" // sd_booted(3)
			script := read(t, "../deploy/deb/postinst")
			if !strings.Contains(script, sign) {
				t.Fatalf("it does not look for %s", sign)
			}
			var stderr bytes.Buffer
			run := exec.CommandContext(t.Context(), "sh", append([]string{"-c", strings.ReplaceAll(script, sign, running), "postinst"}, test.args...)...)
			run.Env, run.Stderr = []string{"PATH=" + dir + ":/usr/bin:/bin"}, &stderr
			if err := run.Run(); (err != nil) != test.failed {
				t.Errorf("it ended with %v", err)
			}
			called, err := os.ReadFile(calls)
			if err != nil && test.called != "" || string(called) != test.called || stderr.String() != test.stderr {
				t.Errorf("it called %q, want %q, and said %q, want %q", called, test.called, stderr.String(), test.stderr)
			}
		})
	}
}

// TestPackagedPagesLeadToPackagedFiles: what a page links to in deploy is in the package, too, and
// lies where the link leads.
func TestPackagedPagesLeadToPackagedFiles(t *testing.T) {
	t.Parallel()
	var recipe struct {
		Contents []struct {
			Src, Dst string
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "../deploy/deb/nfpm.yaml")), &recipe); err != nil {
		t.Fatal(err)
	}
	packed := map[string]string{} // the file of the source, by its path in the package
	for _, c := range recipe.Contents {
		if !strings.ContainsRune(c.Src, '*') {
			packed[c.Dst] = c.Src
			continue
		}
		names, err := fs.Glob(os.DirFS(".."), c.Src)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			packed[path.Join(c.Dst, path.Base(name))] = name
		}
	}
	links := 0
	for at, from := range packed {
		if path.Ext(from) != ".md" {
			continue
		}
		for _, link := range regexp.MustCompile(`\]\(([^)#:]+)`).FindAllStringSubmatch(read(t, filepath.Join("..", from)), -1) {
			to := path.Join(path.Dir(from), link[1])
			if !strings.HasPrefix(to, "deploy/") {
				continue
			}
			links++
			if packed[path.Join(path.Dir(at), link[1])] != to {
				t.Errorf("%s leads to %s, which the package does not have there", from, to)
			}
		}
	}
	if links < 3 {
		t.Errorf("the pages have %d links to files of deploy", links)
	}
}

// TestModesOfPackagedFiles: the source of a builder with the umask 077 makes the package that any
// other makes, because the service runs as a user of its own, which has to read and start it.
func TestModesOfPackagedFiles(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	pages := map[string]bool{} // by their path in the package, whether it has them
	for _, dir := range []string{"api", "deploy", "docs"} {
		if err := os.CopyFS(filepath.Join(source, dir), os.DirFS(filepath.Join("..", dir))); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"LICENSE", "ironherd", "ironherd-agent", "ironherd-agent-amd64", "ironherd-agent-arm64"} {
		if err := os.WriteFile(filepath.Join(source, file), []byte("anything"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := filepath.WalkDir(source, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return errors.Join(err, os.Chmod(name, 0o700))
		}
		inSource := strings.TrimPrefix(name, source+"/")
		for _, whole := range []string{"docs/", "deploy/prometheus/", "deploy/kubernetes/"} {
			if strings.HasPrefix(inSource, whole) {
				pages["./usr/share/doc/ironherd/"+inSource] = false
			}
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return os.Chmod(name, info.Mode()&0o700)
	}); err != nil {
		t.Fatal(err)
	}
	deb := filepath.Join(t.TempDir(), "ironherd.deb")
	pack(t, source, source, deb)
	list, err := exec.CommandContext(t.Context(), "dpkg-deb", "--contents", deb).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		words := strings.Fields(line) // mode, owner, size, day, time, path
		if len(words) != 6 {
			t.Fatalf("dpkg-deb said %q", line)
		}
		name, want := words[5], "-rw-r--r--"
		switch {
		case strings.HasSuffix(name, "/"):
			want = "drwxr-xr-x"
		case strings.HasPrefix(name, "./usr/bin/"):
			want = "-rwxr-xr-x"
		}
		if words[0] != want || words[1] != "root/root" {
			t.Errorf("%s is %s of %s, want %s of root/root", name, words[0], words[1], want)
		}
		pages[name] = true
	}
	for name, packed := range pages {
		if !packed {
			t.Errorf("the package does not have %s", name)
		}
	}
}

// TestVersionsOfPackagesRise: a package of a later commit is an upgrade, before the first tag and
// between tags. dpkg itself compares.
func TestVersionsOfPackagesRise(t *testing.T) {
	t.Parallel()
	makefile, err := filepath.Abs("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	second := 1_800_000_000
	run := func(name string, args ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), name, args...)
		c.Dir = dir
		c.Env = append(os.Environ(), fmt.Sprintf("GIT_COMMITTER_DATE=%d +0900", second), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
			"MAKEFLAGS=") // those of the make that runs the tests
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v: %s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("git", "init", "--quiet")
	versions := []string{"0.0.0"} // of packages that were made before
	for _, tag := range []string{"", "", "v0.1.0", "", "", "v0.1.1", ""} {
		second++
		run("git", "-c", "user.name=a", "-c", "user.email=a@b.invalid", "commit", "--quiet", "--allow-empty", "--message=x")
		if tag != "" {
			run("git", "tag", tag)
		}
		versions = append(versions, run("make", "-s", "-f", makefile, "--eval", "version: ; @echo $(DEB_NOW)", "version"))
	}
	for i, later := range versions[1:] {
		run("dpkg", "--compare-versions", versions[i], "lt", later)
	}
	if versions[3] != "0.1.0" || versions[6] != "0.1.1" || !strings.HasPrefix(versions[1], "0.0.0+git20270115080001.") {
		t.Errorf("the versions are %q", versions)
	}
}
