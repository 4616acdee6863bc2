package config

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestCallersWaitForNoFile: one that hangs, as on a network file system whose server is gone, costs
// whoever calls a control plane seconds, not the minute of a start.
func TestCallersWaitForNoFile(t *testing.T) {
	t.Parallel()
	dir, hangs := t.TempDir(), hanging(t)
	file := filepath.Join(dir, "ironherd.yaml")
	content := "dir: state\nagent_api: {endpoint: 'herd.example:8443'}\ninitializer: {agent_executable: /dev/null}\n" +
		"providers: [{name: a, kind: static, static: {path: " + hangs + "}}]\noperator_api: {tokens_file: " + hangs + "}\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	api, others, err := LoadServer(Sources{File: file})
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	// On a busy host a file that answers may take longer than the second that callers give it. Those
	// that hang are blamed in any case.
	blamed := func(key string) bool { return slices.ContainsFunc(others, func(f Fault) bool { return f.Key == key }) }
	if err != nil || api.Socket != filepath.Join(dir, "state", SocketName) || !blamed("providers[0].static.path") || !blamed("operator_api.tokens_file") {
		t.Errorf("got %q, %v, %v", api.Socket, others, err)
	}
	api, others, err = loadServer(Sources{File: file}, time.Second, 10*time.Second)
	if err != nil || api.Socket != filepath.Join(dir, "state", SocketName) || len(others) != 2 || others[0].Key != "providers[0].static.path" {
		t.Errorf("got %q, %v, %v", api.Socket, others, err)
	}
}

// TestAKeyInDirThatOthersCanRead is no fault that leads callers elsewhere.
func TestAKeyInDirThatOthersCanRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // so that time stands still while a file is read
		dir := t.TempDir()
		file := filepath.Join(dir, "ironherd.yaml")
		content := "dir: .\nagent_api: {endpoint: 'herd.example:8443'}\ninitializer: {agent_executable: /dev/null}\n"
		for name, content := range map[string]string{file: content, filepath.Join(dir, "ssh_key"): "x"} {
			if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		api, others, err := LoadServer(Sources{File: file})
		if err != nil || api.Socket != filepath.Join(dir, SocketName) || len(others) != 1 || others[0].Key != "dir" {
			t.Errorf("got %q, %v, %v", api.Socket, others, err)
		}
	})
}

// TestNobodyIsLedToADirectoryOfAll: somebody else may listen there.
func TestNobodyIsLedToADirectoryOfAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // so that time stands still while a file is read
		file := filepath.Join(t.TempDir(), "ironherd.yaml")
		for _, dir := range []string{os.TempDir(), "''"} {
			content := "dir: " + dir + "\nagent_api: {endpoint: 'herd.example:8443'}\ninitializer: {agent_executable: /dev/null}\n"
			if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
			if api, _, err := LoadServer(Sources{File: file}); err == nil {
				t.Errorf("dir: %s leads to %s", dir, api.Socket)
			}
		}
	})
}
