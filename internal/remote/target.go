package remote

import (
	"net/netip"
	"time"
)

// Target is a host to reach.
type Target struct {
	Address netip.AddrPort
	User    string
	Trust   Trust
	// Via is a host that the connection goes through; nil: it goes directly. It is verified as every
	// host is, and sees nothing but the encrypted connection.
	Via *Target
	// Silence is how long the host may say nothing during the handshake, and how long it may take to
	// answer a first command that does nothing. It is for hosts that may well hang: a slow one says
	// something now and then, however long it takes as a whole. A jump host is not borne with for
	// longer, and is asked for no command. Zero: no such limit, and no such command.
	Silence time.Duration
}

// Trust says which host keys are accepted, all in authorized_keys form. The best source that has
// any key decides alone.
type Trust struct {
	// Attested are the keys that the provider attests.
	Attested []string
	// Injected are the keys that we put into the machine when we created it.
	Injected []string
	// Pinned are the keys that were found in an earlier contact.
	Pinned []string
	// FirstUse accepts any key while no source has one. The caller records the key that it finds in
	// Host.HostKey.
	FirstUse bool
}

// Source is where trust in a host key comes from.
type Source string

// The sources, best first.
const (
	SourceAttested Source = "attested"
	SourceInjected Source = "injected"
	SourcePinned   Source = "pinned"
	SourceFirstUse Source = "first-use"
)

// HostKey is the verified key of a host.
type HostKey struct {
	// Key in authorized_keys form, without a comment.
	Key string
	// Fingerprint as ssh-keygen shows it, such as "SHA256:…".
	Fingerprint string
	Source      Source
}
