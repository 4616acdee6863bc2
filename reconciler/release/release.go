// Package release says what a release is, how releases are ordered, and which one this build is.
//
// The order is that of semantic versioning 2.0.0, §11: numbers first, a pre-release before the
// release it leads to. Build metadata (+…) is dropped: two builds of one release are one release.
package release

import (
	"strings"

	"golang.org/x/mod/semver"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Release is one release of a node's software. The zero value is below every release that Parse
// returns: "none, or not known". Comparable with ==.
type Release struct {
	text string // v1.2.3 or v1.2.3-rc.1, as semver.Canonical returns it; empty: none
}

const maxLength = 64

// Parse reads v1.2.3 or v1.2.3-rc.1; the v may be missing. v0.0.0 and its pre-releases are refused:
// they stand for no release. The error is failure.Invalid and quotes the text.
func Parse(text string) (Release, error) {
	refuse := func(why string) error {
		if len(text) > maxLength {
			text = text[:maxLength] + "…"
		}
		return fleet.Errorf(fleet.KindInvalid, "%q is no release (%s): write it as v1.2.3 or v1.2.3-rc.1", text, why)
	}
	if len(text) > maxLength {
		return Release{}, refuse("too long")
	}
	full := "v" + strings.TrimPrefix(text, "v")
	switch canonical := semver.Canonical(full); {
	case canonical == "":
		return Release{}, refuse("that is no semantic version")
	case canonical+semver.Build(full) != full:
		return Release{}, refuse("three numbers are needed")
	case strings.TrimSuffix(canonical, semver.Prerelease(canonical)) == "v0.0.0":
		return Release{}, refuse("it is none")
	default:
		return Release{canonical}, nil
	}
}

// MustParse is Parse for constants of the source. It panics.
func MustParse(text string) Release {
	r, err := Parse(text)
	if err != nil {
		panic(err)
	}
	return r
}

// Compare returns a negative number when r is older than other, zero when they are the same, a
// positive number when r is newer.
func (r Release) Compare(other Release) int { return semver.Compare(r.text, other.text) }

// Less says whether r is older than other.
func (r Release) Less(other Release) bool { return r.Compare(other) < 0 }

// Min returns the older of two.
func Min(a, b Release) Release {
	if b.Less(a) {
		return b
	}
	return a
}

// Max returns the newer of two.
func Max(a, b Release) Release {
	if a.Less(b) {
		return b
	}
	return a
}

// IsZero says whether it stands for no release.
func (r Release) IsZero() bool { return r == Release{} }

// String returns it as v1.2.3-rc.1; "none" for the zero value.
func (r Release) String() string {
	if r.IsZero() {
		return "none"
	}
	return r.text
}

// MarshalText implements encoding.TextMarshaler.
func (r Release) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler; "none" is the zero value.
func (r *Release) UnmarshalText(text []byte) error {
	if string(text) == "none" {
		*r = Release{}
		return nil
	}
	parsed, err := Parse(string(text))
	if err == nil {
		*r = parsed
	}
	return err
}
