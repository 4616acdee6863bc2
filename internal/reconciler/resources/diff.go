package resources

import (
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// around is how many unchanged lines are shown around a change.
const around = 3

// difference returns the difference of two objects as YAML lines; nil stands for no object. It
// leaves out what only servers write, and hides secrets.
func difference(before, after *unstructured.Unstructured) string {
	b, a := shown(before), shown(after)
	if isSecret(before) || isSecret(after) {
		hide(b, a)
	}
	return diffLines(lines(b), lines(a))
}

// shown returns what people should see of an object.
func shown(o *unstructured.Unstructured) map[string]any {
	if o == nil {
		return nil
	}
	content := o.DeepCopy().Object
	for _, field := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink"} {
		unstructured.RemoveNestedField(content, "metadata", field)
	}
	for _, annotation := range []string{object.Applied, object.Mark} {
		unstructured.RemoveNestedField(content, "metadata", "annotations", annotation)
	}
	if annotations, _, _ := unstructured.NestedMap(content, "metadata", "annotations"); len(annotations) == 0 {
		unstructured.RemoveNestedField(content, "metadata", "annotations")
	}
	delete(content, "status")
	return content
}

func isSecret(o *unstructured.Unstructured) bool {
	return o != nil && o.GetKind() == "Secret" && o.GetAPIVersion() == "v1"
}

// hide replaces the values of secrets by words that tell whether they differ. Annotations are
// hidden, too, except what an object is for: kubectl keeps the whole Secret in one, and so do other
// tools.
func hide(before, after map[string]any) {
	for _, field := range [][]string{{"data"}, {"stringData"}, {"metadata", "annotations"}} {
		hideValues(within(before, field), within(after, field))
	}
}

// within returns the map at a path; nil if there is none.
func within(content map[string]any, path []string) map[string]any {
	for _, name := range path {
		content, _ = content[name].(map[string]any)
	}
	return content
}

func hideValues(b, a map[string]any) {
	for key, value := range b {
		if key == object.Description {
			continue
		}
		other, both := a[key]
		switch {
		case !both:
			b[key] = "(hidden)"
		case reflect.DeepEqual(value, other):
			b[key], a[key] = "(hidden)", "(hidden)"
		default:
			b[key], a[key] = "(hidden, before)", "(hidden, after)"
		}
	}
	for key := range a {
		if _, both := b[key]; !both && key != object.Description {
			a[key] = "(hidden)"
		}
	}
}

func lines(content map[string]any) []string {
	if content == nil {
		return nil
	}
	text, err := yaml.Marshal(content)
	if err != nil {
		return []string{fmt.Sprintf("(cannot be shown: %v)", err)}
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// diffLines marks each line: "-" is only in a, "+" only in b, " " in both. Long stretches without a
// change are left out.
func diffLines(a, b []string) string {
	marked := longestCommon(a, b)
	var out strings.Builder
	skipped := false
	for n, line := range marked {
		near := false
		for m := max(n-around, 0); m <= min(n+around, len(marked)-1); m++ {
			near = near || marked[m][0] != ' '
		}
		if !near {
			skipped = true
			continue
		}
		if skipped && out.Len() > 0 {
			out.WriteString(" ⋮\n")
		}
		skipped = false
		out.WriteString(line + "\n")
	}
	return out.String()
}

// longestCommon walks the table of longest common subsequences, whose size is bounded: what is too
// long is shown as replaced.
func longestCommon(a, b []string) []string {
	const maxCells = 4 << 20
	var out []string
	if len(a)*len(b) > maxCells {
		for _, line := range a {
			out = append(out, "-"+line)
		}
		for _, line := range b {
			out = append(out, "+"+line)
		}
		return out
	}
	width := len(b) + 1
	length := make([]int32, (len(a)+1)*width) // of what is common to a[i:] and b[j:]
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				length[i*width+j] = length[(i+1)*width+j+1] + 1
			} else {
				length[i*width+j] = max(length[(i+1)*width+j], length[i*width+j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, " "+a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && length[(i+1)*width+j] >= length[i*width+j+1]:
			out = append(out, "-"+a[i])
			i++
		default:
			out = append(out, "+"+b[j])
			j++
		}
	}
	return out
}
