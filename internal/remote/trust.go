package remote

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/fleet"
)

// HostKeyError says that a host has another key than the one expected, or that none is known for
// it. Nothing was sent to it.
type HostKeyError struct {
	Address netip.AddrPort
	// Presented is the fingerprint of the host's key, and Key the key in authorized_keys form.
	Presented string
	Key       string
	// Expected are the fingerprints that would have been accepted, from Source; none where no key is
	// known and the first one is not trusted.
	Expected []string
	Source   Source
}

// Error tells both sides.
func (e *HostKeyError) Error() string {
	if len(e.Expected) == 0 {
		return fmt.Sprintf("%s has the host key %s, and no host key is known for it: nothing was sent to it", e.Address, e.Presented)
	}
	return fmt.Sprintf("%s has the host key %s, but %s is expected (%s): nothing was sent to it",
		e.Address, e.Presented, strings.Join(e.Expected, " or "), e.Source)
}

// Remedy says how a person accepts the key that the host of a machine has shown.
func (e *HostKeyError) Remedy(machine fleet.MachineID) string {
	return fmt.Sprintf("if that key is right: `ironherd machine host-key accept %s %s --reason WHY`", machine, e.Presented)
}

// verifier holds the keys that are accepted from one host, and what it presented.
type verifier struct {
	address  netip.AddrPort
	source   Source
	accepted []ssh.PublicKey

	presented ssh.PublicKey
	refused   error
}

// newVerifier picks the best source that has any key. A key that cannot be parsed is an error:
// skipping it could hand the decision to a worse source.
func newVerifier(address netip.AddrPort, trust Trust) (*verifier, error) {
	for _, candidate := range []struct {
		source Source
		keys   []string
	}{{SourceAttested, trust.Attested}, {SourceInjected, trust.Injected}, {SourcePinned, trust.Pinned}} {
		if len(candidate.keys) == 0 {
			continue
		}
		v := &verifier{address: address, source: candidate.source}
		for _, text := range candidate.keys {
			key, err := parsePublic(text)
			if err != nil {
				return nil, fleet.Errorf(fleet.KindInvalid, "host key (%s) of %s: %w", candidate.source, address, err)
			}
			v.accepted = append(v.accepted, key)
		}
		return v, nil
	}
	if trust.FirstUse {
		return &verifier{address: address, source: SourceFirstUse}, nil
	}
	// It accepts no key, and tells the one that the host has, so that a person can accept it.
	return &verifier{address: address}, nil
}

// check is the ssh.HostKeyCallback. It runs after the key exchange and before anything about us is
// sent.
func (v *verifier) check(_ string, _ net.Addr, key ssh.PublicKey) error {
	v.presented = key
	if v.source == SourceFirstUse {
		return nil
	}
	for _, accepted := range v.accepted {
		if bytes.Equal(accepted.Marshal(), key.Marshal()) {
			return nil
		}
	}
	wrong := &HostKeyError{Address: v.address, Presented: ssh.FingerprintSHA256(key), Key: authorized(key), Source: v.source}
	for _, accepted := range v.accepted {
		wrong.Expected = append(wrong.Expected, ssh.FingerprintSHA256(accepted))
	}
	v.refused = &fleet.Error{Kind: fleet.KindForbidden, Err: wrong}
	return v.refused
}

// algorithms puts the kinds of key that are expected first, so that a host with keys of several
// kinds presents one of those. The others stay allowed: a host that lacks the expected kind then
// shows what it has, and is refused by name.
func (v *verifier) algorithms() []string {
	supported := ssh.SupportedAlgorithms().HostKeys
	var preferred []string
	for _, key := range v.accepted {
		switch key.Type() {
		case ssh.KeyAlgoRSA:
			preferred = append(preferred, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		default:
			preferred = append(preferred, key.Type())
		}
	}
	order := slices.DeleteFunc(preferred, func(a string) bool { return !slices.Contains(supported, a) })
	for _, algorithm := range supported {
		// Certificates would be checked against an authority, which no source here names.
		if !slices.Contains(order, algorithm) && !strings.Contains(algorithm, "-cert-") {
			order = append(order, algorithm)
		}
	}
	return order
}

func (v *verifier) hostKey() HostKey {
	return HostKey{Key: authorized(v.presented), Fingerprint: ssh.FingerprintSHA256(v.presented), Source: v.source}
}
