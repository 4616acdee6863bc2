package provider

// HostKey is an SSH host key that we make for a machine. Whatever prints it shows the public half
// alone.
type HostKey struct {
	// Public is the public half in authorized_keys form, Fingerprint as ssh-keygen shows it.
	Public      string
	Fingerprint string
	private     string
}

// NewHostKey returns a host key; private is its private half in OpenSSH form.
func NewHostKey(public, fingerprint, private string) HostKey {
	return HostKey{Public: public, Fingerprint: fingerprint, private: private}
}

// Private returns the private half in OpenSSH form, for the machine and for nobody else.
func (k HostKey) Private() string { return k.private }

// IsZero reports whether there is no key.
func (k HostKey) IsZero() bool { return k.private == "" }

// String returns the fingerprint.
func (k HostKey) String() string { return k.Fingerprint }

// GoString returns the fingerprint, too: printing a key in any form gives nothing away.
func (k HostKey) GoString() string { return k.Fingerprint }
