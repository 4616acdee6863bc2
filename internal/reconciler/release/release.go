// Package release says what a release is, how releases are ordered, and which one this build is.
//
// The order is that of semantic versioning 2.0.0, §11: numbers first, a pre-release before the
// release it leads to. Build metadata (+…) is dropped: two builds of one release are one release.
package release

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Release is one release of a node's software. The zero value is v0.0.0, below every release that
// Parse returns: "none, or not known". Comparable with ==.
type Release struct {
	major, minor, patch uint64
	pre                 string
}

const maxLength = 64

// Parse reads v1.2.3 or v1.2.3-rc.1; the v may be missing. v0.0.0 and its pre-releases are refused:
// they stand for no release. The error is KindInvalid and quotes the text.
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
	core, _, _ := strings.Cut(strings.TrimPrefix(text, "v"), "+")
	core, pre, hasPre := strings.Cut(core, "-")
	numbers := strings.Split(core, ".")
	if len(numbers) != 3 {
		return Release{}, refuse("three numbers are needed")
	}
	var r Release
	for i, into := range []*uint64{&r.major, &r.minor, &r.patch} {
		n, ok := number(numbers[i])
		if !ok {
			return Release{}, refuse("three numbers are needed")
		}
		*into = n
	}
	if r == (Release{}) {
		return Release{}, refuse("it is none")
	}
	if hasPre {
		for part := range strings.SplitSeq(pre, ".") {
			if !identifier(part) {
				return Release{}, refuse("its pre-release is malformed")
			}
		}
		r.pre = pre
	}
	return r, nil
}

// MustParse is Parse for constants of the source. It panics.
func MustParse(text string) Release {
	r, err := Parse(text)
	if err != nil {
		panic(err)
	}
	return r
}

// number reads decimal digits without leading zeros.
func number(text string) (uint64, bool) {
	if text == "" || len(text) > 1 && text[0] == '0' || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

func identifier(part string) bool {
	if part == "" {
		return false
	}
	if strings.Trim(part, "0123456789") == "" { // numeric identifiers have no leading zeros
		return len(part) == 1 || part[0] != '0'
	}
	for _, c := range []byte(part) {
		if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// Compare returns a negative number when r is older than other, zero when they are the same, a
// positive number when r is newer.
func (r Release) Compare(other Release) int {
	return cmp.Or(cmp.Compare(r.major, other.major), cmp.Compare(r.minor, other.minor), cmp.Compare(r.patch, other.patch),
		comparePre(r.pre, other.pre))
}

// Less says whether r is older than other.
func (r Release) Less(other Release) bool { return r.Compare(other) < 0 }

func comparePre(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == "":
		return 1
	case b == "":
		return -1
	}
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		if c := compareIdentifier(as[i], bs[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(as), len(bs))
}

// compareIdentifier: numbers are below words and compare as numbers, of any size.
func compareIdentifier(a, b string) int {
	aIsNumber, bIsNumber := strings.Trim(a, "0123456789") == "", strings.Trim(b, "0123456789") == ""
	switch {
	case aIsNumber && bIsNumber:
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	case aIsNumber:
		return -1
	case bIsNumber:
		return 1
	}
	return cmp.Compare(a, b)
}

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
	text := "v" + strconv.FormatUint(r.major, 10) + "." + strconv.FormatUint(r.minor, 10) + "." + strconv.FormatUint(r.patch, 10)
	if r.pre != "" {
		text += "-" + r.pre
	}
	return text
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
