package sim

import (
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/ssh"
)

// injectedHostKey returns the SSH host key that user data gives a machine, in OpenSSH form, as
// cloud-init would take it: ed25519_private of ssh_keys in cloud-config. Empty where there is none,
// and where it cannot be used.
func injectedHostKey(userData string) string {
	if first, _, _ := strings.Cut(userData, "\n"); strings.TrimSpace(first) != "#cloud-config" {
		return ""
	}
	var config struct {
		Keys struct {
			Private string `yaml:"ed25519_private"`
		} `yaml:"ssh_keys"`
	}
	if err := yaml.Unmarshal([]byte(userData), &config); err != nil {
		return ""
	}
	if _, err := ssh.ParsePrivateKey([]byte(config.Keys.Private)); err != nil {
		return ""
	}
	return config.Keys.Private
}
