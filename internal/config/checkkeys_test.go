package config_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/server"
)

// TestKeysAreReadWhereContentsAreAsked: `config check` says no file right that a start refuses, or
// a certificate that agents do.
func TestKeysAreReadWhereContentsAreAsked(t *testing.T) {
	t.Parallel()
	ours, theirs := t.TempDir(), t.TempDir()
	for dir, host := range map[string]string{ours: "herd.example", theirs: "other.example"} {
		if _, err := server.OpenCertificates(server.ForAgents, dir, []string{host}, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	}
	pair, other := filepath.Join(ours, "agent-server.pem"), filepath.Join(theirs, "agent-server.pem")
	authority, others := filepath.Join(ours, "agent-ca.pem"), filepath.Join(theirs, "agent-ca.pem")
	garbage := filepath.Join(ours, "garbage")
	if err := os.WriteFile(garbage, []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	agents := func(certificate, key, authority string) string {
		return "  tls: {certificate: " + certificate + ", key: " + key + ", ca_certificate: " + authority + "}\n"
	}
	const certificate = "agent_api.tls.certificate: "
	for name, test := range map[string]struct{ content, want string }{
		"right":                        {agents(pair, pair, authority), ""},
		"a key of another certificate": {agents(pair, other, authority), certificate + "read certificate " + pair + " with key " + other + ": tls: private key does not match"},
		"another authority":            {agents(pair, pair, others), certificate + pair + ": the certificate of the agent API does not lead to those that agents are given ("},
		"others for agents":            {agents(pair, pair, authority) + "initializer: {agent_executable: /dev/null, endpoint_ca: " + others + "}\n", certificate + pair + ": the certificate of the agent API does not lead to those that agents are given ("},
		"another host":                 {agents(other, other, others), certificate + other + ": the certificate of the agent API is not for herd.example, which agents are told"},
		"another host than agents are told": {
			agents(pair, pair, authority) + "initializer: {agent_executable: /dev/null, endpoint: other.example:1}\n",
			certificate + pair + ": the certificate of the agent API is not for other.example, which agents are told",
		},
		"another host than installed systems are told": {
			agents(other, other, others) + "initializer: {agent_executable: /dev/null, endpoint: other.example:1}\n",
			certificate + other + ": the certificate of the agent API is not for herd.example, which installed systems are told",
		},
		"a host for installed systems of others": {
			agents(other, other, others) + "initializer: {agent_executable: /dev/null, endpoint: other.example:1}\nroles: [initializer]\n", "",
		},
		"others for agents than are made here": {
			"dir: " + ours + "\ninitializer: {agent_executable: /dev/null, endpoint_ca: " + others + "}\n",
			"initializer.endpoint_ca: the certificate of the agent API, which is made here, does not lead to those of initializer.endpoint_ca, which agents are given",
		},
		"those for agents that are made here": {"dir: " + ours + "\ninitializer: {agent_executable: /dev/null, endpoint_ca: " + authority + "}\n", ""},
		"others for agents of others": {
			"dir: " + ours + "\ninitializer: {agent_executable: /dev/null, endpoint_ca: " + others + "}\nroles: [initializer]\n", "",
		},
		"no pair of the operator API":  {"operator_api: {tls: {certificate: " + garbage + ", key: " + garbage + "}}\n", "operator_api.tls.certificate: read certificate"},
		"a pair of others":             {"roles: [agent-api]\noperator_api: {tls: {certificate: " + garbage + ", key: " + garbage + "}}\n", ""},
		"files of others":              {"roles: [agent-api]\noperator_api: {tokens_file: /nowhere/t, tls: {certificate: /nowhere/c, key: /nowhere/k}}\n", ""},
		"no SSH key, with no operator": {"roles: [agent-api]\nssh: {key_file: /nowhere/key}\n", "ssh.key_file: the file /nowhere/key cannot be read"},
		"no SSH key":                   {"ssh: {key_file: " + garbage + "}\n", "ssh.key_file: SSH key " + garbage + ": not a private key in OpenSSH or PEM form"},
		"names that nobody uses":       {"operator_api: {names: [contrôle.example], tls: {certificate: " + pair + ", key: " + pair + "}}\n", ""},
		"a name that is not of DNS":    {"operator_api: {names: [contrôle.example]}\n", `operator_api.names[0]: must be in ASCII, as DNS has it (xn--…), not "contrôle.example"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "ironherd.yaml")
			head := minimal
			if strings.Contains(test.content, "initializer:") {
				head = strings.TrimPrefix(minimal, "initializer: {agent_executable: /dev/null}\n")
			}
			if err := os.WriteFile(file, []byte(head+test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := config.Load(config.Sources{File: file, Contents: true})
			faults, _ := errors.AsType[config.Faults](err)
			if test.want == "" && err == nil {
				return
			}
			if len(faults) != 1 || !strings.Contains(faults[0].Error(), test.want) || test.want == "" || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("it says %v, want %q", err, test.want)
			}
		})
	}
}

// TestInstalledSystemsVerifyAsAgentsDo: they call the endpoint that agents call, unless there are
// two.
func TestInstalledSystemsVerifyAsAgentsDo(t *testing.T) {
	t.Parallel()
	const tls = "  tls: {certificate: /dev/null, key: /dev/null}\n"
	for name, test := range map[string]struct{ content, want string }{
		"an authority for agents":    {"agent_api:\n  endpoint: herd.example:8443\n" + tls + "initializer: {agent_executable: /dev/null, endpoint_ca: /dev/null}\n", "/dev/null"},
		"none":                       {"agent_api:\n  endpoint: herd.example:8443\n" + tls + "initializer: {agent_executable: /dev/null}\n", ""},
		"another endpoint of agents": {"agent_api:\n  endpoint: herd.example:8443\n" + tls + "initializer: {agent_executable: /dev/null, endpoint: a.example:1, endpoint_ca: /dev/null}\n", ""},
		"one that is made here":      {"agent_api:\n  endpoint: herd.example:8443\ninitializer: {agent_executable: /dev/null, endpoint_ca: /dev/null}\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := load(t, test.content)
			if got := c.AgentAPI.TLS.CACertificate; got != test.want {
				t.Errorf("installed systems get %q, want %q", got, test.want)
			}
		})
	}
}
