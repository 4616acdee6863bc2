package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// hanging makes a file that does not answer, as one on a network file system whose server is gone:
// a pipe that nobody writes.
func hanging(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hangs")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // lets go of whoever waits
		if pipe, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
			_ = pipe.Close()
		}
	})
	return path
}

// TestAFileThatHangs holds nobody up: its name is told, and the key that names it. It may answer
// later, so whoever starts a control plane tries again. Of a database its directory is looked at.
func TestAFileThatHangs(t *testing.T) {
	t.Parallel()
	const start = "initializer: {agent_executable: /dev/null}\nagent_api: {endpoint: 'herd.example:8443'}\n"
	const install = "install: {url: 'http://x/i', "
	list := func(keys string) string { return start + "providers: [{name: a, kind: static, " + keys + "}]\n" }
	var loading sync.WaitGroup
	for key, content := range map[string]string{
		"providers[0].static.path":                  list("static: {path: FILE}"),
		"providers[0].install.first_boot_data_file": list("static: {url: 'https://lists.example/'}, " + install + "first_boot_data_file: FILE}"),
		"providers[0].install.seen_up_ca_file":      list("static: {url: 'https://lists.example/'}, " + install + "seen_up_ca_file: FILE}"),
		"ssh.key_file":                              start + "ssh: {key_file: FILE}\n",
		"operator_api.tokens_file":                  start + "operator_api: {tokens_file: FILE}\n",
		"operator_api.tls.certificate":              start + "operator_api: {tls: {certificate: FILE}}\n",
		"database.path":                             start + "database: {path: FILE/ironherd.db}\n",
		"database.password_file":                    start + "database: {url: postgres://db/x, password_file: FILE}\n",
		"initializer.agent_executable":              strings.ReplaceAll(start, "/dev/null", "FILE"),
		"initializer.other_agent_executables[0]":    strings.ReplaceAll(start, "/dev/null", "/dev/null, other_agent_executables: [FILE]"),
		"providers[0].equinix.token_file":           start + "providers: [{name: a, kind: equinix, equinix: {token_file: FILE}}]\n",
	} {
		for _, contents := range []bool{false, true} {
			hangs, file := hanging(t), filepath.Join(t.TempDir(), "ironherd.yaml")
			if err := os.WriteFile(file, []byte(strings.ReplaceAll(content, "FILE", hangs)), 0o600); err != nil {
				t.Fatal(err)
			}
			loading.Go(func() {
				loaded := make(chan error, 1)
				go func() {
					_, err := load(Sources{File: file, Contents: contents}, time.Second, 5*time.Second)
					loaded <- err
				}()
				select {
				case err := <-loaded:
					all, _ := errors.AsType[Faults](err)
					if want := key + ": the file " + hangs + " cannot be read: it did not answer within 5s"; len(all) != 1 || all[0].Problem != want ||
						all[0].Key != key || !all.Pass() || fleet.KindOf(err) != fleet.KindInvalid {
						t.Errorf("%s: got %v, want %s", key, err, want)
					}
				case <-time.After(time.Minute):
					t.Errorf("%s: it waits for ever", key)
				}
			})
		}
	}
	loading.Wait()
	// What this process does not look at holds it up in no way.
	file := filepath.Join(t.TempDir(), "ironherd.yaml")
	other := "roles: [provisioner]\ninitializer: {agent_executable: " + hanging(t) + "}\noperator_api: {tokens_file: " + hanging(t) + "}\n"
	if err := os.WriteFile(file, []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := load(Sources{File: file}, time.Minute, time.Minute); err != nil {
		t.Error(err)
	}
	hangs := hanging(t)
	_, err := load(Sources{File: hangs}, 100*time.Millisecond, time.Minute)
	if all, ok := errors.AsType[Faults](err); !ok || !all.Pass() || err.Error() != "configuration file "+hangs+" cannot be read: it did not answer within 100ms" {
		t.Errorf("the configuration itself: %v", err)
	}
}

// TestACheckThatTakesLong: no file is blamed that answers.
func TestACheckThatTakesLong(t *testing.T) {
	t.Parallel()
	c := Default()
	c.Dir = t.TempDir()
	c.Resolve(c.Dir)
	d := newDocument("", nil)
	d.blame(c, time.Minute, time.Minute)
	const want = "checking the configuration took longer than 1m0s, and each file that it names answers now"
	if all := Faults(d.faults); len(all) != 1 || all[0].Problem != want || !all.Pass() {
		t.Errorf("it tells %v", all)
	}
}
