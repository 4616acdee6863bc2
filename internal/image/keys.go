package image

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

const (
	keyOption = `[A-Za-z0-9-]+(?:="(?:\\"|[^"])*")?`
	// keyType is of the types that Debian's sshd takes; certificates are none.
	keyType = `ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)|sk-ssh-ed25519@openssh\.com|sk-ecdsa-sha2-nistp256@openssh\.com`
)

// publicKey matches a line of authorized_keys: options, the type of the key, the key, a comment.
// What lines of known_hosts begin with is no option: an address, a hash, a name with a dot.
var publicKey = regexp.MustCompile(`^(?:` + keyOption + `(?:,` + keyOption + `)*[ \t]+)?(` + keyType + `)[ \t]+([A-Za-z0-9+/]+=*)(?:[ \t].*)?$`)

// CheckKeys says why a text cannot be what AuthorizedKeys are. It does not repeat the line, which
// may be of a private key.
func CheckKeys(text []byte) error {
	keys := 0
	for n, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := publicKey.FindStringSubmatch(line)
		if parts == nil || !isKey(parts[1], parts[2]) {
			return fmt.Errorf("line %d is not a public key as in authorized_keys", n+1)
		}
		keys++
	}
	if keys == 0 {
		return errors.New("there is no key in it")
	}
	return nil
}

// isKey reports whether a key is one of that type, and not cut short: it is a sequence of strings
// after their lengths, of which the first is the type.
func isKey(kind, encoded string) bool {
	rest, err := base64.StdEncoding.DecodeString(encoded)
	var fields []string
	for err == nil && len(rest) >= 4 {
		length := binary.BigEndian.Uint32(rest)
		if rest = rest[4:]; uint64(length) > uint64(len(rest)) {
			return false
		}
		fields, rest = append(fields, string(rest[:length])), rest[length:]
	}
	return err == nil && len(rest) == 0 && len(fields) > 1 && fields[0] == kind
}
