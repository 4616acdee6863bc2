package fleet

import (
	"regexp"
	"strings"
)

// MaxLabels is how many labels a machine has at most.
const MaxLabels = 20

// labelForm is what the name of a label looks like, and its value unless that is empty.
var labelForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$`)

// NewLabel returns a label as it is kept and shown, name=value. The value may be empty.
// KindInvalid.
func NewLabel(name, value string) (string, error) {
	if !labelForm.MatchString(name) || value != "" && !labelForm.MatchString(value) {
		return "", Errorf(KindInvalid, "a label has a name and a value of at most 63 letters, digits, dots, hyphens, underscores and slashes, "+
			"not %.140q", name+"="+value)
	}
	return name + "=" + value, nil
}

// A LabelSelector fits machines by a label: name=value that of this value, and name alone one of
// any value.
type LabelSelector string

// ParseLabelSelector returns the selector that somebody has written. KindInvalid.
func ParseLabelSelector(s string) (LabelSelector, error) {
	name, value, _ := strings.Cut(s, "=")
	_, err := NewLabel(name, value)
	return LabelSelector(s), err
}

// Fits reports whether a machine with these labels is selected.
func (s LabelSelector) Fits(labels []string) bool {
	for _, label := range labels {
		name, _, _ := strings.Cut(label, "=")
		if label == string(s) || name == string(s) {
			return true
		}
	}
	return false
}
