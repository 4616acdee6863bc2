package equinix

import (
	"strings"

	"github.com/ironherd/ironherd/internal/provider"
)

// InjectsHostKey reports whether new devices get the host key of the request that creates them.
func (p *Provider) InjectsHostKey() bool { return p.config.InjectHostKey }

// userData returns cloud-config that makes the key the only SSH host key of a device; "" for none.
// cloud-init's module ssh removes the keys that an image brings, writes these, and then makes no
// others. It does so before sshd starts.
func (p *Provider) userData(key provider.HostKey) string {
	if !p.config.InjectHostKey || key.IsZero() {
		return ""
	}
	var text strings.Builder
	text.WriteString("#cloud-config\nssh_deletekeys: true\nssh_keys:\n  ed25519_private: |\n")
	for line := range strings.Lines(key.Private()) {
		text.WriteString("    " + line)
	}
	text.WriteString(publicHalf + key.Public + "\n")
	return text.String()
}

// publicHalf is what stands before the public half of the key.
const publicHalf = "  ed25519_public: "

// injectedKey returns the public half of the key in what userData has made; "" in any other text.
func injectedKey(userData string) string {
	for line := range strings.Lines(userData) {
		if key, is := strings.CutPrefix(line, publicHalf); is {
			return strings.TrimSpace(key)
		}
	}
	return ""
}
