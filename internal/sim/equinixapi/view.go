package equinixapi

import (
	"net/http"
	"strings"
)

// maxDepth is how many references deep an include or exclude goes.
const maxDepth = 3

// selection is a set of dotted names as a tree.
type selection map[string]selection

func parseSelection(values []string) selection {
	s := selection{}
	for _, value := range values {
		for name := range strings.SplitSeq(value, ",") {
			at := s
			for i, part := range strings.Split(strings.TrimSpace(name), ".") {
				if part == "" || i == maxDepth {
					break
				}
				if at[part] == nil {
					at[part] = selection{}
				}
				at = at[part]
			}
		}
	}
	return s
}

// view says which references of an object become objects.
type view struct {
	include, exclude selection
	// key tells this view from others.
	key string
	// included is set where this object was included by name.
	included bool
}

func viewOf(r *http.Request) view {
	query := r.URL.Query()
	// Some clients write include[]=.
	include, exclude := append(query["include"], query["include[]"]...), append(query["exclude"], query["exclude[]"]...)
	return view{
		include: parseSelection(include), exclude: parseSelection(exclude),
		key: strings.Join(include, ",") + "-" + strings.Join(exclude, ","),
	}
}

func (v view) below(name string) view {
	_, included := v.include[name]
	return view{v.include[name], v.exclude[name], v.key + "/" + name, included}
}

// within is a view of an object whose part of that name is looked at with this view.
func (v view) within(name string) view {
	whole := view{include: selection{name: v.include}, exclude: selection{}, key: name + ">" + v.key}
	if len(v.exclude) > 0 {
		whole.exclude[name] = v.exclude
	}
	return whole
}

func hrefTo(href string) obj { return obj{"href": href} }

// ref is a bare reference unless it is included.
func (v view) ref(name, href string, full func(view) obj) obj {
	if _, ok := v.include[name]; ok {
		return full(v.below(name))
	}
	return hrefTo(href)
}

// embed is an object unless it is excluded as a whole.
func (v view) embed(name, href string, full func(view) any) any {
	if v.excludes(name) {
		return hrefTo(href)
	}
	return full(v.below(name))
}

// excludes reports whether what would be embedded is excluded as a whole.
func (v view) excludes(name string) bool {
	below, ok := v.exclude[name]
	return ok && len(below) == 0
}

// refs is a list of references, bare unless included.
func refs[T any](v view, name string, items []T, href func(T) string, full func(T, view) obj) []obj {
	list := make([]obj, 0, len(items))
	for _, item := range items {
		list = append(list, v.ref(name, href(item), func(below view) obj { return full(item, below) }))
	}
	return list
}
