package fleet

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
)

// Compression is how an image is compressed.
type Compression string

// The compressions.
const (
	CompressionNone Compression = "none"
	CompressionZstd Compression = "zstd"
	CompressionGzip Compression = "gzip"
	CompressionXZ   Compression = "xz"
)

// Compressions lists all compressions.
func Compressions() []Compression {
	return []Compression{CompressionNone, CompressionZstd, CompressionGzip, CompressionXZ}
}

// Image names an operating system image by digest.
type Image struct {
	URL string `json:"url"`
	// Digest of the raw image: "sha256:" and 64 hexadecimal digits.
	Digest      string      `json:"digest"`
	Compression Compression `json:"compression"`
	// Size of the raw image in bytes; 0 when not known.
	Size int64 `json:"size,omitempty"`
}

// Location returns the URL for people, for history and for logs: without user, query and fragment,
// any of which may be a credential, as in a presigned URL. An ellipsis stands for them.
func (i Image) Location() string {
	u, err := url.Parse(i.URL)
	if err != nil {
		return "a URL that cannot be read"
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return shown.String() + "?…"
	}
	return shown.String()
}

// String names the image as people may see it, so that printing one gives nothing away.
func (i Image) String() string { return i.Location() + " " + i.Digest }

// Pick decides among several disks that match a selector.
type Pick string

// The picks. The empty one wants exactly one match.
const (
	PickOnly     Pick = ""
	PickSmallest Pick = "smallest"
	PickLargest  Pick = "largest"
)

// DiskSelector picks the root disk. All set fields must match.
type DiskSelector struct {
	// Serial number of the disk.
	Serial string `json:"serial,omitempty"`
	// WWN is the World Wide Name of the disk.
	WWN string `json:"wwn,omitempty"`
	// MinSize in bytes.
	MinSize int64 `json:"min_size,omitempty"`
	// Pick decides among several: smallest or largest; left out, exactly one must match.
	Pick Pick `json:"pick,omitempty"`
}

// MaxFirstBootData bounds the first-boot data of an install, in bytes. The agent has room for no
// more.
const MaxFirstBootData = 64 << 10

// FieldFault is one thing that is wrong with a field of a value. Whoever took the value in knows
// what people call the field: a key of a file, a flag, a field of a message.
type FieldFault struct {
	// Field is the field's name in JSON.
	Field string
	// Problem continues the field's name to a sentence: what it must be. It never quotes what may hold
	// a secret.
	Problem string
}

const (
	maxImageURL = 2 << 10
	// maxDiskName bounds a serial number and a World Wide Name.
	maxDiskName = 256
)

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Validate returns every fault of the image. The configuration, the API and the CLI take images in,
// and all of them judge by it.
func (i Image) Validate() []FieldFault {
	var f faults
	if problem := imageURLProblem(i.URL); problem != "" {
		f.add("url", "%s", problem)
	}
	if !digestForm.MatchString(i.Digest) {
		f.add("digest", "must be sha256: and 64 lower-case hexadecimal digits, not %.80q", i.Digest)
	}
	if !slices.Contains(Compressions(), i.Compression) {
		f.add("compression", "must be none, zstd, gzip or xz, not %.80q", i.Compression)
	}
	if i.Size < 0 {
		f.add("size", "must not be negative, not %d", i.Size)
	}
	return f
}

// imageURLProblem says what is wrong with the URL without a word of it: a user and password are
// secret, and so may be a query.
func imageURLProblem(text string) string {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return "must be set to the http or https URL of an image"
	case len(text) > maxImageURL:
		return fmt.Sprintf("must have at most %d bytes, not %d", maxImageURL, len(text))
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "must be an http or https URL with a host"
	case u.User != nil:
		return "must not have a user or password in it, because everybody who may read can see it: serve the image without them"
	}
	return ""
}

// Validate returns every fault of the selector.
func (s DiskSelector) Validate() []FieldFault {
	var f faults
	if len(s.Serial) > maxDiskName {
		f.add("serial", "must have at most %d bytes, not %d", maxDiskName, len(s.Serial))
	}
	if len(s.WWN) > maxDiskName {
		f.add("wwn", "must have at most %d bytes, not %d", maxDiskName, len(s.WWN))
	}
	if s.MinSize < 0 {
		f.add("min_size", "must not be negative, not %d", s.MinSize)
	}
	if !slices.Contains([]Pick{PickOnly, PickSmallest, PickLargest}, s.Pick) {
		f.add("pick", "must be smallest or largest, or left out where exactly one disk matches, not %.80q", s.Pick)
	}
	return f
}

type faults []FieldFault

func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, FieldFault{Field: field, Problem: fmt.Sprintf(format, args...)})
}
