package equinixapi

import (
	"net/http"
	"strings"
)

// selection is a set of dotted names as a tree.
type selection map[string]selection

func parseSelection(values []string) selection {
	s := selection{}
	for _, value := range values {
		for name := range strings.SplitSeq(value, ",") {
			at := s
			for i, part := range strings.Split(strings.TrimSpace(name), ".") {
				if part == "" || i == 3 { // three references deep at most
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
}

func viewOf(r *http.Request) view {
	query := r.URL.Query()
	// Some clients write include[]=.
	include, exclude := append(query["include"], query["include[]"]...), append(query["exclude"], query["exclude[]"]...)
	return view{
		parseSelection(include), parseSelection(exclude), strings.Join(include, ",") + "-" + strings.Join(exclude, ","),
	}
}

func (v view) below(name string) view {
	return view{v.include[name], v.exclude[name], v.key + "/" + name}
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
	below := v.below(name)
	if _, ok := v.exclude[name]; ok && len(below.exclude) == 0 {
		return hrefTo(href)
	}
	return full(below)
}

// refs is a list of references, bare unless included.
func refs[T any](v view, name string, items []T, href func(T) string, full func(T, view) obj) []obj {
	list := make([]obj, 0, len(items))
	for _, item := range items {
		list = append(list, v.ref(name, href(item), func(below view) obj { return full(item, below) }))
	}
	return list
}
