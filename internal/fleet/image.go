package fleet

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Compression is how an image is compressed.
type Compression string

// The compressions.
const (
	CompressionNone Compression = "none"
	CompressionZstd Compression = "zstd"
	CompressionGzip Compression = "gzip"
	CompressionXZ   Compression = "xz"
	// CompressionLayer is as the manifest of an image in a registry says: by the media type of its
	// layer, or else by its title.
	CompressionLayer Compression = "layer"
)

// compressions lists all compressions.
func compressions() []Compression {
	return []Compression{CompressionNone, CompressionZstd, CompressionGzip, CompressionXZ, CompressionLayer}
}

// Architecture is what an image is for, in Go's names. The hardware report has that of a machine.
type Architecture string

// The architectures.
const (
	// ArchitectureUnknown: nobody has said.
	ArchitectureUnknown Architecture = ""
	ArchitectureAMD64   Architecture = "amd64"
	ArchitectureARM64   Architecture = "arm64"
)

func architectures() []Architecture {
	return []Architecture{ArchitectureUnknown, ArchitectureAMD64, ArchitectureARM64}
}

// Image names an operating system image by digest: that of the raw image, that of the file as it is
// served, or both. Publishers give the latter; the former names the same system whatever it is
// compressed by. An install verifies all that are given before it writes anything that boots. An
// oci:// URL names a manifest by its digest, and that has the digest of the file, so neither need
// be given there.
//
// What people see of the digests is Identity. Two images are the same when all their fields are.
type Image struct {
	URL string `json:"url"`
	// Digest of the raw image: "sha256:" and 64 hexadecimal digits.
	Digest string `json:"digest"`
	// FileDigest is that of the file as it is served: "sha256:" and 64 hexadecimal digits, or
	// "sha512:" and 128.
	FileDigest  string      `json:"file_digest,omitempty"`
	Compression Compression `json:"compression"`
	// Size of the raw image in bytes; 0 when not known.
	Size int64 `json:"size,omitempty"`
	// Name in the catalogue that it was asked for by; empty: by its URL.
	Name string `json:"name,omitempty"`
	// FirstBoot is how its system takes first-boot data.
	FirstBoot FirstBootForm `json:"first_boot,omitempty"`
	// Kexec starts its kernel by kexec when it has been written, so that the firmware does not run.
	// Where that is not possible, the machine is restarted.
	Kexec bool `json:"kexec,omitempty"`
	// Architecture that it is for: no machine of another one is written. Control planes and agents of
	// older versions refuse a request that has it.
	Architecture Architecture `json:"architecture,omitempty"`
}

// FirstBootForm is how an installed system finds its first-boot data.
type FirstBootForm string

// The forms. In each of them, the first-boot area is written.
const (
	FirstBootArea            FirstBootForm = ""
	FirstBootNoCloud         FirstBootForm = "nocloud"
	FirstBootNoCloudUserData FirstBootForm = "nocloud-user-data"
)

func firstBootForms() []FirstBootForm {
	return []FirstBootForm{FirstBootArea, FirstBootNoCloud, FirstBootNoCloudUserData}
}

// CompressionOf returns the compression that the end of an image's URL stands for. That of an image
// in a registry always is a digest, so the manifest is asked there.
func CompressionOf(address string) Compression {
	switch path, _, _ := strings.Cut(address, "?"); {
	case strings.HasPrefix(path, "oci://"):
		return CompressionLayer
	case strings.HasSuffix(path, ".zst"), strings.HasSuffix(path, ".zstd"):
		return CompressionZstd
	case strings.HasSuffix(path, ".gz"):
		return CompressionGzip
	case strings.HasSuffix(path, ".xz"):
		return CompressionXZ
	}
	return CompressionNone
}

var imageNameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$`)

// ParseImageName checks a name of the catalogue. No name can be taken for a URL.
func ParseImageName(text string) (string, error) {
	if !imageNameForm.MatchString(text) {
		return "", Errorf(KindInvalid, "%.80q cannot name an image: want lower-case letters, digits, dots, dashes and underscores, at most 64", text)
	}
	return text, nil
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

// Label is what people know the image by: its name and where it is.
func (i Image) Label() string {
	if i.Name != "" {
		return i.Name + ", " + i.Location()
	}
	return i.Location()
}

// Identity is the digest that the image is known by, of those that are given: of the raw image, of
// its file, or of its manifest.
func (i Image) Identity() string {
	switch _, manifest, found := strings.Cut(i.URL, "@"); {
	case i.Digest != "":
		return i.Digest
	case i.FileDigest != "":
		return "file " + i.FileDigest
	case i.inRegistry() && found:
		return "manifest " + manifest
	}
	return ""
}

// ShortIdentity is the beginning of Identity, for tables.
func (i Image) ShortIdentity() string {
	const digits = 12
	kind, digest, _ := strings.Cut(i.Identity(), ":")
	if len(digest) <= digits {
		return i.Identity()
	}
	return kind + ":" + digest[:digits] + "…"
}

func (i Image) inRegistry() bool { return strings.HasPrefix(i.URL, "oci://") }

// String names the image as people may see it, so that printing one gives nothing away.
func (i Image) String() string { return i.Label() + " " + i.Identity() }

// Pick decides among several disks that match a selector.
type Pick string

// The picks. The empty one wants exactly one match.
const (
	PickOnly     Pick = ""
	PickSmallest Pick = "smallest"
	PickLargest  Pick = "largest"
)

func picks() []Pick { return []Pick{PickOnly, PickSmallest, PickLargest} }

// DiskSelector picks the root disk. All set fields must match.
type DiskSelector struct {
	// Serial number of the disk.
	Serial string `json:"serial,omitempty"`
	// WWN is the World Wide Name of the disk.
	WWN string `json:"wwn,omitempty"`
	// Model of the disk, as the hardware report names it.
	Model string `json:"model,omitempty"`
	// MinSize in bytes.
	MinSize int64 `json:"min_size,omitempty"`
	// Pick decides among several: smallest or largest; left out, exactly one must match.
	Pick Pick `json:"pick,omitempty"`
	// Erase allows a disk that holds something: a partition table, a file system, a member of a RAID.
	// Without it, only a disk is written that holds nothing that is known, or the newest install of
	// the same machine.
	Erase bool `json:"erase,omitempty"`
	// Grow moves the image's partition table to the whole disk and lets its last partition grow.
	Grow bool `json:"grow,omitempty"`
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

var (
	digestForm     = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	fileDigestForm = regexp.MustCompile(`^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`)
)

// Validate returns every fault of the image. The configuration, the API and the CLI take images in,
// and all of them judge by it.
func (i Image) Validate() []FieldFault {
	var f faults
	if problem := imageURLProblem(i.URL); problem != "" {
		f.add("url", "%s", problem)
	}
	i.checkDigests(&f)
	if !slices.Contains(compressions(), i.Compression) {
		f.add("compression", "must be none, zstd, gzip, xz or layer, not %.80q", i.Compression)
	} else if i.Compression == CompressionLayer && !i.inRegistry() {
		f.add("compression", "is layer, which is for oci URLs: the manifest says it there")
	}
	if i.Size < 0 {
		f.add("size", "must not be negative, not %d", i.Size)
	}
	if !slices.Contains(firstBootForms(), i.FirstBoot) {
		f.add("first_boot", "must be nocloud, nocloud-user-data, or left out where the system reads the first-boot area, not %.80q", i.FirstBoot)
	}
	if !slices.Contains(architectures(), i.Architecture) {
		f.add("architecture", "must be amd64 or arm64, or left out where it is not known, not %.80q", i.Architecture)
	}
	return f
}

func (i Image) checkDigests(f *faults) {
	switch {
	case i.Digest != "" && !digestForm.MatchString(i.Digest):
		f.add("digest", "must be sha256: and 64 lower-case hexadecimal digits, not %.80q", i.Digest)
	case i.Digest == "" && i.FileDigest == "" && !i.inRegistry():
		f.add("digest", "must be sha256: and 64 lower-case hexadecimal digits of the raw image, unless the digest of the file is given")
	}
	switch {
	case i.FileDigest == "":
	case i.inRegistry():
		f.add("file_digest", "must be left out of an image in a registry: the manifest has it")
	case !fileDigestForm.MatchString(i.FileDigest):
		f.add("file_digest", "must be sha256: and 64 or sha512: and 128 lower-case hexadecimal digits, not %.140q", i.FileDigest)
	}
}

// imageURLProblem says what is wrong with the URL without a word of it: a user and password are
// secret, and so may be a query.
func imageURLProblem(text string) string {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return "must be set to the http, https or oci URL of an image"
	case len(text) > maxImageURL:
		return fmt.Sprintf("must have at most %d bytes, not %d", maxImageURL, len(text))
	case err != nil || !slices.Contains([]string{"http", "https", "oci"}, u.Scheme) || u.Hostname() == "":
		return "must be an http, https or oci URL with a host"
	case u.User != nil:
		return "must not have a user or password in it, because everybody who may read can see it: serve the image without them"
	case u.Scheme == "oci" && !ociForm.MatchString(u.Path):
		return "must name the manifest by its digest: oci://REGISTRY/REPOSITORY@sha256: and 64 hexadecimal digits"
	}
	return ""
}

// ociForm is a repository and a digest, by the OCI distribution specification.
var ociForm = regexp.MustCompile(`^(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+@sha256:[0-9a-f]{64}$`)

// Validate returns every fault of the selector.
func (s DiskSelector) Validate() []FieldFault {
	var f faults
	if len(s.Serial) > maxDiskName {
		f.add("serial", "must have at most %d bytes, not %d", maxDiskName, len(s.Serial))
	}
	if len(s.WWN) > maxDiskName {
		f.add("wwn", "must have at most %d bytes, not %d", maxDiskName, len(s.WWN))
	}
	if len(s.Model) > maxDiskName {
		f.add("model", "must have at most %d bytes, not %d", maxDiskName, len(s.Model))
	}
	if s.MinSize < 0 {
		f.add("min_size", "must not be negative, not %d", s.MinSize)
	}
	if !slices.Contains(picks(), s.Pick) {
		f.add("pick", "must be smallest or largest, or left out where exactly one disk matches, not %.80q", s.Pick)
	}
	return f
}

// UnknownWord returns a word of the request that says nothing to this version, because a newer one
// has written it; "": there is none.
func (q InstallRequest) UnknownWord() string {
	switch i, by := q.Image, q.SeenUp.By; {
	case i.Compression != "" && !slices.Contains(compressions(), i.Compression):
		return string(i.Compression)
	case !slices.Contains(firstBootForms(), i.FirstBoot):
		return string(i.FirstBoot)
	case !slices.Contains(architectures(), i.Architecture):
		return string(i.Architecture)
	case !slices.Contains(picks(), q.RootDisk.Pick):
		return string(q.RootDisk.Pick)
	case by != SeenByUnit && by != SeenBySSH && by != SeenByHTTP:
		return string(by)
	}
	return ""
}

type faults []FieldFault

func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, FieldFault{Field: field, Problem: fmt.Sprintf(format, args...)})
}
