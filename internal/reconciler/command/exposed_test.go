package command_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestExposedCredentials: config check faults each file by which others could be the reconciler at
// the API server, and a start goes on and warns. A kubeconfig without credentials is no secret.
func TestExposedCredentials(t *testing.T) {
	t.Parallel()
	certificate, key := pair(t, 300*24*time.Hour)
	for name, test := range map[string]struct {
		user    string
		exposed string // "": none of them is a secret
	}{
		"nothing":                  {"{}", ""},
		"a key within":             {embedding(certificate, key), "kubeconfig"},
		"a token within":           {"{token: abc}", "kubeconfig"},
		"a password":               {"{username: a, password: b}", "kubeconfig"},
		"a key in a file":          {"{client-certificate: user.crt, client-key: user.key}", "user.key"},
		"a token in a file":        {"{tokenFile: token}", "token"},
		"a token beside a file":    {"{token: abc, tokenFile: closed.key}", "kubeconfig"},
		"what a program gets":      {"{exec: {apiVersion: client.authentication.k8s.io/v1, command: \"true\", interactiveMode: Never, env: [{name: A, value: b}]}}", "kubeconfig"},
		"a certificate in a file ": {"{client-certificate: user.crt, client-key: closed.key}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, dir := newProgram(t), t.TempDir()
			text := test.user
			if strings.HasPrefix(text, "{") {
				text = strings.Replace(strings.Replace(kubeconfig, "user: {}", "user: "+text, 1), "http:", "https:", 1)
			}
			for file, content := range map[string]string{"kubeconfig": text, "user.crt": string(certificate), "user.key": string(key), "closed.key": string(key), "token": "abc"} {
				path := filepath.Join(dir, file)
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				if file != "closed.key" {
					if err := os.Chmod(path, 0o644); err != nil { //nolint:gosec // it is to be open
						t.Fatal(err)
					}
				}
			}
			file := filepath.Join(dir, "kubeconfig")
			arguments := []string{"config", "check", "--kubeconfig", file, "--etcd-endpoints", "http://127.0.0.1:9"}
			if test.exposed == "" {
				p.run(0, arguments...)
				return
			}
			exposed := filepath.Join(dir, test.exposed)
			says := "credentials for the API server: " + exposed + " is open to others (mode 0644)"
			_, said := p.run(2, arguments...)
			contains(t, "config check", said, says)
			if strings.Count(said, "is open to others") != 1 {
				t.Errorf("more is told: %s", said)
			}
			ctx, cancel := context.WithCancel(t.Context())
			_, stderr, code := p.start(ctx, "run", "--kubeconfig", file, "--listen", "127.0.0.1:0")
			await(t, "it listens", func() bool { return strings.Contains(stderr.String(), "listening") })
			contains(t, "the log", stderr.String(), "the credentials for the API server are not kept as they ought to be", says)
			cancel()
			code()
			if err := os.Chmod(exposed, 0o600); err != nil {
				t.Fatal(err)
			}
			p.run(0, arguments...)
		})
	}
}
